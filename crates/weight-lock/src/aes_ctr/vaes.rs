use std::arch::x86_64::{
    __m128i, __m512i, _MM_PERM_CDAB, _mm_loadu_si128, _mm256_store_si256, _mm512_add_epi64,
    _mm512_aesenc_epi128, _mm512_aesenclast_epi128, _mm512_broadcast_i32x4, _mm512_cvtepi32_epi16,
    _mm512_mask_shuffle_epi32, _mm512_mul_epu32, _mm512_set_epi8, _mm512_set_epi64,
    _mm512_set1_epi32, _mm512_set1_epi64, _mm512_setzero_si512, _mm512_shuffle_epi8,
    _mm512_srli_epi64, _mm512_store_si512, _mm512_xor_si512,
};

use super::round_keys::RoundKeys;
use crate::chacha::{Batch, NarrowBatch};

/// Whether the machine has the instructions, beyond those of the AVX-512 implementation.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("aes") && is_x86_feature_detected!("vaes")
}

/// Fills `out` with batch number `batch` of the stream, scaled or not.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,aes,vaes")]
pub(super) fn fill<const SCALED: bool>(keys: &RoundKeys, batch: u64, span: u32, out: &mut Batch) {
    let span = _mm512_set1_epi32(span as i32);
    for half in 0..2 {
        let words = encrypt(keys, 2 * batch + half as u64);
        for (at, words) in words.into_iter().enumerate() {
            let words = if SCALED { scale(words, span) } else { words };
            let at = (half * 8 + at) * 16;
            let place = &mut out.0[at..at + 16];
            // SAFETY: `place` is 16 words, 64 bytes; the batch is aligned to 64 bytes and `at` is a
            // multiple of 16 words.
            unsafe { _mm512_store_si512(place.as_mut_ptr().cast(), words) };
        }
    }
}

/// Fills `out` with the offsets of batch number `batch`, for a span of at most 2^16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,aes,vaes")]
pub(super) fn fill_narrow(keys: &RoundKeys, batch: u64, span: u32, out: &mut NarrowBatch) {
    let span = _mm512_set1_epi32(span as i32);
    for half in 0..2 {
        let words = encrypt(keys, 2 * batch + half as u64);
        for (at, words) in words.into_iter().enumerate() {
            let offsets = _mm512_cvtepi32_epi16(scale(words, span));
            let at = (half * 8 + at) * 16;
            let place = &mut out.0[at..at + 16];
            // SAFETY: `place` is 16 offsets, 32 bytes; the batch is aligned to 64 bytes and `at`
            // is a multiple of 16 offsets.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), offsets) };
        }
    }
}

/// 32 blocks of the stream: group number `group`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,aes,vaes")]
fn encrypt(keys: &RoundKeys, group: u64) -> [__m512i; 8] {
    // A counter block is 0 and the block's number, both big-endian: the number's bytes are turned
    // around into the upper half.
    let turned = _mm512_set_epi8(
        8, 9, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, 8, 9, 10, 11, 12, 13, 14, 15,
        -1, -1, -1, -1, -1, -1, -1, -1, 8, 9, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1,
        -1, 8, 9, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1,
    );
    let four = _mm512_set1_epi64(4);
    let lanes = _mm512_set_epi64(3, 0, 2, 0, 1, 0, 0, 0);
    let mut number = _mm512_add_epi64(lanes, _mm512_set1_epi64((group * 32) as i64));
    let first = broadcast(keys, 0);
    let mut blocks = [_mm512_setzero_si512(); 8];
    for block in &mut blocks {
        *block = _mm512_xor_si512(_mm512_shuffle_epi8(number, turned), first);
        number = _mm512_add_epi64(number, four);
    }
    for round in 1..14 {
        let key = broadcast(keys, round);
        for block in &mut blocks {
            *block = _mm512_aesenc_epi128(*block, key);
        }
    }
    let last = broadcast(keys, 14);
    for block in &mut blocks {
        *block = _mm512_aesenclast_epi128(*block, last);
    }
    blocks
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,aes,vaes")]
fn broadcast(keys: &RoundKeys, round: usize) -> __m512i {
    let key: *const __m128i = (&raw const keys.0[round]).cast();
    // SAFETY: `key` points at 16 readable bytes; the load asks for no alignment.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(key) })
}

/// `(w * span) >> 32` in each lane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,aes,vaes")]
fn scale(word: __m512i, span: __m512i) -> __m512i {
    let even = _mm512_mul_epu32(word, span);
    let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(word), span);
    _mm512_mask_shuffle_epi32::<_MM_PERM_CDAB>(odd, 0x5555, even)
}
