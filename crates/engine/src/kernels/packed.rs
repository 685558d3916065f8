//! Products with packed matrices, read from their planes in place (spec: container, B.6).
//!
//! Words of consecutive rows lie side by side, so a vector holds one word of sixteen rows: lane
//! `i` works on row `first + i`. Codes of a sub-block are unpacked once for all tokens of a batch.

use jlm::DType;

use super::simd::{LANES, Simd, f16_to_f32};

/// The planes of one sheet; lengths were checked against `k` and `rows`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Packed<'a> {
    pub dtype: DType,
    pub k: usize,
    pub rows: usize,
    pub qs: &'a [u8],
    pub d: &'a [u8],
    pub sc: &'a [u8],
}

/// Rows `first..`, as [`super::rows::product`].
#[inline(always)]
pub(crate) fn product<S: Simd>(
    s: S,
    w: Packed<'_>,
    first: usize,
    x: &[f32],
    tokens: usize,
    out: &mut [f32],
) {
    match w.dtype {
        DType::Q8 => sheet::<S, Q8>(s, w, first, x, tokens, out),
        DType::Q4 => sheet::<S, Q4>(s, w, first, x, tokens, out),
        DType::Q5 => sheet::<S, Q5>(s, w, first, x, tokens, out),
        DType::Q51 => sheet::<S, Q51>(s, w, first, x, tokens, out),
        DType::Mx4 => sheet::<S, Mx4>(s, w, first, x, tokens, out),
        DType::Q3S => sheet::<S, Q3K>(s, w, first, x, tokens, out),
        DType::Q4S => sheet::<S, Q4K>(s, w, first, x, tokens, out),
        DType::Q5S => sheet::<S, Q5K>(s, w, first, x, tokens, out),
        DType::Q6S => sheet::<S, Q6K>(s, w, first, x, tokens, out),
        DType::F32 | DType::F16 | DType::Bf16 => unreachable!("float types have no planes"),
    }
}

/// Values of row `row`.
#[inline(always)]
pub(crate) fn expand<S: Simd>(s: S, w: Packed<'_>, row: usize, out: &mut [f32]) {
    match w.dtype {
        DType::Q8 => row_values::<S, Q8>(s, w, row, out),
        DType::Q4 => row_values::<S, Q4>(s, w, row, out),
        DType::Q5 => row_values::<S, Q5>(s, w, row, out),
        DType::Q51 => row_values::<S, Q51>(s, w, row, out),
        DType::Mx4 => row_values::<S, Mx4>(s, w, row, out),
        DType::Q3S => row_values::<S, Q3K>(s, w, row, out),
        DType::Q4S => row_values::<S, Q4K>(s, w, row, out),
        DType::Q5S => row_values::<S, Q5K>(s, w, row, out),
        DType::Q6S => row_values::<S, Q6K>(s, w, row, out),
        DType::F32 | DType::F16 | DType::Bf16 => unreachable!("float types have no planes"),
    }
}

/// One packed type: `value = scale * code + offset`, with `code` an integer less its bias.
trait Format {
    /// Elements of a sub-block.
    const SUB: usize;
    /// Primary bits of an element: 4 or 8.
    const BITS: usize = 4;
    /// Secondary bits of an element: 0, 1 or 2.
    const HIGH: usize = 0;
    /// What is subtracted from a code.
    const BIAS: f32 = 0.0;
    /// Whether `offset` is ever other than zero.
    const OFFSETS: bool = false;

    /// Scale and offset of sub-block `sub` in lanes' rows.
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]);

    /// The number of a 4-bit code, for types whose codes are no integers.
    const TABLE: Option<[f32; 16]> = None;
}

/// The rows of a vector's lanes: `first..first + count`.
#[derive(Debug, Clone, Copy)]
struct Rows {
    first: usize,
    count: usize,
}

impl Rows {
    #[inline(always)]
    fn map(self, f: impl Fn(usize) -> f32) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        for (i, out) in out.iter_mut().take(self.count).enumerate() {
            *out = f(self.first + i);
        }
        out
    }
}

#[inline(always)]
fn sheet<S: Simd, P: Format>(
    s: S,
    w: Packed<'_>,
    first: usize,
    x: &[f32],
    tokens: usize,
    out: &mut [f32],
) {
    let rows = out.len() / tokens;
    let mut i = 0;
    while i < rows {
        let lanes = Rows {
            first: first + i,
            count: LANES.min(rows - i),
        };
        let mut t = 0;
        while t < tokens {
            let batch = BATCH.min(tokens - t);
            let out = &mut out[i * tokens + t..];
            if batch == 1 {
                group::<S, P, 1>(s, w, lanes, &x[t * w.k..], 1, tokens, out);
            } else {
                group::<S, P, BATCH>(s, w, lanes, &x[t * w.k..], batch, tokens, out);
            }
            t += batch;
        }
        i += LANES;
    }
}

/// Up to sixteen rows by up to `N` tokens; `out[row * stride + token]`.
#[inline(always)]
fn group<S: Simd, P: Format, const N: usize>(
    s: S,
    w: Packed<'_>,
    lanes: Rows,
    x: &[f32],
    batch: usize,
    stride: usize,
    out: &mut [f32],
) {
    let subs = w.k / P::SUB;
    let mut sums = [s.zero(); N];
    let mut codes = [s.zero(); MAX_SUB];
    for sub in 0..subs {
        unpack::<S, P>(s, &w, lanes, sub, &mut codes);
        let (scale, offset) = P::scales(&w, sub, lanes);
        let scale = s.load(&scale);
        for t in 0..batch {
            let x = &x[t * w.k + sub * P::SUB..][..P::SUB];
            // Four sums hide the latency of the additions.
            let mut parts = [s.zero(); 4];
            for (x, codes) in x.chunks_exact(4).zip(codes.chunks_exact(4)) {
                for p in 0..4 {
                    parts[p] = s.fma(codes[p], s.splat(x[p]), parts[p]);
                }
            }
            let part = s.add(s.add(parts[0], parts[1]), s.add(parts[2], parts[3]));
            sums[t] = s.fma(part, scale, sums[t]);
            if P::OFFSETS {
                let total: f32 = x.iter().sum();
                sums[t] = s.fma(s.load(&offset), s.splat(total), sums[t]);
            }
        }
    }
    for t in 0..batch {
        let values = s.to_array(sums[t]);
        for (r, value) in values.iter().take(lanes.count).enumerate() {
            out[r * stride + t] = *value;
        }
    }
}

/// Codes of one sub-block, element by element, less the bias.
#[inline(always)]
fn unpack<S: Simd, P: Format>(
    s: S,
    w: &Packed<'_>,
    lanes: Rows,
    sub: usize,
    codes: &mut [S::F; MAX_SUB],
) {
    let primary = P::SUB * P::BITS / 32;
    let secondary = P::SUB * P::HIGH / 32;
    let base = sub * (primary + secondary);
    if P::BITS == 8 {
        for word in 0..primary {
            let words = load(s, w, lanes, base + word);
            codes[4 * word] = s.signed_byte::<0>(words);
            codes[4 * word + 1] = s.signed_byte::<1>(words);
            codes[4 * word + 2] = s.signed_byte::<2>(words);
            codes[4 * word + 3] = s.signed_byte::<3>(words);
        }
        return;
    }
    let high_words = if P::HIGH > 0 {
        load(s, w, lanes, base + primary)
    } else {
        load(s, w, lanes, base)
    };
    let bias = s.splat(-P::BIAS);
    for word in 0..primary {
        let words = load(s, w, lanes, base + word);
        for byte in 0..4 {
            for half in 0..2 {
                let element = 4 * word + byte + half * P::SUB / 2;
                let mut code = s.field(words, (8 * byte + 4 * half) as u32, 15);
                if P::HIGH > 0 {
                    // One secondary word holds the whole sub-block.
                    let shift = 8 * (element % 4) + P::HIGH * (element / 4);
                    let high = s.field(high_words, shift as u32, (1 << P::HIGH) - 1);
                    code = s.join_nibble(code, high);
                }
                let number = s.number(code);
                codes[element] = match P::TABLE {
                    Some(table) => {
                        let codes = s.to_array(number);
                        let mut values = [0.0; LANES];
                        for i in 0..LANES {
                            values[i] = table[codes[i] as usize & 15];
                        }
                        s.load(&values)
                    }
                    None if P::BIAS != 0.0 => s.add(number, bias),
                    None => number,
                };
            }
        }
    }
}

/// Word `index` of the lanes' rows; lanes past the last row hold zero.
#[inline(always)]
fn load<S: Simd>(s: S, w: &Packed<'_>, lanes: Rows, index: usize) -> S::I {
    let bytes = &w.qs[(index * w.rows + lanes.first) * 4..];
    if lanes.count == LANES {
        s.load_words(
            bytes
                .first_chunk()
                .expect("sixteen rows have sixteen words"),
        )
    } else {
        let mut padded = [0; 4 * LANES];
        padded[..4 * lanes.count].copy_from_slice(&bytes[..4 * lanes.count]);
        s.load_words(&padded)
    }
}

#[inline(always)]
fn row_values<S: Simd, P: Format>(s: S, w: Packed<'_>, row: usize, out: &mut [f32]) {
    let lanes = Rows {
        first: row,
        count: 1,
    };
    let mut codes = [s.zero(); MAX_SUB];
    for (sub, out) in out.chunks_exact_mut(P::SUB).enumerate() {
        unpack::<S, P>(s, &w, lanes, sub, &mut codes);
        let (scale, offset) = P::scales(&w, sub, lanes);
        for (out, code) in out.iter_mut().zip(codes) {
            let value = scale[0] * s.to_array(code)[0];
            *out = if P::OFFSETS { value + offset[0] } else { value };
        }
    }
}

fn word(plane: &[u8], index: usize) -> u32 {
    let bytes = plane[4 * index..]
        .first_chunk()
        .expect("four bytes are a word");
    u32::from_le_bytes(*bytes)
}

fn half(plane: &[u8], index: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([plane[2 * index], plane[2 * index + 1]]))
}

/// Types whose `d` words hold the f16 scales of two rows.
#[inline(always)]
fn paired(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
    let base = sub * w.rows.next_multiple_of(2);
    (rows.map(|row| half(w.d, base + row)), [0.0; LANES])
}

struct Q8;
impl Format for Q8 {
    const SUB: usize = 32;
    const BITS: usize = 8;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        paired(w, sub, rows)
    }
}

struct Q4;
impl Format for Q4 {
    const SUB: usize = 32;
    const BIAS: f32 = 8.0;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        paired(w, sub, rows)
    }
}

struct Q5;
impl Format for Q5 {
    const SUB: usize = 32;
    const HIGH: usize = 1;
    const BIAS: f32 = 16.0;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        paired(w, sub, rows)
    }
}

struct Q51;
impl Format for Q51 {
    const SUB: usize = 32;
    const HIGH: usize = 1;
    const OFFSETS: bool = true;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        let word = |row| word(w.d, sub * w.rows + row);
        (
            rows.map(|row| f16_to_f32(word(row) as u16)),
            rows.map(|row| -f16_to_f32((word(row) >> 16) as u16)),
        )
    }
}

struct Mx4;
impl Format for Mx4 {
    const SUB: usize = 32;
    /// Doubled e2m1 values.
    const TABLE: Option<[f32; 16]> = Some([
        0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0,
    ]);
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        let base = sub * w.rows.next_multiple_of(4);
        let scale = |row: usize| match w.d[base + row] {
            // The stored form of a block of zeros (spec: container, F).
            255 => 0.0,
            byte => f32::from_bits(u32::from(byte) << 23),
        };
        (rows.map(scale), [0.0; LANES])
    }
}

/// Byte `sub` of a super-block's sub-scales, four to a word.
#[inline(always)]
fn byte_scale(w: &Packed<'_>, sub: usize, row: usize, offset: f32) -> f32 {
    let scales = word(w.sc, (sub / 4) * w.rows + row) >> (8 * (sub % 4));
    let d = f16_to_f32(word(w.d, (sub / 16) * w.rows + row) as u16);
    d * (f32::from(scales as u8) + offset)
}

struct Q3K;
impl Format for Q3K {
    const SUB: usize = 16;
    const BIAS: f32 = 4.0;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        (rows.map(|row| byte_scale(w, sub, row, -32.0)), [0.0; LANES])
    }
}

struct Q6K;
impl Format for Q6K {
    const SUB: usize = 16;
    const HIGH: usize = 2;
    const BIAS: f32 = 32.0;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        (
            rows.map(|row| byte_scale(w, sub, row, -128.0)),
            [0.0; LANES],
        )
    }
}

/// Field `field` of the 96-bit stream of sixteen 6-bit fields of a super-block.
#[inline(always)]
fn field(w: &Packed<'_>, super_block: usize, row: usize, field: usize) -> f32 {
    let (at, bit) = (6 * field / 32, 6 * field % 32);
    let part = |at: usize| u64::from(word(w.sc, (super_block * 3 + at) * w.rows + row));
    let mut bits = part(at) >> bit;
    if bit > 26 {
        bits |= part(at + 1) << (32 - bit);
    }
    (bits as u32 & 63) as f32
}

#[inline(always)]
fn k_scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
    let (block, index) = (sub / 8, sub % 8);
    let word = |row| word(w.d, block * w.rows + row);
    (
        rows.map(|row| f16_to_f32(word(row) as u16) * field(w, block, row, 2 * index)),
        rows.map(|row| {
            -(f16_to_f32((word(row) >> 16) as u16) * field(w, block, row, 2 * index + 1))
        }),
    )
}

struct Q4K;
impl Format for Q4K {
    const SUB: usize = 32;
    const OFFSETS: bool = true;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        k_scales(w, sub, rows)
    }
}

struct Q5K;
impl Format for Q5K {
    const SUB: usize = 32;
    const HIGH: usize = 1;
    const OFFSETS: bool = true;
    #[inline(always)]
    fn scales(w: &Packed<'_>, sub: usize, rows: Rows) -> ([f32; LANES], [f32; LANES]) {
        k_scales(w, sub, rows)
    }
}

const MAX_SUB: usize = 32;
/// Tokens that share one unpacking.
const BATCH: usize = 8;
