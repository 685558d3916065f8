use chacha20::ChaCha20Legacy;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use zeroize::Zeroize;

use super::{BATCH, Batch, NarrowBatch};

/// Fills `out` with batch number `batch` of the key stream; with `SCALED` every word `w` becomes
/// `(w * span) >> 32`.
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    each_word(state, batch, |at, word| {
        out.0[at] = if SCALED { scale(word, span) } else { word };
    });
}

/// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span of at most
/// 2^16.
pub(crate) fn fill_narrow(state: &[u32; 16], batch: u32, span: u32, out: &mut NarrowBatch) {
    each_word(state, batch, |at, word| {
        out.0[at] = scale(word, span) as u16;
    });
}

/// The words come from the `chacha20` crate. Its original variant has a 64-bit counter where RFC
/// 8439 has a 32-bit counter and the nonce's first word: with a zero nonce the streams are the
/// same, and the last block of the 32-bit one can be had too.
#[inline(always)]
fn each_word(state: &[u32; 16], batch: u32, mut word: impl FnMut(usize, u32)) {
    let mut key = [0; 32];
    for (bytes, word) in key.as_chunks_mut::<4>().0.iter_mut().zip(&state[4..12]) {
        *bytes = word.to_le_bytes();
    }
    let mut stream = ChaCha20Legacy::new(&key.into(), &[0; 8].into());
    key.zeroize();
    stream.seek(u64::from(batch) * BATCH_BYTES as u64);
    let mut bytes = [0; BATCH_BYTES];
    stream.apply_keystream(&mut bytes);
    for (at, drawn) in bytes.as_chunks::<4>().0.iter().enumerate() {
        word(at, u32::from_le_bytes(*drawn));
    }
    bytes.zeroize();
}

#[inline(always)]
fn scale(word: u32, span: u32) -> u32 {
    ((u64::from(word) * u64::from(span)) >> 32) as u32
}

const BATCH_BYTES: usize = 4 * BATCH;
