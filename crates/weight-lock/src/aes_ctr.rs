//! The AES-256-CTR key stream: counter blocks from zero, big-endian, in batches of 256
//! little-endian words.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod round_keys;
#[cfg(target_arch = "x86_64")]
mod vaes;

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use secret::Secret;
use zeroize::Zeroize;

use crate::chacha::{BATCH, Batch, NarrowBatch};
use crate::implementation::Implementation;

/// One tensor's stream.
pub(crate) struct AesCtr {
    form: Form,
}

enum Form {
    /// 4 blocks an instruction; only where the machine has it.
    #[cfg(target_arch = "x86_64")]
    Vaes512(Box<round_keys::RoundKeys>),
    /// 2 blocks an instruction; only where the machine has it.
    #[cfg(target_arch = "x86_64")]
    Vaes256(Box<round_keys::RoundKeys>),
    /// 1 block an instruction; only where the machine has it, and AVX2.
    #[cfg(target_arch = "x86_64")]
    AesNi(Box<round_keys::RoundKeys>),
    /// The `aes` crate.
    Any(Box<Aes256>),
}

impl AesCtr {
    /// The stream of a key.
    pub(crate) fn new(implementation: Implementation, key: &Secret<32>) -> Self {
        Self {
            form: Form::available(implementation)[0](key),
        }
    }

    /// Fills `out` with batch number `batch` of the stream; with `SCALED` every word `w` becomes
    /// `(w * span) >> 32`.
    pub(crate) fn fill<const SCALED: bool>(&self, batch: u64, span: u32, out: &mut Batch) {
        match &self.form {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this form exists only where the machine has what it needs.
            Form::Vaes512(keys) => unsafe { vaes::fill::<SCALED>(keys, batch, span, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Form::Vaes256(keys) => unsafe { avx2::vaes::fill::<SCALED>(keys, batch, span, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Form::AesNi(keys) => unsafe { avx2::aes_ni::fill::<SCALED>(keys, batch, span, out) },
            Form::Any(cipher) => each_word(cipher, batch, |at, word| {
                out.0[at] = if SCALED { scale(word, span) } else { word };
            }),
        }
    }

    /// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span below
    /// 2^16.
    pub(crate) fn fill_narrow(&self, batch: u64, span: u32, out: &mut NarrowBatch) {
        match &self.form {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: this form exists only where the machine has what it needs.
            Form::Vaes512(keys) => unsafe { vaes::fill_narrow(keys, batch, span, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Form::Vaes256(keys) => unsafe { avx2::vaes::fill_narrow(keys, batch, span, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Form::AesNi(keys) => unsafe { avx2::aes_ni::fill_narrow(keys, batch, span, out) },
            Form::Any(cipher) => each_word(cipher, batch, |at, word| {
                out.0[at] = scale(word, span) as u16;
            }),
        }
    }
}

impl Form {
    /// Makers of the forms that this machine has for an implementation, best first; never empty.
    fn available(implementation: Implementation) -> Vec<fn(&Secret<32>) -> Self> {
        let mut forms: Vec<fn(&Secret<32>) -> Self> = Vec::new();
        #[cfg(target_arch = "x86_64")]
        if avx2::has_aes() && implementation != Implementation::Portable {
            if implementation == Implementation::Avx512 && vaes::is_available() {
                forms.push(|key| Self::Vaes512(expand(key)));
            }
            if avx2::has_vaes() {
                forms.push(|key| Self::Vaes256(expand(key)));
            }
            forms.push(|key| Self::AesNi(expand(key)));
        }
        forms.push(|key| Self::Any(Box::new(Aes256::new(key.expose().into()))));
        forms
    }
}

/// Called only where the machine has AES-NI.
#[cfg(target_arch = "x86_64")]
fn expand(key: &Secret<32>) -> Box<round_keys::RoundKeys> {
    // SAFETY: the forms that need round keys are made only where the machine has AES instructions.
    Box::new(unsafe { round_keys::RoundKeys::expand(key.expose()) })
}

#[inline(always)]
fn each_word(cipher: &Aes256, batch: u64, mut word: impl FnMut(usize, u32)) {
    let mut blocks = [Block::default(); BLOCKS];
    for (block, counter) in blocks.iter_mut().zip(batch * BLOCKS as u64..) {
        // One tensor's stream never reaches 2^64 blocks: the high half stays 0.
        block[8..].copy_from_slice(&counter.to_be_bytes());
    }
    cipher.encrypt_blocks(&mut blocks);
    for (at, block) in blocks.iter().enumerate() {
        for (lane, bytes) in block.as_chunks::<4>().0.iter().enumerate() {
            word(at * 4 + lane, u32::from_le_bytes(*bytes));
        }
    }
    for block in &mut blocks {
        block.as_mut_slice().zeroize();
    }
}

#[inline(always)]
fn scale(word: u32, span: u32) -> u32 {
    ((u64::from(word) * u64::from(span)) >> 32) as u32
}

const BLOCKS: usize = BATCH / 4;

#[cfg(test)]
mod tests {
    use ctr::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};

    use super::*;

    #[test]
    fn every_form_gives_the_standard_stream() {
        let key = Secret::fill_with(|key| {
            for (at, byte) in key.iter_mut().enumerate() {
                *byte = (at * 41) as u8;
            }
        });
        for batch in [0, 1, 3, 66, (1 << 26) - 1, 1 << 26, 1 << 40] {
            let mut stream = ctr::Ctr128BE::<Aes256>::new(key.expose().into(), &[0; 16].into());
            stream.seek(batch * 1024);
            let mut expected = [0; 1024];
            stream.apply_keystream(&mut expected);
            let words = expected.as_chunks::<4>().0.iter();
            let words: Vec<u32> = words.map(|bytes| u32::from_le_bytes(*bytes)).collect();
            let span = 0x9C40_0000;
            let scaled: Vec<u32> = words.iter().map(|word| scale(*word, span)).collect();
            let narrow: Vec<u16> = words
                .iter()
                .map(|word| scale(*word, 65280) as u16)
                .collect();
            let forms = Implementation::available()
                .into_iter()
                .flat_map(|implementation| {
                    let forms = Form::available(implementation).into_iter();
                    forms.map(move |form| (implementation, form))
                });
            for (implementation, form) in forms {
                let stream = AesCtr { form: form(&key) };
                let (mut out, mut short) = (Batch([0; BATCH]), NarrowBatch([0; BATCH]));
                stream.fill::<false>(batch, 0, &mut out);
                assert_eq!(out.0[..], words, "{implementation:?}");
                stream.fill::<true>(batch, span, &mut out);
                assert_eq!(out.0[..], scaled, "{implementation:?}");
                stream.fill_narrow(batch, 65280, &mut short);
                assert_eq!(short.0[..], narrow, "{implementation:?}");
            }
        }
    }
}
