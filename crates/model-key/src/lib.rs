//! Model keys: derivation labels, where subkeys come from, streams, permutations, orthogonal
//! matrices and key files.

mod error;
mod grant;
mod key_file;
mod label;
#[cfg(feature = "orthogonal")]
mod orthogonal;
mod permutation;
mod source;
mod stream;

pub use error::DrawError;
pub use grant::GrantedSubkeys;
pub use key_file::{
    KeyFile, KeyFileError, MAX_KEY_FILE, MIN_PASSPHRASE, OpenKeyFile, Passphrase, ScryptCost,
    SealedKeyFile, write_open_key_file, write_sealed_key_file,
};
pub use label::{
    Component, Label, LockVersion, Part, Path, Scope, ScopedSite, Site, SubkeyId, TensorId,
};
#[cfg(feature = "orthogonal")]
pub use orthogonal::{Orthogonal, gaussian, orthogonal};
pub use permutation::{
    SignedPermutation, blocks, blocks_ids, grouped, grouped_ids, inverse, pairs, pairs_ids,
    permutation, permutation_id, shuffle, signed_permutation, signed_permutation_ids,
};
pub use source::{CatalogEntry, ModelKey, Scoped, Subkey, SubkeyError, SubkeySource};
pub use stream::{
    Exponents, KeyStream, Scales, high_signs, keystream, keystream_at, scales, signs, stream,
    stream_id, turns,
};
