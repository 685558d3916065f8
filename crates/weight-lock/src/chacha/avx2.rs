use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_blend_epi32, _mm256_mul_epu32, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setr_epi32,
    _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_srli_epi64,
    _mm256_store_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::{Batch, NarrowBatch};

/// Fills `out` with batch number `batch` of the key stream: twice 8 blocks, one per lane. With
/// `SCALED` every word `w` becomes `(w * span) >> 32` before the lanes are turned into natural
/// order.
#[target_feature(enable = "avx2")]
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    for half in 0..2 {
        let mut x = blocks(state, batch, half);
        if SCALED {
            let span = _mm256_set1_epi32(span as i32);
            for word in &mut x {
                *word = scale(*word, span);
            }
        }
        let [
            x0,
            x1,
            x2,
            x3,
            x4,
            x5,
            x6,
            x7,
            y0,
            y1,
            y2,
            y3,
            y4,
            y5,
            y6,
            y7,
        ] = x;
        let parts = [
            [x0, x1, x2, x3, x4, x5, x6, x7],
            [y0, y1, y2, y3, y4, y5, y6, y7],
        ];
        for (part, words) in parts.into_iter().enumerate() {
            for (block, words) in transpose(words) {
                let at = half as usize * 128 + block * 16 + part * 8;
                let place = &mut out.0[at..at + 8];
                // SAFETY: `place` is 8 words, 32 bytes; the batch is aligned to 64 bytes and `at`
                // is a multiple of 8 words.
                unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), words) };
            }
        }
    }
}

/// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span of at most
/// 2^16: pairs of offsets share a lane, which halves the work of turning the lanes.
#[target_feature(enable = "avx2")]
pub(crate) fn fill_narrow(state: &[u32; 16], batch: u32, span: u32, out: &mut NarrowBatch) {
    for half in 0..2 {
        let x = blocks(state, batch, half);
        let span = _mm256_set1_epi32(span as i32);
        let mut pairs = [span; 8];
        for (at, pair) in pairs.iter_mut().enumerate() {
            let (low, high) = (scale(x[2 * at], span), scale(x[2 * at + 1], span));
            *pair = _mm256_or_si256(low, _mm256_slli_epi32::<16>(high));
        }
        for (block, offsets) in transpose(pairs) {
            let at = half as usize * 128 + block * 16;
            let place = &mut out.0[at..at + 16];
            // SAFETY: `place` is 16 offsets, 32 bytes; the batch is aligned to 64 bytes and `at`
            // is a multiple of 16 offsets.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), offsets) };
        }
    }
}

/// 8 blocks of the key stream, the first or second half of a batch: word by word, one block per
/// lane.
#[inline]
#[target_feature(enable = "avx2")]
fn blocks(state: &[u32; 16], batch: u32, half: u32) -> [__m256i; 16] {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let first = batch.wrapping_mul(16).wrapping_add(half * 8);
    let counter = _mm256_add_epi32(_mm256_set1_epi32(first as i32), lanes);
    let mut start = [counter; 16];
    for (position, word) in start.iter_mut().enumerate() {
        if position != 12 {
            *word = _mm256_set1_epi32(state[position] as i32);
        }
    }
    let mut x = start;
    for _ in 0..10 {
        x = double_round(x);
    }
    for (word, start) in x.iter_mut().zip(start) {
        *word = _mm256_add_epi32(*word, start);
    }
    x
}

/// Columns, then diagonals. The sixteen words are locals, and every step names them, so that most
/// stay in registers; four quarter rounds go side by side, so that their chains overlap.
#[inline]
#[target_feature(enable = "avx2")]
#[rustfmt::skip]
fn double_round(x: [__m256i; 16]) -> [__m256i; 16] {
    let [mut a0, mut a1, mut a2, mut a3, mut b0, mut b1, mut b2, mut b3,
        mut c0, mut c1, mut c2, mut c3, mut d0, mut d1, mut d2, mut d3] = x;
    macro_rules! step {
        ($turn:expr; $($to:ident $from:ident $mix:ident),*) => {
            $($to = _mm256_add_epi32($to, $from);)*
            $($mix = _mm256_xor_si256($mix, $to);)*
            $($mix = $turn($mix);)*
        };
    }
    step!(turn16; a0 b0 d0, a1 b1 d1, a2 b2 d2, a3 b3 d3);
    step!(turn::<12, 20>; c0 d0 b0, c1 d1 b1, c2 d2 b2, c3 d3 b3);
    step!(turn8; a0 b0 d0, a1 b1 d1, a2 b2 d2, a3 b3 d3);
    step!(turn::<7, 25>; c0 d0 b0, c1 d1 b1, c2 d2 b2, c3 d3 b3);
    step!(turn16; a0 b1 d3, a1 b2 d0, a2 b3 d1, a3 b0 d2);
    step!(turn::<12, 20>; c2 d3 b1, c3 d0 b2, c0 d1 b3, c1 d2 b0);
    step!(turn8; a0 b1 d3, a1 b2 d0, a2 b3 d1, a3 b0 d2);
    step!(turn::<7, 25>; c2 d3 b1, c3 d0 b2, c0 d1 b3, c1 d2 b0);
    [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]
}

/// Rotates each lane left by 16.
#[inline]
#[target_feature(enable = "avx2")]
fn turn16(word: __m256i) -> __m256i {
    let order = _mm256_setr_epi8(
        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9,
        14, 15, 12, 13,
    );
    _mm256_shuffle_epi8(word, order)
}

/// Rotates each lane left by 8.
#[inline]
#[target_feature(enable = "avx2")]
fn turn8(word: __m256i) -> __m256i {
    let order = _mm256_setr_epi8(
        3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10,
        15, 12, 13, 14,
    );
    _mm256_shuffle_epi8(word, order)
}

/// Rotates each lane left by `LEFT`; `RIGHT` is 32 less it.
#[inline]
#[target_feature(enable = "avx2")]
fn turn<const LEFT: i32, const RIGHT: i32>(word: __m256i) -> __m256i {
    _mm256_or_si256(
        _mm256_slli_epi32::<LEFT>(word),
        _mm256_srli_epi32::<RIGHT>(word),
    )
}

/// `(w * span) >> 32` in each lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn scale(word: __m256i, span: __m256i) -> __m256i {
    let even = _mm256_mul_epu32(word, span);
    let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(word), span);
    _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd)
}

/// Turns 8 vectors of one word of 8 blocks into 8 blocks of 8 words, with the blocks' numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: [__m256i; 8]) -> [(usize, __m256i); 8] {
    let mut rows = [x[0]; 8];
    for quad in 0..2 {
        let [a, b, c, d] = [
            x[quad * 4],
            x[quad * 4 + 1],
            x[quad * 4 + 2],
            x[quad * 4 + 3],
        ];
        let low = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let high = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        // rows[quad * 4 + r], 128-bit lane l: words quad*4 .. quad*4+4 of block 4l + r.
        rows[quad * 4] = _mm256_unpacklo_epi64(low.0, low.1);
        rows[quad * 4 + 1] = _mm256_unpackhi_epi64(low.0, low.1);
        rows[quad * 4 + 2] = _mm256_unpacklo_epi64(high.0, high.1);
        rows[quad * 4 + 3] = _mm256_unpackhi_epi64(high.0, high.1);
    }
    let mut blocks = [(0, x[0]); 8];
    for r in 0..4 {
        blocks[r] = (r, _mm256_permute2x128_si256::<0x20>(rows[r], rows[4 + r]));
        blocks[4 + r] = (
            4 + r,
            _mm256_permute2x128_si256::<0x31>(rows[r], rows[4 + r]),
        );
    }
    blocks
}
