use std::arch::x86_64::{
    __m512i, _MM_PERM_CDAB, _mm512_add_epi32, _mm512_mask_shuffle_epi32, _mm512_mul_epu32,
    _mm512_rol_epi32, _mm512_set1_epi32, _mm512_setr_epi32, _mm512_shuffle_i32x4,
    _mm512_srli_epi64, _mm512_store_si512, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64, _mm512_xor_si512,
};

use super::Batch;

/// Fills `out` with batch number `batch` of the key stream: 16 blocks, one per lane. With `SCALED`
/// every word `w` becomes `(w * span) >> 32` before the lanes are turned into natural order.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    let lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    let first = _mm512_set1_epi32(batch.wrapping_mul(16) as i32);
    let counter = _mm512_add_epi32(first, lanes);
    let mut x = state.map(|word| _mm512_set1_epi32(word as i32));
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
            _mm512_set1_epi32(state[position] as i32)
        };
        *word = _mm512_add_epi32(*word, start);
        if SCALED {
            *word = scale(*word, _mm512_set1_epi32(span as i32));
        }
    }
    transpose(x, out);
}

/// Four quarter rounds side by side, so that their chains overlap.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn quarter_rounds(
    x: &mut [__m512i; 16],
    a: [usize; 4],
    b: [usize; 4],
    c: [usize; 4],
    d: [usize; 4],
) {
    macro_rules! step {
        ($to:ident, $from:ident, $mix:ident, $turn:literal) => {
            for i in 0..4 {
                x[$to[i]] = _mm512_add_epi32(x[$to[i]], x[$from[i]]);
            }
            for i in 0..4 {
                x[$mix[i]] = _mm512_xor_si512(x[$mix[i]], x[$to[i]]);
            }
            for i in 0..4 {
                x[$mix[i]] = _mm512_rol_epi32::<$turn>(x[$mix[i]]);
            }
        };
    }
    step!(a, b, d, 16);
    step!(c, d, b, 12);
    step!(a, b, d, 8);
    step!(c, d, b, 7);
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
