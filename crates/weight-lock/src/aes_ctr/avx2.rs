//! 16 blocks at a time in vectors of two: by VAES, or by AES-NI where the machine has no more.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi64, _mm256_broadcastsi128_si256,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_packus_epi32,
    _mm256_permute2x128_si256, _mm256_set_epi8, _mm256_set_epi64x, _mm256_set_m128i,
    _mm256_set1_epi32, _mm256_set1_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_store_si256, _mm256_xor_si256,
};

use super::round_keys::RoundKeys;
use crate::chacha::avx2::scale;
use crate::chacha::{BATCH, Batch, NarrowBatch};

/// Whether the machine has VAES, beyond the instructions of the AVX2 implementation.
pub(super) fn has_vaes() -> bool {
    has_aes() && is_x86_feature_detected!("vaes")
}

/// Whether the machine has AES-NI, beyond the instructions of the AVX2 implementation.
pub(super) fn has_aes() -> bool {
    is_x86_feature_detected!("aes")
}

/// One instruction on 8 vectors and a round key. As intrinsics the compiler puts the rounds of one
/// vector after another, and each then waits for the one before.
macro_rules! side_by_side {
    ($instruction:literal, $class:ident, $blocks:expr, $key:expr) => {{
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = $blocks;
        asm!(
            concat!($instruction, " {a}, {a}, {key}"),
            concat!($instruction, " {b}, {b}, {key}"),
            concat!($instruction, " {c}, {c}, {key}"),
            concat!($instruction, " {d}, {d}, {key}"),
            concat!($instruction, " {e}, {e}, {key}"),
            concat!($instruction, " {f}, {f}, {key}"),
            concat!($instruction, " {g}, {g}, {key}"),
            concat!($instruction, " {h}, {h}, {key}"),
            a = inout($class) a,
            b = inout($class) b,
            c = inout($class) c,
            d = inout($class) d,
            e = inout($class) e,
            f = inout($class) f,
            g = inout($class) g,
            h = inout($class) h,
            key = in($class) $key,
            options(pure, nomem, nostack, preserves_flags),
        );
        [a, b, c, d, e, f, g, h]
    }};
}

macro_rules! streams {
    ($module:ident, $features:literal, $rounds:ident) => {
        pub(super) mod $module {
            use super::*;

            /// Fills `out` with batch number `batch` of the stream, scaled or not.
            #[target_feature(enable = $features)]
            pub(in super::super) fn fill<const SCALED: bool>(
                keys: &RoundKeys,
                batch: u64,
                span: u32,
                out: &mut Batch,
            ) {
                let span = _mm256_set1_epi32(span as i32);
                for group in 0..GROUPS {
                    let blocks = $rounds(keys, counters(batch, group));
                    for (at, [even, odd]) in blocks.as_chunks::<2>().0.iter().enumerate() {
                        let halves = [
                            _mm256_permute2x128_si256::<0x20>(*even, *odd),
                            _mm256_permute2x128_si256::<0x31>(*even, *odd),
                        ];
                        for (half, words) in halves.into_iter().enumerate() {
                            let words = if SCALED { scale(words, span) } else { words };
                            let at = group * WORDS + at * 16 + half * 8;
                            let place = &mut out.0[at..at + 8];
                            // SAFETY: `place` is 8 words, 32 bytes; the batch is aligned to 64
                            // bytes and `at` is a multiple of 8 words.
                            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), words) };
                        }
                    }
                }
            }

            /// Fills `out` with the offsets of batch number `batch`, for a span below 2^16.
            #[target_feature(enable = $features)]
            pub(in super::super) fn fill_narrow(
                keys: &RoundKeys,
                batch: u64,
                span: u32,
                out: &mut NarrowBatch,
            ) {
                let span = _mm256_set1_epi32(span as i32);
                for group in 0..GROUPS {
                    let blocks = $rounds(keys, counters(batch, group));
                    for (at, [even, odd]) in blocks.as_chunks::<2>().0.iter().enumerate() {
                        // Lanes 0 and 2, and 1 and 3: packing them puts them in order.
                        let offsets = _mm256_packus_epi32(scale(*even, span), scale(*odd, span));
                        let at = group * WORDS + at * 16;
                        let place = &mut out.0[at..at + 16];
                        // SAFETY: `place` is 16 offsets, 32 bytes; the batch is aligned to 64
                        // bytes and `at` is a multiple of 16 offsets.
                        unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), offsets) };
                    }
                }
            }
        }
    };
}

streams!(vaes, "avx2,aes,vaes", rounds_vaes);
streams!(aes_ni, "avx2,aes", rounds_aes_ni);

/// The 16 counter blocks of a group: of four after another, each pair of vectors holds the first
/// and third, and the second and fourth.
#[inline]
#[target_feature(enable = "avx2")]
fn counters(batch: u64, group: usize) -> [__m256i; 8] {
    // A counter block is 0 and the block's number, both big-endian: the number's bytes are turned
    // around into the upper half.
    let turned = _mm256_set_epi8(
        8, 9, 10, 11, 12, 13, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, 8, 9, 10, 11, 12, 13, 14, 15,
        -1, -1, -1, -1, -1, -1, -1, -1,
    );
    let first = (batch * GROUPS as u64 + group as u64) * 16;
    let mut number = _mm256_add_epi64(
        _mm256_set_epi64x(2, 0, 0, 0),
        _mm256_set1_epi64x(first as i64),
    );
    let (one, three) = (_mm256_set1_epi64x(1), _mm256_set1_epi64x(3));
    let mut blocks = [_mm256_setzero_si256(); 8];
    for (at, block) in blocks.iter_mut().enumerate() {
        *block = _mm256_shuffle_epi8(number, turned);
        number = _mm256_add_epi64(number, if at % 2 == 0 { one } else { three });
    }
    blocks
}

#[inline]
#[target_feature(enable = "avx2,aes,vaes")]
fn rounds_vaes(keys: &RoundKeys, mut blocks: [__m256i; 8]) -> [__m256i; 8] {
    let first = _mm256_broadcastsi128_si256(load(keys, 0));
    for block in &mut blocks {
        *block = _mm256_xor_si256(*block, first);
    }
    for round in 1..14 {
        let key = _mm256_broadcastsi128_si256(load(keys, round));
        // SAFETY: the function has VAES.
        blocks = unsafe { side_by_side!("vaesenc", ymm_reg, blocks, key) };
    }
    let last = _mm256_broadcastsi128_si256(load(keys, 14));
    // SAFETY: as above.
    unsafe { side_by_side!("vaesenclast", ymm_reg, blocks, last) }
}

#[inline]
#[target_feature(enable = "avx2,aes")]
fn rounds_aes_ni(keys: &RoundKeys, blocks: [__m256i; 8]) -> [__m256i; 8] {
    let first = _mm256_broadcastsi128_si256(load(keys, 0));
    let mut out = blocks;
    // Half at a time: 8 vectors of one block each, so that all stay in registers.
    for half in out.as_chunks_mut::<4>().0 {
        let mut blocks = [load(keys, 0); 8];
        for (pair, block) in blocks.as_chunks_mut::<2>().0.iter_mut().zip(&*half) {
            let block = _mm256_xor_si256(*block, first);
            *pair = [
                _mm256_castsi256_si128(block),
                _mm256_extracti128_si256::<1>(block),
            ];
        }
        for round in 1..14 {
            let key = load(keys, round);
            // SAFETY: the function has AES-NI and AVX.
            blocks = unsafe { side_by_side!("vaesenc", xmm_reg, blocks, key) };
        }
        let last = load(keys, 14);
        // SAFETY: as above.
        blocks = unsafe { side_by_side!("vaesenclast", xmm_reg, blocks, last) };
        for (out, [low, high]) in half.iter_mut().zip(blocks.as_chunks::<2>().0) {
            *out = _mm256_set_m128i(*high, *low);
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(keys: &RoundKeys, round: usize) -> __m128i {
    let key: *const __m128i = (&raw const keys.0[round]).cast();
    // SAFETY: `key` points at 16 readable bytes; the load asks for no alignment.
    unsafe { _mm_loadu_si128(key) }
}

/// Words of a group of 16 blocks.
const WORDS: usize = 64;
const GROUPS: usize = BATCH / WORDS;
