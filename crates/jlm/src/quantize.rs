//! Floats to Q8_0 (spec: container, B.7).

use crate::dtype::DType;
use crate::error::JlmError;
use crate::pack::{PlaneBytesMut, Sheet};

/// Quantizes rows of `k` values into Q8_0 source blocks; `out` has 34 bytes for each 32 values.
pub fn quantize_q8(values: &[f32], out: &mut [u8]) -> Result<(), JlmError> {
    let (blocks, rest) = values.as_chunks::<BLOCK>();
    if !rest.is_empty() || out.len() != blocks.len() * BLOCK_BYTES {
        return Err(JlmError::Model("values for Q8_0 are not whole blocks"));
    }
    for (at, (values, out)) in blocks
        .iter()
        .zip(out.chunks_exact_mut(BLOCK_BYTES))
        .enumerate()
    {
        let amax = values
            .iter()
            .fold(0f32, |amax, value| amax.max(value.abs()));
        if !values.iter().all(|value| value.is_finite()) {
            return Err(JlmError::Block {
                format: "Q8_0",
                block: at as u64,
                reason: "a value is not finite",
            });
        }
        let d = amax / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        out[..2].copy_from_slice(&half_of(d).to_le_bytes());
        for (q, value) in out[2..].iter_mut().zip(values) {
            *q = (value * inverse).round() as i8 as u8;
        }
    }
    Ok(())
}

/// Quantizes a sheet of `rows` rows of `k` values straight into planes.
pub fn quantize_q8_sheet(
    values: &[f32],
    k: usize,
    rows: usize,
    planes: PlaneBytesMut<'_>,
) -> Result<(), JlmError> {
    let mut blocks = vec![0; values.len() / BLOCK * BLOCK_BYTES];
    quantize_q8(values, &mut blocks)?;
    let dtype = DType::Q8;
    Sheet { dtype, k, rows }.pack(&blocks, planes)
}

/// The reference writer's f32 to f16: nearest even for normal halves; for subnormal ones ties
/// go up, and what is below the smallest becomes zero.
#[must_use]
pub fn half_of(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) as u16 & 0x8000;
    let exponent = (bits >> 23) & 0xff;
    match exponent {
        0..SMALLEST => sign,
        SMALLEST..NORMAL => {
            let mantissa = (bits & 0x7f_ffff) | 0x80_0000;
            let shift = 126 - exponent;
            let rounded = (mantissa >> shift) + ((mantissa >> (shift - 1)) & 1);
            sign | rounded as u16
        }
        _ => half::f16::from_f32(value).to_bits(),
    }
}

const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;
/// Exponent field of 2^-24, the smallest half.
const SMALLEST: u32 = 127 - 24;
/// Exponent field of 2^-14, the smallest normal half.
const NORMAL: u32 = 127 - 14;
