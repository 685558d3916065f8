use sha2::{Digest as _, Sha256};

use crate::hash::{Hash, empty_root, leaf_hash, leaf_hasher, node_hash};
use crate::proof::ProofError;
use crate::tree::{Frontier, split};

/// The RFC 6962 root over every 1 MiB of a file's bytes.
#[must_use]
pub fn chunk_root(bytes: &[u8]) -> Hash {
    let mut hasher = ChunkHasher::new();
    hasher.update(bytes);
    hasher.finish().root()
}

/// The leaf hash of one chunk: [`CHUNK_BYTES`] long, or the file's last and shorter.
#[must_use]
pub fn chunk_leaf(chunk: &[u8]) -> Hash {
    leaf_hash(chunk)
}

/// Builds a [`ChunkTree`] from a file's bytes as they come.
#[derive(Debug, Clone)]
pub struct ChunkHasher {
    current: Sha256,
    filled: usize,
    leaves: Vec<Hash>,
}

/// The leaf hashes of a file's chunks: 32 bytes for each MiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkTree {
    leaves: Vec<Hash>,
}

impl Default for ChunkHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkHasher {
    /// A hasher before the first byte.
    #[must_use]
    pub fn new() -> Self {
        Self {
            current: leaf_hasher(),
            filled: 0,
            leaves: Vec::new(),
        }
    }

    /// Takes the next bytes of the file.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let take = bytes.len().min(CHUNK_BYTES - self.filled);
            let (now, rest) = bytes.split_at(take);
            self.current.update(now);
            self.filled += take;
            bytes = rest;
            if self.filled == CHUNK_BYTES {
                self.close_chunk();
            }
        }
    }

    /// The tree over all bytes taken.
    #[must_use]
    pub fn finish(mut self) -> ChunkTree {
        if self.filled > 0 {
            self.close_chunk();
        }
        ChunkTree {
            leaves: self.leaves,
        }
    }

    fn close_chunk(&mut self) {
        let chunk = std::mem::replace(&mut self.current, leaf_hasher());
        self.leaves.push(Hash::new(chunk.finalize().into()));
        self.filled = 0;
    }
}

impl ChunkTree {
    /// The tree of these leaf hashes, one for each chunk.
    #[must_use]
    pub const fn from_leaves(leaves: Vec<Hash>) -> Self {
        Self { leaves }
    }

    /// The leaf hashes.
    #[must_use]
    pub fn leaves(&self) -> &[Hash] {
        &self.leaves
    }

    /// The root.
    #[must_use]
    pub fn root(&self) -> Hash {
        subtree(&self.leaves)
    }

    /// The hashes that lead from chunks `first..end` to the root: those of the subtrees beside
    /// them, left to right. The error is [`ProofError::Index`] for a range outside the file.
    pub fn range_proof(&self, first: u64, end: u64) -> Result<Vec<Hash>, ProofError> {
        let size = self.leaves.len() as u64;
        check_range(first, end, size)?;
        let mut proof = Vec::new();
        self.beside(0, size, first, end, &mut proof);
        Ok(proof)
    }

    fn beside(&self, low: u64, high: u64, first: u64, end: u64, proof: &mut Vec<Hash>) {
        if high <= first || low >= end {
            proof.push(subtree(&self.leaves[low as usize..high as usize]));
        } else if first > low || end < high {
            let middle = low + split(high - low);
            self.beside(low, middle, first, end, proof);
            self.beside(middle, high, first, end, proof);
        }
    }
}

/// Checks that `leaves` are the hashes of chunks `first..` of a file of `size` chunks with this
/// root.
pub fn verify_chunks(
    leaves: &[Hash],
    first: u64,
    size: u64,
    proof: &[Hash],
    root: &Hash,
) -> Result<(), ProofError> {
    let end = first.saturating_add(leaves.len() as u64);
    check_range(first, end, size)?;
    let mut rest = proof.iter();
    let wrong_length = ProofError::Length { found: proof.len() };
    let computed = climb(0, size, leaves, first, end, &mut rest).ok_or(wrong_length.clone())?;
    if rest.next().is_some() {
        return Err(wrong_length);
    }
    if computed == *root {
        Ok(())
    } else {
        Err(ProofError::Root)
    }
}

/// The hash of `low..high`; `None` when the proof is too short.
fn climb(
    low: u64,
    high: u64,
    leaves: &[Hash],
    first: u64,
    end: u64,
    proof: &mut std::slice::Iter<'_, Hash>,
) -> Option<Hash> {
    if high <= first || low >= end {
        return proof.next().copied();
    }
    if first <= low && high <= end {
        return Some(subtree(
            &leaves[(low - first) as usize..(high - first) as usize],
        ));
    }
    let middle = low + split(high - low);
    let left = climb(low, middle, leaves, first, end, proof)?;
    let right = climb(middle, high, leaves, first, end, proof)?;
    Some(node_hash(&left, &right))
}

fn check_range(first: u64, end: u64, size: u64) -> Result<(), ProofError> {
    if first < end && end <= size {
        Ok(())
    } else {
        Err(ProofError::Index { index: end, size })
    }
}

fn subtree(leaves: &[Hash]) -> Hash {
    if leaves.is_empty() {
        return empty_root();
    }
    let mut frontier = Frontier::new();
    for leaf in leaves {
        frontier.append(*leaf);
    }
    frontier.root()
}

/// Bytes of a chunk; the file's last may be shorter.
pub const CHUNK_BYTES: usize = 1 << 20;
