//! The AES-256-CTR key stream: counter blocks from zero, big-endian, in batches of 256
//! little-endian words.

use aes::cipher::BlockCipherEncrypt;
use aes::{Aes256, Block};

use crate::chacha::{BATCH, Batch, NarrowBatch};

/// Room for one batch's blocks; the caller wipes it.
pub(crate) type Blocks = [Block; BLOCKS];

/// Fills `out` with batch number `batch` of the key stream; with `SCALED` every word `w` becomes
/// `(w * span) >> 32`.
#[inline(always)]
pub(crate) fn fill<const SCALED: bool>(
    cipher: &Aes256,
    batch: u64,
    span: u32,
    blocks: &mut Blocks,
    out: &mut Batch,
) {
    encrypt(cipher, batch, blocks);
    for (words, block) in out.0.as_chunks_mut::<4>().0.iter_mut().zip(blocks.iter()) {
        for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
            let drawn = u32::from_le_bytes(*bytes);
            *word = if SCALED { scale(drawn, span) } else { drawn };
        }
    }
}

/// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span of at most
/// 2^16.
#[inline(always)]
pub(crate) fn fill_narrow(
    cipher: &Aes256,
    batch: u64,
    span: u32,
    blocks: &mut Blocks,
    out: &mut NarrowBatch,
) {
    encrypt(cipher, batch, blocks);
    for (offsets, block) in out.0.as_chunks_mut::<4>().0.iter_mut().zip(blocks.iter()) {
        for (offset, bytes) in offsets.iter_mut().zip(block.as_chunks::<4>().0) {
            *offset = scale(u32::from_le_bytes(*bytes), span) as u16;
        }
    }
}

#[inline(always)]
fn encrypt(cipher: &Aes256, batch: u64, blocks: &mut Blocks) {
    let first = batch * BLOCKS as u64;
    for (block, counter) in blocks.iter_mut().zip(first..) {
        *block = u128::from(counter).to_be_bytes().into();
    }
    cipher.encrypt_blocks(blocks);
}

#[inline(always)]
fn scale(word: u32, span: u32) -> u32 {
    ((u64::from(word) * u64::from(span)) >> 32) as u32
}

const BLOCKS: usize = BATCH / 4;
