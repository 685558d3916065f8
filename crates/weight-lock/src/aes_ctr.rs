//! The AES-256-CTR key stream: counter blocks from zero, big-endian, in batches of 256
//! little-endian words.

use aes::cipher::BlockCipherEncrypt;
use aes::{Aes256, Block};

use crate::chacha::{BATCH, Batch};

/// Fills `out` with batch number `batch` of the key stream.
pub(crate) fn fill(cipher: &Aes256, batch: u64, out: &mut Batch) {
    let mut blocks = [Block::default(); BLOCKS];
    let first = batch * BLOCKS as u64;
    for (block, counter) in blocks.iter_mut().zip(first..) {
        // One tensor's stream never reaches 2^64 blocks: the high half stays 0.
        block[8..].copy_from_slice(&counter.to_be_bytes());
    }
    cipher.encrypt_blocks(&mut blocks);
    for (words, block) in out.0.as_chunks_mut::<4>().0.iter_mut().zip(&blocks) {
        for (word, bytes) in words.iter_mut().zip(block.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
}

const BLOCKS: usize = BATCH / 4;
