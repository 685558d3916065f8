use crate::hash::{Hash, empty_root, node_hash};

/// A complete subtree: the `index`th one of `2^level` leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// Height above the leaves, 0 to 63.
    pub level: u8,
    /// Position within the level.
    pub index: u64,
}

/// The right edge of a tree: the roots of its largest complete subtrees, which is all that an append
/// or the root needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

impl Frontier {
    /// The empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The subtrees whose hashes [`Frontier::from_peaks`] needs, left to right.
    #[must_use]
    pub fn peak_ids(size: u64) -> Vec<NodeId> {
        cover(0, size)
    }

    /// The tree of `size` leaves whose largest complete subtrees have these hashes, left to
    /// right. `None` when their number is not that of the size.
    #[must_use]
    pub fn from_peaks(size: u64, peaks: Vec<Hash>) -> Option<Self> {
        (peaks.len() == size.count_ones() as usize).then_some(Self { size, peaks })
    }

    /// Number of leaves.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf; gives every complete subtree that it completes, the leaf first.
    pub fn append(&mut self, leaf: Hash) -> Vec<(NodeId, Hash)> {
        let mut id = NodeId {
            level: 0,
            index: self.size,
        };
        let mut hash = leaf;
        let mut completed = vec![(id, hash)];
        while id.index & 1 == 1 {
            let left = self
                .peaks
                .pop()
                .expect("an odd position has a complete left sibling");
            hash = node_hash(&left, &hash);
            id = NodeId {
                level: id.level + 1,
                index: id.index >> 1,
            };
            completed.push((id, hash));
        }
        self.peaks.push(hash);
        self.size += 1;
        completed
    }

    /// The tree's root.
    #[must_use]
    pub fn root(&self) -> Hash {
        fold(self.peaks.iter().copied()).unwrap_or_else(empty_root)
    }
}

/// The largest complete subtrees that cover `start..end`, left to right, where `start` is a
/// multiple of a power of two not below `end - start`.
pub(crate) fn cover(start: u64, end: u64) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    let mut at = start;
    while at < end {
        let level = (end - at).ilog2();
        nodes.push(NodeId {
            level: level as u8,
            index: at >> level,
        });
        at += 1 << level;
    }
    nodes
}

/// The hash of a subtree from those of its largest complete subtrees, left to right.
pub(crate) fn fold(hashes: impl DoubleEndedIterator<Item = Hash>) -> Option<Hash> {
    hashes.rev().reduce(|right, left| node_hash(&left, &right))
}

/// Leaves in the left part of a tree of `size` leaves, at least 2: the largest power of two below it.
pub(crate) const fn split(size: u64) -> u64 {
    1 << (size - 1).ilog2()
}
