use sha2::{Digest as _, Sha256};

/// A hash of the tree: SHA-256.
pub type Hash = identifiers::Sha256Digest;

/// The hash of an entry (RFC 6962, section 2.1).
#[must_use]
pub fn leaf_hash(entry: &[u8]) -> Hash {
    let mut hasher = leaf_hasher();
    hasher.update(entry);
    Hash::new(hasher.finalize().into())
}

/// The hash of an inner node (RFC 6962, section 2.1).
#[must_use]
pub fn node_hash(left: &Hash, right: &Hash) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([1]);
    hasher.update(left.as_bytes());
    hasher.update(right.as_bytes());
    Hash::new(hasher.finalize().into())
}

/// The root of the tree without entries.
#[must_use]
pub fn empty_root() -> Hash {
    Hash::new(Sha256::digest([]).into())
}

/// A hasher that has taken the leaf prefix.
pub(crate) fn leaf_hasher() -> Sha256 {
    let mut hasher = Sha256::new();
    hasher.update([0]);
    hasher
}
