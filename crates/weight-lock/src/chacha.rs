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

/// One batch of offsets below 2^16.
#[derive(Zeroize)]
#[repr(align(64))]
pub(crate) struct NarrowBatch(pub(crate) [u16; BATCH]);

/// The initial state for a key: constants, key, counter 0, nonce 0.
pub(crate) fn initial_state(key: &[u8; 32]) -> [u32; 16] {
    let mut state = [0; 16];
    state[..4].copy_from_slice(&[0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574]);
    for (word, bytes) in state[4..12].iter_mut().zip(key.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    state
}

#[cfg(test)]
mod tests {
    use chacha20::ChaCha20;
    use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};

    use super::*;
    use crate::implementation::Implementation;

    #[test]
    fn every_implementation_gives_the_standard_stream() {
        let key: [u8; 32] = std::array::from_fn(|at| (at * 37) as u8);
        let state = initial_state(&key);
        // The oracle refuses the very last block; `tests/vectors.rs` has the reference's.
        for batch in [0, 1, 2, 12_345, (1 << 28) - 2] {
            let mut stream = ChaCha20::new(&key.into(), &[0; 12].into());
            stream.seek(u64::from(batch) * 1024);
            let mut expected = [0; 1024];
            stream.apply_keystream(&mut expected);
            let words = expected.as_chunks::<4>().0.iter();
            let words: Vec<u32> = words.map(|bytes| u32::from_le_bytes(*bytes)).collect();
            let span = 0xC350_0001;
            let scaled = words
                .iter()
                .map(|w| ((u64::from(*w) * u64::from(span)) >> 32) as u32);
            let scaled: Vec<u32> = scaled.collect();
            let narrow_span = 0xFF00;
            let narrow = words
                .iter()
                .map(|w| ((u64::from(*w) * narrow_span) >> 32) as u16);
            let narrow: Vec<u16> = narrow.collect();
            for implementation in Implementation::available() {
                let (mut out, mut short) = (Batch([0; BATCH]), NarrowBatch([0; BATCH]));
                let mut fill = |wanted: Wanted, out: &mut Batch| match (implementation, wanted) {
                    (Implementation::Portable, Wanted::Words) => {
                        portable::fill::<false>(&state, batch, 0, out);
                    }
                    (Implementation::Portable, Wanted::Scaled) => {
                        portable::fill::<true>(&state, batch, span, out);
                    }
                    (Implementation::Portable, Wanted::Narrow) => {
                        portable::fill_narrow(&state, batch, narrow_span as u32, &mut short);
                    }
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the implementation is available, so the features are there.
                    (Implementation::Avx512, wanted) => unsafe {
                        match wanted {
                            Wanted::Words => avx512::fill::<false>(&state, batch, 0, out),
                            Wanted::Scaled => avx512::fill::<true>(&state, batch, span, out),
                            Wanted::Narrow => {
                                avx512::fill_narrow(&state, batch, narrow_span as u32, &mut short);
                            }
                        }
                    },
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    (Implementation::Avx2, wanted) => unsafe {
                        match wanted {
                            Wanted::Words => avx2::fill::<false>(&state, batch, 0, out),
                            Wanted::Scaled => avx2::fill::<true>(&state, batch, span, out),
                            Wanted::Narrow => {
                                avx2::fill_narrow(&state, batch, narrow_span as u32, &mut short);
                            }
                        }
                    },
                    #[cfg(not(target_arch = "x86_64"))]
                    _ => {}
                };
                fill(Wanted::Narrow, &mut out);
                fill(Wanted::Words, &mut out);
                assert_eq!(out.0[..], words, "{implementation:?}");
                fill(Wanted::Scaled, &mut out);
                assert_eq!(out.0[..], scaled, "{implementation:?}");
                assert_eq!(short.0[..], narrow, "{implementation:?}");
            }
        }
    }

    enum Wanted {
        Words,
        Scaled,
        Narrow,
    }
}
