//! ChaCha20 key streams of subkeys (spec: sealed checkpoint, sections 1 and 2).

use std::num::NonZeroU64;

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use zeroize::Zeroize;

use crate::error::DrawError;
use crate::label::{Component, Label, Path, SubkeyId};
use crate::source::{Scoped, Subkey};

/// The ChaCha20 key stream of a subkey: RFC 8439 blocks from counter 0 under a zero nonce.
///
/// Words are drawn through a buffer that is wiped on drop; [`KeyStream::fill`] and the word draws
/// consume the same stream.
pub struct KeyStream {
    cipher: ChaCha20,
    buffer: Box<[u8; BUFFER]>,
    used: usize,
}

impl KeyStream {
    /// The stream from its first byte.
    #[must_use]
    pub fn new(subkey: &Subkey) -> Self {
        Self {
            cipher: cipher(subkey),
            buffer: Box::new([0; BUFFER]),
            used: BUFFER,
        }
    }

    /// The next bytes of the stream.
    ///
    /// # Panics
    /// After 256 GiB, where the 32-bit block counter ends.
    pub fn fill(&mut self, out: &mut [u8]) {
        let buffered = (BUFFER - self.used).min(out.len());
        let (head, tail) = out.split_at_mut(buffered);
        head.copy_from_slice(&self.buffer[self.used..self.used + buffered]);
        self.used += buffered;
        self.cipher.write_keystream(tail);
    }

    /// The next 8 bytes as a little-endian word.
    ///
    /// # Panics
    /// After 256 GiB, where the 32-bit block counter ends.
    pub fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        match self.buffer.get(self.used..self.used + 8) {
            Some(word) => {
                bytes.copy_from_slice(word);
                self.used += 8;
            }
            None if self.used == BUFFER => {
                self.cipher.write_keystream(&mut self.buffer[..]);
                bytes.copy_from_slice(&self.buffer[..8]);
                self.used = 8;
            }
            None => self.fill(&mut bytes),
        }
        u64::from_le_bytes(bytes)
    }

    /// A uniform draw below `bound`: the first word under the largest multiple of `bound`, reduced.
    pub fn below(&mut self, bound: NonZeroU64) -> u64 {
        let bound_value = bound.get();
        loop {
            let word = self.word();
            // 2^64 mod bound is below bound, so a word up to 2^64 - bound needs no second division.
            let accepted = word <= bound_value.wrapping_neg()
                || word <= u64::MAX - bound_value.wrapping_neg() % bound;
            if accepted {
                return word % bound;
            }
        }
    }
}

impl Drop for KeyStream {
    fn drop(&mut self) {
        self.buffer.zeroize();
    }
}

/// The first `n` bytes of a subkey's key stream.
///
/// # Panics
/// Above 256 GiB, where the 32-bit block counter ends.
#[must_use]
pub fn keystream(subkey: &Subkey, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    cipher(subkey).write_keystream(&mut bytes);
    bytes
}

/// Fills `out` with the key stream that starts at byte `offset`, so that parts of one stream can
/// be made apart.
///
/// # Panics
/// If the part ends above 256 GiB, where the 32-bit block counter ends.
pub fn keystream_at(subkey: &Subkey, offset: u64, out: &mut [u8]) {
    let mut cipher = cipher(subkey);
    cipher.seek(offset);
    cipher.write_keystream(out);
}

/// `stream(path, n)`: the first `n` bytes of the key stream labelled `stream/<path>`.
pub fn stream(source: &Scoped<'_>, path: &Path, n: usize) -> Result<Vec<u8>, DrawError> {
    DrawError::check_length(path, n)?;
    let subkey = source.subkey(Label::Stream(path.clone()))?;
    Ok(keystream(&subkey, n))
}

/// What [`stream`], and every draw made of one stream, asks its source for.
#[must_use]
pub fn stream_id(component: Component, path: &Path) -> SubkeyId {
    SubkeyId {
        component,
        label: Label::Stream(path.clone()),
    }
}

/// `turns`: the first `n` bytes of the stream, each modulo 4, in quarter turns.
pub fn turns(source: &Scoped<'_>, path: &Path, n: usize) -> Result<Vec<u8>, DrawError> {
    let mut bytes = stream(source, path, n)?;
    bytes.iter_mut().for_each(|byte| *byte %= 4);
    Ok(bytes)
}

/// `signs(path, n)`: -1 where the low bit of the stream's byte is 1, else +1.
pub fn signs(source: &Scoped<'_>, path: &Path, n: usize) -> Result<Vec<i8>, DrawError> {
    let bytes = stream(source, path, n)?;
    Ok(bytes.iter().map(|byte| 1 - 2 * (byte & 1) as i8).collect())
}

/// High-bit signs of the stream `<path>-sign`: -1 where the byte has 0x80, else +1.
///
/// Asks for `stream_id(component, &path.then(Part::SignStream))`.
pub fn high_signs(source: &Scoped<'_>, path: &Path, n: usize) -> Result<Vec<i8>, DrawError> {
    let bytes = stream(source, &path.then(crate::Part::SignStream), n)?;
    Ok(bytes.iter().map(|byte| high_sign(*byte)).collect())
}

/// Signed powers of two of an MLP's hidden dimension, by canonical position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scales {
    /// Exponents, -2 to 2.
    pub exponent: Vec<i8>,
    /// -1 or +1.
    pub sign: Vec<i8>,
}

impl Scales {
    /// `sign * 2^exponent` at a canonical position.
    #[must_use]
    pub fn value(&self, position: usize) -> f64 {
        f64::from(self.sign[position]) * f64::from(self.exponent[position]).exp2()
    }
}

/// How the exponents of [`scales`] are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exponents {
    /// One for every element.
    Each,
    /// One for every block of this many elements: its first element's.
    PerBlock(std::num::NonZeroUsize),
    /// All zero: scales stored per tensor or per channel.
    Zero,
}

/// An MLP's scales from the stream `<path>-scale` (spec: sealed checkpoint, section 3).
///
/// Asks for `stream_id(component, &path.then(Part::ScaleStream))`.
pub fn scales(
    source: &Scoped<'_>,
    path: &Path,
    n: usize,
    exponents: Exponents,
) -> Result<Scales, DrawError> {
    let raw = stream(source, &path.then(crate::Part::ScaleStream), n)?;
    let each = |byte: u8| (byte % 5) as i8 - 2;
    let exponent = match exponents {
        Exponents::Each => raw.iter().map(|byte| each(*byte)).collect(),
        Exponents::PerBlock(block) => {
            let block = block.get();
            (0..n).map(|i| each(raw[i - i % block])).collect()
        }
        Exponents::Zero => vec![0; n],
    };
    let sign = raw.iter().map(|byte| high_sign(*byte)).collect();
    Ok(Scales { exponent, sign })
}

fn high_sign(byte: u8) -> i8 {
    if byte & 0x80 == 0 { 1 } else { -1 }
}

fn cipher(subkey: &Subkey) -> ChaCha20 {
    ChaCha20::new(subkey.expose().into(), &[0; 12].into())
}

/// A multiple of every backend's parallel block count.
const BUFFER: usize = 4096;
