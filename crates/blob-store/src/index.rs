use identifiers::Sha256Digest;
use tlog::{CHUNK_BYTES, ChunkTree};

use crate::Problem;

/// The stored chunk index of a blob: size u64 LE, chunk root, then the leaf hash of every chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChunkIndex {
    pub(crate) size: u64,
    pub(crate) tree: ChunkTree,
}

/// The hashes that prove some chunks of a blob against its chunk root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeProof {
    /// First chunk that covers the range.
    pub first: u64,
    /// Chunk after the last one that covers the range.
    pub end: u64,
    /// Chunks of the blob.
    pub chunks: u64,
    /// The path, for [`tlog::verify_chunks`].
    pub path: Vec<Sha256Digest>,
}

impl ChunkIndex {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let leaves = self.tree.leaves();
        let mut bytes = Vec::with_capacity(HEAD_BYTES + leaves.len() * 32);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(self.tree.root().as_bytes());
        for leaf in leaves {
            bytes.extend_from_slice(leaf.as_bytes());
        }
        bytes
    }

    /// The whole index, its root recomputed.
    pub(crate) fn decode(bytes: &[u8], blob_size: u64) -> Result<Self, Problem> {
        let (size, root) = decode_head(bytes)?;
        let leaves = bytes[HEAD_BYTES..].as_chunks::<32>();
        if size != blob_size || !leaves.1.is_empty() || leaves.0.len() as u64 != chunks(size) {
            return Err(Problem::Index);
        }
        let leaves = leaves.0.iter().map(|leaf| Sha256Digest::new(*leaf));
        let tree = ChunkTree::from_leaves(leaves.collect());
        if tree.root() == root {
            Ok(Self { size, tree })
        } else {
            Err(Problem::Index)
        }
    }
}

/// Size and root from the first [`HEAD_BYTES`] of an index.
pub(crate) fn decode_head(bytes: &[u8]) -> Result<(u64, Sha256Digest), Problem> {
    let (size, rest) = bytes.split_first_chunk::<8>().ok_or(Problem::Index)?;
    let root = rest.first_chunk::<32>().ok_or(Problem::Index)?;
    Ok((u64::from_le_bytes(*size), Sha256Digest::new(*root)))
}

/// Chunks of a blob of `size` bytes.
pub(crate) const fn chunks(size: u64) -> u64 {
    size.div_ceil(CHUNK_BYTES as u64)
}

/// Bytes of an index before its leaves.
pub(crate) const HEAD_BYTES: usize = 40;

#[cfg(test)]
mod tests {
    use tlog::ChunkHasher;

    use super::*;

    fn index(size: usize) -> ChunkIndex {
        let mut hasher = ChunkHasher::new();
        hasher.update(&vec![7; size]);
        ChunkIndex {
            size: size as u64,
            tree: hasher.finish(),
        }
    }

    #[test]
    fn an_index_is_read_back_and_any_other_bytes_are_refused() {
        for size in [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let index = index(size);
            let bytes = index.encode();
            assert_eq!(ChunkIndex::decode(&bytes, size as u64), Ok(index));
            for len in 0..bytes.len() {
                assert_eq!(
                    ChunkIndex::decode(&bytes[..len], size as u64),
                    Err(Problem::Index)
                );
            }
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                assert_eq!(
                    ChunkIndex::decode(&changed, size as u64),
                    Err(Problem::Index)
                );
            }
            assert_eq!(
                ChunkIndex::decode(&bytes, size as u64 + 1),
                Err(Problem::Index)
            );
        }
    }
}
