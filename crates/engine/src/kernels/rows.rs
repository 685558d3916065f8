//! Dot products of float rows (f32, f16, bfloat16) with tokens' vectors.
//!
//! Each product is one sum of sixteen lanes over the row's chunks, then a fold of the lanes. How
//! many rows and tokens are worked on at once changes nothing in that order, so a token's result
//! does not depend on the batch it is computed in.

use super::simd::{LANES, Simd};

/// How a float row is stored.
pub(crate) trait RowFormat {
    /// Bytes of a value.
    const BYTES: usize;
    /// Loads sixteen values from the start of `bytes`.
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F;
}

pub(crate) struct F32;
pub(crate) struct F16;
pub(crate) struct Bf16;

impl RowFormat for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f32(chunk(bytes))
    }
}

impl RowFormat for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_f16(chunk(bytes))
    }
}

impl RowFormat for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(s: S, bytes: &[u8]) -> S::F {
        s.load_bf16(chunk(bytes))
    }
}

#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("the caller keeps a whole chunk")
}

/// Rows `first..` of a `[k, ..]` matrix: `out[i * tokens + t]` is row `first + i` times token `t`
/// of `x` (`[k, tokens]`, token after token).
#[inline(always)]
pub(crate) fn product<S: Simd, R: RowFormat>(
    s: S,
    bytes: &[u8],
    k: usize,
    first: usize,
    x: &[f32],
    tokens: usize,
    out: &mut [f32],
) {
    let row_bytes = k * R::BYTES;
    let rows = out.len() / tokens;
    let mut i = 0;
    while i + TILE_ROWS <= rows {
        let weights = &bytes[(first + i) * row_bytes..][..TILE_ROWS * row_bytes];
        let out = &mut out[i * tokens..][..TILE_ROWS * tokens];
        tile_row::<S, R, TILE_ROWS>(s, weights, k, x, tokens, out);
        i += TILE_ROWS;
    }
    while i < rows {
        let weights = &bytes[(first + i) * row_bytes..][..row_bytes];
        let out = &mut out[i * tokens..][..tokens];
        tile_row::<S, R, 1>(s, weights, k, x, tokens, out);
        i += 1;
    }
}

#[inline(always)]
fn tile_row<S: Simd, R: RowFormat, const ROWS: usize>(
    s: S,
    weights: &[u8],
    k: usize,
    x: &[f32],
    tokens: usize,
    out: &mut [f32],
) {
    let mut t = 0;
    while t + TILE_TOKENS <= tokens {
        tile::<S, R, ROWS, TILE_TOKENS>(s, weights, k, &x[t * k..], tokens, &mut out[t..]);
        t += TILE_TOKENS;
    }
    while t < tokens {
        tile::<S, R, ROWS, 1>(s, weights, k, &x[t * k..], tokens, &mut out[t..]);
        t += 1;
    }
}

/// `ROWS` rows by `TOKENS` tokens; `out[r * stride + t]`.
#[inline(always)]
fn tile<S: Simd, R: RowFormat, const ROWS: usize, const TOKENS: usize>(
    s: S,
    weights: &[u8],
    k: usize,
    x: &[f32],
    stride: usize,
    out: &mut [f32],
) {
    let row_bytes = k * R::BYTES;
    let weights: [&[u8]; ROWS] = std::array::from_fn(|r| &weights[r * row_bytes..][..row_bytes]);
    let x: [&[f32]; TOKENS] = std::array::from_fn(|t| &x[t * k..][..k]);
    let mut sums = [[s.zero(); TOKENS]; ROWS];
    let whole = k - k % LANES;
    let mut at = 0;
    while at < whole {
        let mut inputs = [s.zero(); TOKENS];
        for t in 0..TOKENS {
            inputs[t] = s.load(x[t][at..].first_chunk().expect("a whole chunk"));
        }
        for r in 0..ROWS {
            let w = R::load(s, &weights[r][at * R::BYTES..]);
            for t in 0..TOKENS {
                sums[r][t] = s.fma(w, inputs[t], sums[r][t]);
            }
        }
        at += LANES;
    }
    if at < k {
        for r in 0..ROWS {
            let mut padded = [0u8; 4 * LANES];
            let rest = &weights[r][at * R::BYTES..];
            padded[..rest.len()].copy_from_slice(rest);
            let w = R::load(s, &padded);
            for t in 0..TOKENS {
                let mut input = [0.0; LANES];
                input[..k - at].copy_from_slice(&x[t][at..]);
                sums[r][t] = s.fma(w, s.load(&input), sums[r][t]);
            }
        }
    }
    for r in 0..ROWS {
        for t in 0..TOKENS {
            out[r * stride + t] = s.sum(sums[r][t]);
        }
    }
}

/// Values of one row.
#[inline(always)]
pub(crate) fn expand<S: Simd, R: RowFormat>(s: S, row: &[u8], out: &mut [f32]) {
    let mut padded = [0u8; 4 * LANES];
    for (bytes, out) in row.chunks(LANES * R::BYTES).zip(out.chunks_mut(LANES)) {
        padded[..bytes.len()].copy_from_slice(bytes);
        out.copy_from_slice(&s.to_array(R::load(s, &padded))[..out.len()]);
    }
}

const TILE_ROWS: usize = 4;
const TILE_TOKENS: usize = 4;
