//! The ChaCha20 key stream (RFC 8439 block, zero nonce, 32-bit block counter), in batches of 256
//! words that land in natural order.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
pub(crate) mod portable;

use zeroize::Zeroize;

/// Words of one batch: 16 blocks.
pub(crate) const BATCH: usize = 256;

/// One batch of words, or of offsets made from them.
#[derive(Zeroize)]
#[repr(align(64))]
pub(crate) struct Batch(pub(crate) [u32; BATCH]);

/// The initial state for a key: constants, key, counter 0, nonce 0.
pub(crate) fn initial_state(key: &[u8; 32]) -> [u32; 16] {
    let mut state = [0; 16];
    state[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    for (word, bytes) in state[4..12].iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    state
}
