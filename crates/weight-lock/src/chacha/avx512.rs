use std::arch::x86_64::{
    __m512i, _MM_PERM_CDAB, _mm256_store_si256, _mm512_add_epi32, _mm512_castsi512_si256,
    _mm512_extracti64x4_epi64, _mm512_mask_blend_epi16, _mm512_mask_shuffle_epi32,
    _mm512_mul_epu32, _mm512_permutex2var_epi64, _mm512_rol_epi32, _mm512_set1_epi32,
    _mm512_setr_epi32, _mm512_setr_epi64, _mm512_shuffle_i32x4, _mm512_slli_epi32,
    _mm512_srli_epi64, _mm512_store_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use super::{Batch, NarrowBatch};

/// Fills `out` with batch number `batch` of the key stream: 16 blocks, one per lane. With `SCALED`
/// every word `w` becomes `(w * span) >> 32` before the lanes are turned into natural order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    let mut x = blocks(state, batch);
    if SCALED {
        let span = _mm512_set1_epi32(span as i32);
        for word in &mut x {
            *word = scale(*word, span);
        }
    }
    transpose(x, out);
}

/// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span of at most
/// 2^16: pairs of offsets share a lane, which halves the work of turning the lanes.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn fill_narrow(state: &[u32; 16], batch: u32, span: u32, out: &mut NarrowBatch) {
    let x = blocks(state, batch);
    let span = _mm512_set1_epi32(span as i32);
    let mut pairs = [span; 8];
    for (at, pair) in pairs.iter_mut().enumerate() {
        let (low, high) = (scale(x[2 * at], span), scale(x[2 * at + 1], span));
        *pair = _mm512_mask_blend_epi16(0xAAAA_AAAA, low, _mm512_slli_epi32::<16>(high));
    }
    transpose_pairs(pairs, out);
}

/// 16 blocks of the key stream: word by word, one block per lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn blocks(state: &[u32; 16], batch: u32) -> [__m512i; 16] {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let first = _mm512_set1_epi32(batch.wrapping_mul(16) as i32);
    let counter = _mm512_add_epi32(first, lanes);
    let mut start = [counter; 16];
    for (position, word) in start.iter_mut().enumerate() {
        if position != 12 {
            *word = _mm512_set1_epi32(state[position] as i32);
        }
    }
    let mut x = start;
    for _ in 0..10 {
        x = double_round(x);
    }
    for (word, start) in x.iter_mut().zip(start) {
        *word = _mm512_add_epi32(*word, start);
    }
    x
}

/// Columns, then diagonals. The sixteen words are locals, and every step names them, so that they
/// stay in registers; four quarter rounds go side by side, so that their chains overlap.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[rustfmt::skip]
fn double_round(x: [__m512i; 16]) -> [__m512i; 16] {
    let [mut a0, mut a1, mut a2, mut a3, mut b0, mut b1, mut b2, mut b3,
        mut c0, mut c1, mut c2, mut c3, mut d0, mut d1, mut d2, mut d3] = x;
    macro_rules! step {
        ($turn:literal: $($to:ident $from:ident $mix:ident),*) => {
            $($to = _mm512_add_epi32($to, $from);)*
            $($mix = _mm512_xor_si512($mix, $to);)*
            $($mix = _mm512_rol_epi32::<$turn>($mix);)*
        };
    }
    step!(16: a0 b0 d0, a1 b1 d1, a2 b2 d2, a3 b3 d3);
    step!(12: c0 d0 b0, c1 d1 b1, c2 d2 b2, c3 d3 b3);
    step!(8: a0 b0 d0, a1 b1 d1, a2 b2 d2, a3 b3 d3);
    step!(7: c0 d0 b0, c1 d1 b1, c2 d2 b2, c3 d3 b3);
    step!(16: a0 b1 d3, a1 b2 d0, a2 b3 d1, a3 b0 d2);
    step!(12: c2 d3 b1, c3 d0 b2, c0 d1 b3, c1 d2 b0);
    step!(8: a0 b1 d3, a1 b2 d0, a2 b3 d1, a3 b0 d2);
    step!(7: c2 d3 b1, c3 d0 b2, c0 d1 b3, c1 d2 b0);
    [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]
}

/// `(w * span) >> 32` in each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scale(word: __m512i, span: __m512i) -> __m512i {
    let even = _mm512_mul_epu32(word, span);
    let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(word), span);
    // Odd lanes keep the high halves of `odd`; even lanes take those of `even`, one lane down.
    _mm512_mask_shuffle_epi32::<_MM_PERM_CDAB>(odd, 0x5555, even)
}

/// Turns 16 vectors of one word of 16 blocks into 16 blocks of 16 words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn transpose(x: [__m512i; 16], out: &mut Batch) {
    let mut rows = [x[0]; 16];
    for quad in 0..4 {
        let [a, b, c, d] = [
            x[quad * 4],
            x[quad * 4 + 1],
            x[quad * 4 + 2],
            x[quad * 4 + 3],
        ];
        let low = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let high = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        // rows[quad * 4 + r], 128-bit lane l: words quad*4 .. quad*4+4 of block 4l + r.
        rows[quad * 4] = _mm512_unpacklo_epi64(low.0, low.1);
        rows[quad * 4 + 1] = _mm512_unpackhi_epi64(low.0, low.1);
        rows[quad * 4 + 2] = _mm512_unpacklo_epi64(high.0, high.1);
        rows[quad * 4 + 3] = _mm512_unpackhi_epi64(high.0, high.1);
    }
    for r in 0..4 {
        let [a, b, c, d] = [rows[r], rows[4 + r], rows[8 + r], rows[12 + r]];
        let low = (
            _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d),
        );
        let high = (
            _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d),
        );
        let blocks = [
            (r, _mm512_shuffle_i32x4::<0b10_00_10_00>(low.0, low.1)),
            (4 + r, _mm512_shuffle_i32x4::<0b10_00_10_00>(high.0, high.1)),
            (8 + r, _mm512_shuffle_i32x4::<0b11_01_11_01>(low.0, low.1)),
            (
                12 + r,
                _mm512_shuffle_i32x4::<0b11_01_11_01>(high.0, high.1),
            ),
        ];
        for (block, words) in blocks {
            let place = &mut out.0[block * 16..block * 16 + 16];
            // SAFETY: `place` is 16 words, 64 bytes; the batch is aligned to 64 bytes and
            // `block * 16` words is a multiple of 64 bytes.
            unsafe { _mm512_store_si512(place.as_mut_ptr().cast(), words) };
        }
    }
}

/// Turns 8 vectors of one pair of offsets of 16 blocks into 16 blocks of 16 offsets.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn transpose_pairs(x: [__m512i; 8], out: &mut NarrowBatch) {
    let lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    let upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    let mut rows = [x[0]; 8];
    for quad in 0..2 {
        let [a, b, c, d] = [
            x[quad * 4],
            x[quad * 4 + 1],
            x[quad * 4 + 2],
            x[quad * 4 + 3],
        ];
        let low = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let high = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        // rows[quad * 4 + r], 128-bit lane l: pairs quad*4 .. quad*4+4 of block 4l + r.
        rows[quad * 4] = _mm512_unpacklo_epi64(low.0, low.1);
        rows[quad * 4 + 1] = _mm512_unpackhi_epi64(low.0, low.1);
        rows[quad * 4 + 2] = _mm512_unpacklo_epi64(high.0, high.1);
        rows[quad * 4 + 3] = _mm512_unpackhi_epi64(high.0, high.1);
    }
    for r in 0..4 {
        // Blocks r and 4 + r, then 8 + r and 12 + r.
        let first = _mm512_permutex2var_epi64(rows[r], lower, rows[4 + r]);
        let second = _mm512_permutex2var_epi64(rows[r], upper, rows[4 + r]);
        let blocks = [
            (r, _mm512_castsi512_si256(first)),
            (4 + r, _mm512_extracti64x4_epi64::<1>(first)),
            (8 + r, _mm512_castsi512_si256(second)),
            (12 + r, _mm512_extracti64x4_epi64::<1>(second)),
        ];
        for (block, offsets) in blocks {
            let place = &mut out.0[block * 16..block * 16 + 16];
            // SAFETY: `place` is 16 offsets, 32 bytes; the batch is aligned to 64 bytes and
            // `block * 16` offsets is a multiple of 32 bytes.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), offsets) };
        }
    }
}
