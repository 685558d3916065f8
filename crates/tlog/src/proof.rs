use crate::hash::{Hash, node_hash};
use crate::tree::{NodeId, cover, fold, split};

/// Why a proof cannot be made, or does not prove what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// An index that is not below the tree's size.
    #[error("entry {index} is not in a tree of {size} entries")]
    Index {
        /// The index.
        index: u64,
        /// The size.
        size: u64,
    },
    /// An old tree that is larger than the new one.
    #[error("a tree of {new} entries cannot extend one of {old}")]
    Sizes {
        /// Size of the old tree.
        old: u64,
        /// Size of the new tree.
        new: u64,
    },
    /// A proof with another number of hashes than the sizes call for.
    #[error("the proof has {found} hashes")]
    Length {
        /// How many it has.
        found: usize,
    },
    /// The hashes do not lead to the root.
    #[error("the proof leads to another root")]
    Root,
}

/// The subtrees that a proof consists of: read their hashes, then fold them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProofPlan {
    steps: Vec<Vec<NodeId>>,
}

impl ProofPlan {
    /// Every complete subtree whose hash is needed, none twice.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeId> {
        self.steps.concat()
    }

    /// The proof, from the hashes of [`ProofPlan::nodes`]; `None` when one is missing.
    pub fn hashes(&self, node: impl Fn(NodeId) -> Option<Hash>) -> Option<Vec<Hash>> {
        let step = |ids: &Vec<NodeId>| {
            let hashes: Option<Vec<Hash>> = ids.iter().map(|id| node(*id)).collect();
            fold(hashes?.into_iter())
        };
        self.steps.iter().map(step).collect()
    }
}

/// What proves that entry `index` is in the tree of `size` entries (RFC 6962, 2.1.1).
pub fn inclusion_plan(index: u64, size: u64) -> Result<ProofPlan, ProofError> {
    if index >= size {
        return Err(ProofError::Index { index, size });
    }
    let mut steps = Vec::new();
    let (mut low, mut high) = (0, size);
    while high - low > 1 {
        let middle = low + split(high - low);
        if index < middle {
            steps.push(cover(middle, high));
            high = middle;
        } else {
            steps.push(cover(low, middle));
            low = middle;
        }
    }
    steps.reverse();
    Ok(ProofPlan { steps })
}

/// What proves that the tree of `new` entries extends the tree of `old` (RFC 6962, 2.1.2). The
/// proofs from the empty tree and from a tree to itself are empty.
pub fn consistency_plan(old: u64, new: u64) -> Result<ProofPlan, ProofError> {
    if old > new {
        return Err(ProofError::Sizes { old, new });
    }
    let mut steps = Vec::new();
    if old != 0 && old != new {
        let (mut low, mut high) = (0, new);
        let mut whole = true;
        while old != high {
            let middle = low + split(high - low);
            if old <= middle {
                steps.push(cover(middle, high));
                high = middle;
            } else {
                steps.push(cover(low, middle));
                low = middle;
                whole = false;
            }
        }
        if !whole {
            steps.push(cover(low, high));
        }
        steps.reverse();
    }
    Ok(ProofPlan { steps })
}

/// Checks that the entry with hash `leaf` is number `index` of the tree with this size and root
/// (RFC 9162, 2.1.3.2).
pub fn verify_inclusion(
    leaf: &Hash,
    index: u64,
    size: u64,
    proof: &[Hash],
    root: &Hash,
) -> Result<(), ProofError> {
    if index >= size {
        return Err(ProofError::Index { index, size });
    }
    let too_long = || ProofError::Length { found: proof.len() };
    let (mut node, mut last) = (index, size - 1);
    let mut hash = *leaf;
    for sibling in proof {
        if last == 0 {
            return Err(too_long());
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(sibling, &hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(&hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(too_long());
    }
    if hash == *root {
        Ok(())
    } else {
        Err(ProofError::Root)
    }
}

/// Checks that the tree with `new` entries and root `new_root` extends the one with `old` entries
/// and root `old_root` (RFC 9162, 2.1.4.2).
pub fn verify_consistency(
    old: u64,
    new: u64,
    proof: &[Hash],
    old_root: &Hash,
    new_root: &Hash,
) -> Result<(), ProofError> {
    if old > new {
        return Err(ProofError::Sizes { old, new });
    }
    let length = || ProofError::Length { found: proof.len() };
    if old == new || old == 0 {
        if !proof.is_empty() {
            return Err(length());
        }
        let expected = if old == 0 {
            crate::empty_root()
        } else {
            *new_root
        };
        return if *old_root == expected {
            Ok(())
        } else {
            Err(ProofError::Root)
        };
    }
    let (mut node, mut last) = (old - 1, new - 1);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let mut rest = proof.iter();
    // A complete old tree is a node of the new one: its root is where the proof starts.
    let first = if old.is_power_of_two() {
        old_root
    } else {
        rest.next().ok_or_else(length)?
    };
    let (mut old_hash, mut new_hash) = (*first, *first);
    for sibling in rest {
        if last == 0 {
            return Err(length());
        }
        if node & 1 == 1 || node == last {
            old_hash = node_hash(sibling, &old_hash);
            new_hash = node_hash(sibling, &new_hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            new_hash = node_hash(&new_hash, sibling);
        }
        node >>= 1;
        last >>= 1;
    }
    if last != 0 {
        return Err(length());
    }
    if old_hash == *old_root && new_hash == *new_root {
        Ok(())
    } else {
        Err(ProofError::Root)
    }
}
