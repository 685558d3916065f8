use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_blend_epi32, _mm256_mul_epu32, _mm256_or_si256,
    _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setr_epi8, _mm256_setr_epi32,
    _mm256_shuffle_epi8, _mm256_slli_epi32, _mm256_srli_epi32, _mm256_srli_epi64,
    _mm256_store_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64, _mm256_xor_si256,
};

use super::Batch;

/// Fills `out` with batch number `batch` of the key stream: twice 8 blocks, one per lane. With
/// `SCALED` every word `w` becomes `(w * span) >> 32` before the lanes are turned into natural
/// order.
#[target_feature(enable = "avx2")]
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    for half in 0..2_u32 {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let first = batch.wrapping_mul(16).wrapping_add(half * 8);
        let counter = _mm256_add_epi32(_mm256_set1_epi32(first as i32), lanes);
        let mut x = state.map(|word| _mm256_set1_epi32(word as i32));
        x[12] = counter;
        for _ in 0..10 {
            quarter_rounds(
                &mut x,
                [0, 1, 2, 3],
                [4, 5, 6, 7],
                [8, 9, 10, 11],
                [12, 13, 14, 15],
            );
            quarter_rounds(
                &mut x,
                [0, 1, 2, 3],
                [5, 6, 7, 4],
                [10, 11, 8, 9],
                [15, 12, 13, 14],
            );
        }
        for (position, word) in x.iter_mut().enumerate() {
            let start = if position == 12 {
                counter
            } else {
                _mm256_set1_epi32(state[position] as i32)
            };
            *word = _mm256_add_epi32(*word, start);
            if SCALED {
                *word = scale(*word, _mm256_set1_epi32(span as i32));
            }
        }
        let [low, high] = [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15]];
        transpose(low.map(|i| x[i]), out, half as usize * 128);
        transpose(high.map(|i| x[i]), out, half as usize * 128 + 8);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn quarter_rounds(
    x: &mut [__m256i; 16],
    a: [usize; 4],
    b: [usize; 4],
    c: [usize; 4],
    d: [usize; 4],
) {
    let by16 = _mm256_setr_epi8(
        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9,
        14, 15, 12, 13,
    );
    let by8 = _mm256_setr_epi8(
        3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10,
        15, 12, 13, 14,
    );
    for i in 0..4 {
        let [a, b, c, d] = [a[i], b[i], c[i], d[i]];
        x[a] = _mm256_add_epi32(x[a], x[b]);
        x[d] = _mm256_shuffle_epi8(_mm256_xor_si256(x[d], x[a]), by16);
        x[c] = _mm256_add_epi32(x[c], x[d]);
        x[b] = turn::<12, 20>(_mm256_xor_si256(x[b], x[c]));
        x[a] = _mm256_add_epi32(x[a], x[b]);
        x[d] = _mm256_shuffle_epi8(_mm256_xor_si256(x[d], x[a]), by8);
        x[c] = _mm256_add_epi32(x[c], x[d]);
        x[b] = turn::<7, 25>(_mm256_xor_si256(x[b], x[c]));
    }
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
fn scale(word: __m256i, span: __m256i) -> __m256i {
    let even = _mm256_mul_epu32(word, span);
    let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(word), span);
    _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd)
}

/// Turns 8 vectors of one word of 8 blocks into 8 half blocks of 8 words, 16 words apart.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: [__m256i; 8], out: &mut Batch, start: usize) {
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
    for r in 0..4 {
        let blocks = [
            (r, _mm256_permute2x128_si256::<0x20>(rows[r], rows[4 + r])),
            (
                4 + r,
                _mm256_permute2x128_si256::<0x31>(rows[r], rows[4 + r]),
            ),
        ];
        for (block, words) in blocks {
            let at = start + block * 16;
            let place = &mut out.0[at..at + 8];
            // SAFETY: `place` is 8 words, 32 bytes; the batch is aligned to 64 bytes and `at` is a
            // multiple of 8 words.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), words) };
        }
    }
}
