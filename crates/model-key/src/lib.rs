//! Model keys: derivation labels, where subkeys come from, streams and permutations.

mod label;
mod source;

pub use label::{Component, Label, LockVersion, Part, Path, Scope, ScopedSite, Site, SubkeyId, TensorId};
pub use source::{ModelKey, Scoped, Subkey, SubkeyError, SubkeySource};
