//! One source block as the words of the packed layout, and back (spec: container, B.6).
//!
//! A block's words are those of its sub-blocks in order, each sub-block's primary words first.
//! Words are little-endian: byte `j` of a sub-block is byte `j % 4` of word `j / 4`. The same code
//! serves one row and several ([`Word`]).

use crate::dtype::DType;
use crate::lanes::{Columns, ColumnsMut, Sink, Source, Word};

/// Columns of the largest block (Q6_K: payload, 4 words of scales and `d`).
pub(crate) const MAX_COLUMNS: usize = 53;

/// The columns that a type's block has besides its payload's words, in this order: of the `sc`
/// plane, then of the `d` plane. A `d` column has a row's half where rows share a word. MXFP4's
/// scales are no column, as they can be refused.
pub(crate) const fn scale_columns(dtype: DType) -> (usize, usize) {
    match dtype {
        DType::Q4 | DType::Q8 | DType::Q5 | DType::Q51 => (0, 1),
        DType::Q4S | DType::Q5S => (3, 1),
        DType::Q3S | DType::Q6S => (4, 1),
        DType::Mx4 | DType::F32 | DType::F16 | DType::Bf16 => (0, 0),
    }
}

/// A block to the words of its columns.
#[inline(always)]
pub(crate) fn to_words<S: Source>(dtype: DType, block: &S, out: &mut impl ColumnsMut<S::Word>) {
    match dtype {
        DType::Q4 => {
            put_quad(block.quad(2), 0, out);
            out.put(4, block.quad(0)[0] & HALF);
        }
        DType::Q8 => {
            out.put(8, block.quad(0)[0] & HALF);
            put_quad(block.quad(2), 0, out);
            put_quad(block.quad(18), 4, out);
        }
        DType::Mx4 => put_quad(block.quad(1), 0, out),
        DType::Q5 => {
            put_quad(block.quad(6), 0, out);
            out.put(4, scatter_bits(block.quad(2)[0]));
            out.put(5, block.quad(0)[0] & HALF);
        }
        DType::Q51 => {
            let [d, high, ..] = block.quad(0);
            put_quad(block.quad(8), 0, out);
            out.put(4, scatter_bits(high));
            out.put(5, d ^ MIN_SIGN);
        }
        DType::Q4S => {
            nibbles_to_words::<S, 4>(block, 16, out);
            k_heads_to_words(block.quad(0), 32, out);
        }
        DType::Q5S => {
            nibbles_to_words::<S, 5>(block, 48, out);
            let high = [block.quad(16), block.quad(32)];
            for sub in 0..8 {
                let mut bits = (high[0][0] >> sub) & ONES;
                for i in 1..8 {
                    bits = bits | (((high[i / 4][i % 4] >> sub) & ONES) << i as u32);
                }
                out.put(sub as usize * 5 + 4, bits);
            }
            k_heads_to_words(block.quad(0), 40, out);
        }
        DType::Q6S => {
            q6_to_words(block, out);
            put_quad(flip(block.quad(192)), 48, out);
            out.put(52, block.quad(194)[3] >> 16);
        }
        DType::Q3S => {
            q3_to_words(block, out);
            q3_tail_to_words(block.quad(94), out);
        }
        DType::F32 | DType::F16 | DType::Bf16 => {}
    }
}

/// The words of a block's columns to a block; bytes that no column has are left alone.
#[inline(always)]
pub(crate) fn from_words<S: Sink>(dtype: DType, words: &impl Columns<S::Word>, block: &mut S) {
    match dtype {
        DType::Q4 => {
            block.set_half(0, words.get(4));
            block.set_quad(2, get_quad(words, 0));
        }
        DType::Q8 => {
            block.set_half(0, words.get(8));
            block.set_quad(2, get_quad(words, 0));
            block.set_quad(18, get_quad(words, 4));
        }
        DType::Mx4 => block.set_quad(1, get_quad(words, 0)),
        DType::Q5 => {
            block.set_quad(6, get_quad(words, 0));
            block.set_half(0, words.get(5));
            block.set_word(2, gather_bits(words.get(4)));
        }
        DType::Q51 => {
            block.set_word(0, words.get(5) ^ MIN_SIGN);
            block.set_word(4, gather_bits(words.get(4)));
            block.set_quad(8, get_quad(words, 0));
        }
        DType::Q4S => {
            words_to_nibbles::<S, 4>(words, 16, block);
            block.set_quad(0, words_to_k_heads(get_quad(words, 32)));
        }
        DType::Q5S => {
            words_to_nibbles::<S, 5>(words, 48, block);
            for at in [0, 4] {
                block.set_quad(
                    16 + 4 * at as usize,
                    [
                        q5_high(words, at),
                        q5_high(words, at + 1),
                        q5_high(words, at + 2),
                        q5_high(words, at + 3),
                    ],
                );
            }
            block.set_quad(0, words_to_k_heads(get_quad(words, 40)));
        }
        DType::Q6S => {
            words_to_q6(words, block);
            block.set_quad(192, flip(get_quad(words, 48)));
            block.set_half(208, words.get(52));
        }
        DType::Q3S => {
            words_to_q3(words, block);
            words_to_q3_tail(words, block);
        }
        DType::F32 | DType::F16 | DType::Bf16 => {}
    }
}

/// The stored byte of an MXFP4 exponent: one less, so that the byte is an f32's exponent field.
pub(crate) fn e8m0(block: &[u8]) -> Result<u8, &'static str> {
    let zero = block[1..17].iter().all(|pair| pair & 0x77 == 0);
    match block[0] {
        exponent @ 2..=254 => Ok(exponent - 1),
        255 if zero => Ok(254),
        // Exponent 0 less one would be 255, which reads as infinity: a block of zeros is stored
        // with scale 0 (section F).
        _ if zero => Ok(0),
        _ => Err("its scale is one that an f32 cannot hold as a normal number"),
    }
}

#[inline(always)]
fn put_quad<W: Word>(words: [W; 4], from: usize, out: &mut impl ColumnsMut<W>) {
    for (i, word) in words.into_iter().enumerate() {
        out.put(from + i, word);
    }
}

/// Q6_K's signed scales to bytes with an offset of 128, and back.
#[inline(always)]
fn flip<W: Word>(scales: [W; 4]) -> [W; 4] {
    let [a, b, c, d] = scales;
    [a ^ SIGNS, b ^ SIGNS, c ^ SIGNS, d ^ SIGNS]
}

#[inline(always)]
fn get_quad<W: Word>(words: &impl Columns<W>, from: usize) -> [W; 4] {
    [
        words.get(from),
        words.get(from + 1),
        words.get(from + 2),
        words.get(from + 3),
    ]
}

/// Bit `i` of every byte of the high words of Q5_K's eight sub-blocks, the first's lowest.
#[inline(always)]
fn q5_high<W: Word>(words: &impl Columns<W>, i: u32) -> W {
    let mut bits = (words.get(4) >> i) & ONES;
    for sub in 1..8 {
        bits = bits | (((words.get(sub * 5 + 4) >> i) & ONES) << sub as u32);
    }
    bits
}

/// Q4_K and Q5_K: 64 elements a group, the low nibbles then the high ones; `W` words a sub-block.
#[inline(always)]
fn nibbles_to_words<S: Source, const W: usize>(
    block: &S,
    from: usize,
    out: &mut impl ColumnsMut<S::Word>,
) {
    for group in 0..4 {
        let (a, b) = (
            block.quad(from + 32 * group),
            block.quad(from + 32 * group + 16),
        );
        for i in 0..4 {
            out.put(2 * group * W + i, (a[i] & LOW) | ((b[i] & LOW) << 4));
            out.put((2 * group + 1) * W + i, ((a[i] >> 4) & LOW) | (b[i] & HIGH));
        }
    }
}

#[inline(always)]
fn words_to_nibbles<S: Sink, const W: usize>(
    words: &impl Columns<S::Word>,
    from: usize,
    block: &mut S,
) {
    for group in 0..4 {
        let mut even = get_quad(words, 2 * group * W);
        let mut odd = get_quad(words, (2 * group + 1) * W);
        for i in 0..4 {
            let (a, b) = (even[i], odd[i]);
            even[i] = (a & LOW) | ((b & LOW) << 4);
            odd[i] = ((a >> 4) & LOW) | (b & HIGH);
        }
        block.set_quad(from + 32 * group, even);
        block.set_quad(from + 32 * group + 16, odd);
    }
}

/// Q4_K's and Q5_K's first 16 bytes: `d` and `dmin`, then twelve bytes of scales, which become the
/// stream scale0, min0, scale1, min1, ... of six bits each.
#[inline(always)]
fn k_heads_to_words<W: Word>(head: [W; 4], from: usize, out: &mut impl ColumnsMut<W>) {
    let [d, w0, w1, w2] = head;
    // Four bytes a word: scales 0..4 and 4..8, then minimums.
    let scales = [w0 & SIXES, (w2 & LOW) | ((w0 >> 2) & FOURTHS)];
    let mins = [w1 & SIXES, ((w2 >> 4) & LOW) | ((w1 >> 2) & FOURTHS)];
    let a = two_fields(scales[0], mins[0]);
    let b = two_fields(scales[0] >> 16, mins[0] >> 16);
    let c = two_fields(scales[1], mins[1]);
    let e = two_fields(scales[1] >> 16, mins[1] >> 16);
    out.put(from, a | (b << 24));
    out.put(from + 1, (b >> 8) | (c << 16));
    out.put(from + 2, (c >> 16) | (e << 8));
    out.put(from + 3, d);
}

/// Two bytes of scales and two of minimums as 24 bits of the stream.
#[inline(always)]
fn two_fields<W: Word>(scales: W, mins: W) -> W {
    (scales & 63) | ((mins & 63) << 6) | ((scales & 0x3f00) << 4) | ((mins & 0x3f00) << 10)
}

/// The two bytes whose fields stand at bits 0 and 12.
#[inline(always)]
fn two_bytes<W: Word>(fields: W) -> W {
    (fields & 63) | ((fields >> 4) & 0x3f00)
}

#[inline(always)]
fn words_to_k_heads<W: Word>(words: [W; 4]) -> [W; 4] {
    let [s0, s1, s2, d] = words;
    let [a, b] = [s0, (s0 >> 24) | (s1 << 8)];
    let [c, e] = [(s1 >> 16) | (s2 << 16), s2 >> 8];
    let scales = [
        two_bytes(a) | (two_bytes(b) << 16),
        two_bytes(c) | (two_bytes(e) << 16),
    ];
    let mins = [
        two_bytes(a >> 6) | (two_bytes(b >> 6) << 16),
        two_bytes(c >> 6) | (two_bytes(e >> 6) << 16),
    ];
    [
        d,
        scales[0] | ((scales[1] & FOURTHS) << 2),
        mins[0] | ((mins[1] & FOURTHS) << 2),
        (scales[1] & LOW) | ((mins[1] & LOW) << 4),
    ]
}

/// Q6_K: halves of 128 elements; quarter `q` of a half has its low nibbles in `ql` and its two
/// high bits in `qh` at bit `2q`. Sub-blocks have 16 elements: words 0, 1 nibbles, 2 high bits.
#[inline(always)]
fn q6_to_words<S: Source>(block: &S, out: &mut impl ColumnsMut<S::Word>) {
    for (half, part) in HALF_PARTS {
        let at = 64 * half + 16 * part;
        let ql = [block.quad(at), block.quad(at + 32)];
        let qh = block.quad(128 + 32 * half + 16 * part);
        for quarter in 0..4 {
            let to = 3 * (8 * half + 2 * quarter + part);
            let (low, shift) = (ql[quarter % 2], 4 * (quarter / 2) as u32);
            for i in 0..2 {
                let (a, b) = (low[i] >> shift, low[i + 2] >> shift);
                out.put(to + i, (a & LOW) | ((b & LOW) << 4));
            }
            let mut high = (qh[0] >> (2 * quarter as u32)) & TWOS;
            for (i, word) in qh.into_iter().enumerate().skip(1) {
                high = high | (((word >> (2 * quarter as u32)) & TWOS) << (2 * i as u32));
            }
            out.put(to + 2, high);
        }
    }
}

#[inline(always)]
fn words_to_q6<S: Sink>(words: &impl Columns<S::Word>, block: &mut S) {
    for (half, part) in HALF_PARTS {
        let sub = 3 * (8 * half + part);
        for odd in 0..2 {
            // The quarters `odd` and `odd + 2`, whose sub-blocks are 12 words apart.
            let from = sub + 6 * odd;
            let (a, b) = (words.get(from), words.get(from + 12));
            let (c, d) = (words.get(from + 1), words.get(from + 13));
            let quad = [
                (a & LOW) | ((b & LOW) << 4),
                (c & LOW) | ((d & LOW) << 4),
                ((a >> 4) & LOW) | (b & HIGH),
                ((c >> 4) & LOW) | (d & HIGH),
            ];
            block.set_quad(64 * half + 32 * odd + 16 * part, quad);
        }
        let mut qh = [words.get(sub + 2); 4];
        for (i, word) in qh.iter_mut().enumerate() {
            let shift = 2 * i as u32;
            *word = (words.get(sub + 2) >> shift) & TWOS;
            for quarter in 1..4 {
                let high = (words.get(sub + 6 * quarter + 2) >> shift) & TWOS;
                *word = *word | (high << (2 * quarter as u32));
            }
        }
        block.set_quad(128 + 32 * half + 16 * part, qh);
    }
}

/// Q3_K: halves of 128 elements; quarter `q` of a half has its low two bits in `qs` at bit `2q`
/// and its third bit in `hmask` at bit `4 * half + q`. Sub-blocks have 16 elements.
#[inline(always)]
fn q3_to_words<S: Source>(block: &S, out: &mut impl ColumnsMut<S::Word>) {
    for (half, part) in HALF_PARTS {
        let hmask = block.quad(16 * part);
        let qs = block.quad(32 + 32 * half + 16 * part);
        for quarter in 0..4 {
            let to = 2 * (8 * half + 2 * quarter + part);
            let (low, high) = (2 * quarter as u32, (4 * half + quarter) as u32);
            for i in 0..2 {
                let a = ((qs[i] >> low) & TWOS) | (((hmask[i] >> high) & ONES) << 2);
                let b = ((qs[i + 2] >> low) & TWOS) | (((hmask[i + 2] >> high) & ONES) << 2);
                out.put(to + i, a | (b << 4));
            }
        }
    }
}

#[inline(always)]
fn words_to_q3<S: Sink>(words: &impl Columns<S::Word>, block: &mut S) {
    for part in 0..2 {
        let mut hmask = [words.get(0).none(); 4];
        for half in 0..2 {
            let mut qs = [words.get(0).none(); 4];
            for quarter in 0..4 {
                let from = 2 * (8 * half + 2 * quarter + part);
                for i in 0..4 {
                    let value = words.get(from + i % 2) >> (4 * (i / 2) as u32);
                    qs[i] = qs[i] | ((value & TWOS) << (2 * quarter as u32));
                    let high = (value >> 2) & ONES;
                    hmask[i] = hmask[i] | (high << (4 * half + quarter) as u32);
                }
            }
            block.set_quad(32 + 32 * half + 16 * part, qs);
        }
        block.set_quad(16 * part, hmask);
    }
}

/// Q3_K's last 16 bytes, which end in twelve of scales and `d`: sixteen six-bit scales, four bits
/// of each in the first eight bytes and two in the last four.
#[inline(always)]
fn q3_tail_to_words<W: Word>(tail: [W; 4], out: &mut impl ColumnsMut<W>) {
    let [a, b, c, d] = tail;
    let low = [(a >> 16) | (b << 16), (b >> 16) | (c << 16)];
    let high = (c >> 16) | (d << 16);
    for i in 0..4 {
        let four = (low[i % 2] >> (4 * (i / 2) as u32)) & LOW;
        out.put(32 + i, four | (((high >> (2 * i as u32)) & TWOS) << 4));
    }
    out.put(36, d >> 16);
}

#[inline(always)]
fn words_to_q3_tail<S: Sink>(words: &impl Columns<S::Word>, block: &mut S) {
    let [a, b, c, d] = get_quad(words, 32);
    block.set_word(96, (a & LOW) | ((c & LOW) << 4));
    block.set_word(100, (b & LOW) | ((d & LOW) << 4));
    let two = ((a >> 4) & TWOS) | (((b >> 4) & TWOS) << 2);
    let four = (((c >> 4) & TWOS) << 4) | (((d >> 4) & TWOS) << 6);
    block.set_word(104, two | four);
    block.set_half(108, words.get(36));
}

/// Bit `l` (element `l`) to byte `l % 4`, bit `l / 4`.
#[inline(always)]
fn scatter_bits<W: Word>(bits: W) -> W {
    let mut out = bits.none();
    for i in 0..8 {
        // Bits 0..3 to bits 0, 8, 16, 24.
        let four = ((bits >> (4 * i)) & 15).times(0x0020_4081) & ONES;
        out = out | (four << i);
    }
    out
}

#[inline(always)]
fn gather_bits<W: Word>(word: W) -> W {
    let mut out = word.none();
    for i in 0..8 {
        // Bits 0, 8, 16, 24 to bits 24..27.
        let four = (((word >> i) & ONES).times(0x0102_0408) >> 24) & 15;
        out = out | (four << (4 * i));
    }
    out
}

/// Halves of a block, and parts of their quarters.
const HALF_PARTS: [(usize, usize); 4] = [(0, 0), (0, 1), (1, 0), (1, 1)];
const HALF: u32 = 0xffff;
const ONES: u32 = 0x0101_0101;
const TWOS: u32 = 0x0303_0303;
const LOW: u32 = 0x0f0f_0f0f;
const HIGH: u32 = 0xf0f0_f0f0;
const SIXES: u32 = 0x3f3f_3f3f;
const FOURTHS: u32 = 0x3030_3030;
const SIGNS: u32 = 0x8080_8080;
/// The sign of the minimum in Q5_1's first word.
const MIN_SIGN: u32 = 0x8000_0000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattering_bits_is_undone_by_gathering() {
        for bits in [0u32, 1, 0x8000_0000, 0xdead_beef, u32::MAX] {
            assert_eq!(gather_bits(scatter_bits(bits)), bits);
        }
        assert_eq!(scatter_bits(1u32 << 5), 1 << 9, "element 5: byte 1, bit 1");
    }
}
