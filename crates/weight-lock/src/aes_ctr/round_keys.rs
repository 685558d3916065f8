use std::arch::x86_64::{
    __m128i, _mm_aeskeygenassist_si128, _mm_shuffle_epi32, _mm_slli_si128, _mm_xor_si128,
};

use zeroize::Zeroize;

/// The 15 round keys of AES-256; wiped on drop.
pub(crate) struct RoundKeys(pub(super) [u128; 15]);

impl RoundKeys {
    /// FIPS 197, section 5.2.
    #[target_feature(enable = "sse2,aes")]
    pub(super) fn expand(key: &[u8; 32]) -> Self {
        let mut keys = Self([0; 15]);
        let [low, high] = [&key[..16], &key[16..]].map(|half| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(half);
            u128::from_le_bytes(bytes)
        });
        (keys.0[0], keys.0[1]) = (low, high);
        let (mut even, mut odd) = (vector(low), vector(high));
        macro_rules! next_pair {
            ($($pair:literal: $constant:literal)*) => {$(
                let word = _mm_aeskeygenassist_si128::<$constant>(odd);
                even = _mm_xor_si128(running_xor(even), _mm_shuffle_epi32::<0xFF>(word));
                keys.0[2 * $pair] = bits(even);
                if let Some(key) = keys.0.get_mut(2 * $pair + 1) {
                    let word = _mm_aeskeygenassist_si128::<0>(even);
                    odd = _mm_xor_si128(running_xor(odd), _mm_shuffle_epi32::<0xAA>(word));
                    *key = bits(odd);
                }
            )*};
        }
        next_pair!(1: 0x01 2: 0x02 3: 0x04 4: 0x08 5: 0x10 6: 0x20 7: 0x40);
        keys
    }
}

impl Drop for RoundKeys {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Each word, and all words below it, added together.
#[inline]
#[target_feature(enable = "sse2")]
fn running_xor(words: __m128i) -> __m128i {
    let once = _mm_xor_si128(words, _mm_slli_si128::<4>(words));
    _mm_xor_si128(once, _mm_slli_si128::<8>(once))
}

fn vector(bits: u128) -> __m128i {
    // SAFETY: both are 16 plain bytes.
    unsafe { std::mem::transmute(bits) }
}

fn bits(vector: __m128i) -> u128 {
    // SAFETY: both are 16 plain bytes.
    unsafe { std::mem::transmute(vector) }
}
