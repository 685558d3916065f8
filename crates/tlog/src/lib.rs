//! The RFC 6962 log: tree, proofs, tiles, checkpoints, fsck.
