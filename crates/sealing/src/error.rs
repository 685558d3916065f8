use checkpoint::CheckpointError;
use identifiers::Fingerprint;
use model_key::{DrawError, SubkeyError};
use shard_identity::ManifestError;
use trusted_blob::BlobError;
use weight_lock::{LockError, RecordError};
use weight_transform::{ApplyError, PlanError};

/// Why a directory could not be sealed, opened or compared. Files are relative to the directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealingError {
    // The directory is at fault.
    /// A file could not be read or written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model is not one that can be sealed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A tensor could not be transformed.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The directory is sealed already.
    #[error("already sealed: {file} is there")]
    AlreadySealed {
        /// The file that says so.
        file: String,
    },
    /// The directory is not sealed.
    #[error("not sealed: neither kllm.json nor a kllm object in config.json is there")]
    NotSealed,
    /// The directory is sealed but not locked.
    #[error("{file}: not locked: there is no lock to take off")]
    NotLocked {
        /// The file of the seal metadata.
        file: String,
    },
    /// Seal metadata that is not what it should be.
    #[error("{file}: kllm.{field}: {problem}")]
    Metadata {
        /// The file.
        file: String,
        /// The field.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A pipeline's file is not what it should be.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// A value that the lock cannot code, or one outside its domain.
    #[error("{file}: tensor {tensor}")]
    Lock {
        /// The shard.
        file: String,
        /// The tensor.
        tensor: String,
        /// Why.
        #[source]
        source: LockError,
    },
    /// A shard's lock record was refused.
    #[error("{file}: lock record refused")]
    LockRecord {
        /// The shard.
        file: String,
        /// Why.
        #[source]
        source: RecordError,
    },
    /// A shard of a locked directory without a lock record.
    #[error("{file}: the directory is locked, but the shard has no kllm.lock record")]
    NoLockRecord {
        /// The shard.
        file: String,
    },
    /// The trusted blob was refused.
    #[error("{file}: refused")]
    Blob {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: BlobError,
    },
    /// What the trusted blob holds was refused.
    #[error("{file}: payload: {problem}")]
    Payload {
        /// The blob.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// The source's weights are not those that the job started with.
    #[error(
        "the source's weights changed: their aggregate is {found}, the job started with {expected}"
    )]
    SourceChanged {
        /// The aggregate now.
        found: identifiers::Sha256Digest,
        /// The aggregate at the start.
        expected: identifiers::Sha256Digest,
    },
    /// Shards that no manifest can list.
    #[error(transparent)]
    Manifest(#[from] ManifestError),

    // The key is at fault.
    /// The directory is sealed under another key.
    #[error("{file}: sealed under another key: {sealed}, not {given}")]
    OtherKey {
        /// The file of the seal metadata.
        file: String,
        /// The recorded fingerprint.
        sealed: Fingerprint,
        /// The key's fingerprint.
        given: Fingerprint,
    },
    /// The directory is locked and no key was given.
    #[error("{file}: locked: the copy needs the key")]
    KeyNeeded {
        /// The file of the seal metadata.
        file: String,
    },
    /// A subkey was not given.
    #[error(transparent)]
    Subkey(#[from] SubkeyError),
    /// A permutation or stream was not drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),

    // The caller is at fault.
    /// Options that the model does not take.
    #[error("{problem}")]
    Options {
        /// What is wrong.
        problem: &'static str,
    },
    /// A name that no lock stream can be derived for.
    #[error("tensor {tensor}: its name cannot be part of a key label")]
    TensorName {
        /// The tensor.
        tensor: String,
    },
    /// The work was cancelled.
    #[error("cancelled")]
    Cancelled,
}
