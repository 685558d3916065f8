//! Planes to values, a row at a time (spec: container, B.6).

use crate::dtype::DType;
use crate::error::JlmError;
use crate::pack::{PlaneBytes, Sheet, check_len};

impl Sheet {
    /// The values of row `row`, in element order; `out` has `k` places.
    ///
    /// Arithmetic is the reference's: see B.6 of the container's spec.
    pub fn dequantize_row(
        &self,
        planes: PlaneBytes<'_>,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), JlmError> {
        check_len(out.len(), self.k)?;
        if row >= self.rows {
            return Err(JlmError::Model("a row past the sheet's last was asked for"));
        }
        let Some(format) = self.dtype.packed() else {
            let width = self.dtype.value_bytes().unwrap_or(1) as usize;
            check_len(planes.qs.len(), self.k * self.rows * width)?;
            let bytes = &planes.qs[row * self.k * width..(row + 1) * self.k * width];
            floats(self.dtype, bytes, out);
            return Ok(());
        };
        self.check(&format, planes.qs.len(), planes.d.len(), planes.sc.len())?;
        let mut words: Words = [0; MAX_WORDS];
        let mut elements = [0; 32];
        let (sub, width) = (format.sub as usize, format.words() as usize);
        let block_elements = format.block_elements as usize;
        let subs = block_elements / sub;
        for (at, values) in out.chunks_exact_mut(block_elements).enumerate() {
            load(self, subs * width, planes.qs, row, at, &mut words);
            for (i, values) in values.chunks_exact_mut(sub).enumerate() {
                sub_block(
                    self.dtype,
                    &words[i * width..(i + 1) * width],
                    &mut elements,
                );
                let scale = self.scale(planes, row, at, i);
                for (value, element) in values.iter_mut().zip(elements) {
                    *value = scale.value(element);
                }
            }
        }
        Ok(())
    }

    /// The scale of sub-block `sub` of block `at`.
    fn scale(&self, planes: PlaneBytes<'_>, row: usize, at: usize, sub: usize) -> Scale {
        let PlaneBytes { d, sc, .. } = planes;
        let half =
            |slot: usize| half::f16::from_bits(u16::from_le_bytes([d[slot], d[slot + 1]])).to_f32();
        let pair = |bias| Scale::Wide {
            d: half(self.half_slot(row, at)).into(),
            bias,
            add: 0.0,
        };
        let slot = || self.d_word(row, at, 1);
        let byte_scale = || sc[self.sc_byte(row, at, sub)];
        match self.dtype {
            DType::Q4 => pair(8),
            DType::Q5 => pair(16),
            DType::Q8 => Scale::Signed(half(self.half_slot(row, at)).into()),
            DType::Mx4 => {
                let byte = d[self.byte_slot(row, at)];
                let exponent = if byte == u8::MAX { 0 } else { byte };
                Scale::E2m1(f32::from_bits(u32::from(exponent) << 23))
            }
            DType::Q51 => Scale::Wide {
                d: half(slot()).into(),
                bias: 0,
                add: -f64::from(half(slot() + 2)),
            },
            DType::Q4S | DType::Q5S => {
                let stream = self.k_scales(sc, row, at);
                let field = |f: usize| ((stream >> (6 * f)) & 63) as f32;
                Scale::Narrow {
                    d: half(slot()) * field(2 * sub),
                    bias: 0,
                    min: half(slot() + 2) * field(2 * sub + 1),
                }
            }
            DType::Q3S => Scale::Narrow {
                d: half(slot()) * f32::from(i16::from(byte_scale()) - 32),
                bias: 4,
                min: 0.0,
            },
            DType::Q6S => Scale::Narrow {
                d: half(slot()) * f32::from((byte_scale() ^ 0x80) as i8),
                bias: 32,
                min: 0.0,
            },
            DType::F32 | DType::F16 | DType::Bf16 => Scale::Signed(1.0),
        }
    }

    /// The 96-bit stream of six-bit scales and minimums of a Q4_K or Q5_K block.
    fn k_scales(&self, sc: &[u8], row: usize, at: usize) -> u128 {
        (0..3).fold(0, |stream, w| {
            let slot = self.sc_word(row, at * 3 + w);
            let word = u32::from_le_bytes([sc[slot], sc[slot + 1], sc[slot + 2], sc[slot + 3]]);
            stream | (u128::from(word) << (32 * w))
        })
    }
}

/// Values of a float type's bytes.
pub fn floats(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let halves = bytes.as_chunks::<2>().0;
    match dtype {
        DType::F16 => {
            for (value, bytes) in out.iter_mut().zip(halves) {
                *value = half::f16::from_le_bytes(*bytes).to_f32();
            }
        }
        DType::Bf16 => {
            for (value, bytes) in out.iter_mut().zip(halves) {
                *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        _ => {
            for (value, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *value = f32::from_le_bytes(*bytes);
            }
        }
    }
}

/// How a sub-block's elements become values.
enum Scale {
    /// `f32(f64(q - bias) * d + add)`.
    Wide { d: f64, bias: i32, add: f64 },
    /// `f32(f64(q) * d)` of signed bytes.
    Signed(f64),
    /// `d * (q - bias) - min`, each step in f32.
    Narrow { d: f32, bias: i32, min: f32 },
    /// MXFP4's table.
    E2m1(f32),
}

impl Scale {
    fn value(&self, element: u8) -> f32 {
        match self {
            Self::Wide { d, bias, add } => {
                let scaled = f64::from(i32::from(element) - bias) * d;
                // Adding a zero would turn -0 into +0.
                let sum = if *bias == 0 { scaled + add } else { scaled };
                sum as f32
            }
            Self::Signed(d) => (f64::from(element as i8) * d) as f32,
            Self::Narrow { d, bias, min } => {
                let scaled = d * (i32::from(element) - bias) as f32;
                if *bias == 0 { scaled - min } else { scaled }
            }
            Self::E2m1(d) => f32::from(E2M1[usize::from(element & 15)]) * d,
        }
    }
}

/// The elements of one sub-block, as stored (before bias and sign).
fn sub_block(dtype: DType, sub_words: &[u32], out: &mut [u8; 32]) {
    let Some(format) = dtype.packed() else { return };
    let (sub, primary) = (
        format.sub as usize,
        (format.sub * format.bits / 32) as usize,
    );
    let byte = |j: usize| (sub_words[j / 4] >> (8 * (j % 4))) as u8;
    if format.bits == 8 {
        (0..sub).for_each(|j| out[j] = byte(j));
        return;
    }
    for j in 0..sub / 2 {
        let pair = byte(j);
        out[j] = pair & 15;
        out[j + sub / 2] = pair >> 4;
    }
    if format.high > 0 {
        let (high, mask) = (sub_words[primary], (1u32 << format.high) - 1);
        for (l, element) in out[..sub].iter_mut().enumerate() {
            let shift = 8 * (l % 4) + format.high as usize * (l / 4);
            *element |= (((high >> shift) & mask) as u8) << 4;
        }
    }
}

/// The words of block `at` of `row`.
fn load(sheet: &Sheet, block_words: usize, qs: &[u8], row: usize, at: usize, words: &mut Words) {
    for (w, word) in words[..block_words].iter_mut().enumerate() {
        let from = 4 * ((at * block_words + w) * sheet.rows + row);
        *word = u32::from_le_bytes([qs[from], qs[from + 1], qs[from + 2], qs[from + 3]]);
    }
}

/// Payload words of the largest block (Q6_K: 16 sub-blocks of 3 words).
const MAX_WORDS: usize = 48;
type Words = [u32; MAX_WORDS];
/// Doubled values of the e2m1 codes; code 8, the negative zero, reads as zero.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
