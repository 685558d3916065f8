//! Model keys: derivation labels, where subkeys come from, streams, permutations, orthogonal
//! matrices and key files.

mod error;
mod grant;
mod label;
mod permutation;
mod source;
mod stream;

pub use error::DrawError;
pub use grant::GrantedSubkeys;
pub use label::{
    Component, Label, LockVersion, Part, Path, Scope, ScopedSite, Site, SubkeyId, TensorId,
};
pub use permutation::{
    SignedPermutation, blocks, blocks_ids, grouped, grouped_ids, inverse, pairs, pairs_ids,
    permutation, permutation_id, shuffle, signed_permutation, signed_permutation_ids,
};
pub use source::{ModelKey, Scoped, Subkey, SubkeyError, SubkeySource};
pub use stream::{
    Exponents, KeyStream, Scales, high_signs, keystream, keystream_at, scales, signs, stream,
    stream_id, turns,
};
