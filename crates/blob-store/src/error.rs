use std::error::Error;
use std::io;

use identifiers::Sha256Digest;

use crate::Problem;

/// A failed operation on a blob.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    // The caller is at fault.
    /// No such blob.
    #[error("{digest}: no such blob")]
    NotFound {
        /// The blob.
        digest: Sha256Digest,
    },
    /// The range does not lie in the blob.
    #[error("{digest}: {length} bytes at {offset} end beyond the blob of {size} bytes")]
    OutOfRange {
        /// The blob.
        digest: Sha256Digest,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Size of the blob in bytes.
        size: u64,
    },
    /// The uploaded bytes have another digest than was announced.
    #[error("the upload hashes to {found}, not to {expected}")]
    DigestMismatch {
        /// What was announced.
        expected: Sha256Digest,
        /// What arrived.
        found: Sha256Digest,
    },
    /// The upload has another length than was announced.
    #[error("{digest}: the upload has {found} bytes or more, {expected} were announced")]
    Length {
        /// The announced digest.
        digest: Sha256Digest,
        /// Bytes announced.
        expected: u64,
        /// Bytes that arrived.
        found: u64,
    },
    /// The blob is larger than the store accepts.
    #[error("{digest}: {size} bytes, the limit is {limit}")]
    TooLarge {
        /// The blob.
        digest: Sha256Digest,
        /// Bytes announced.
        size: u64,
        /// Most bytes of a blob.
        limit: u64,
    },
    /// The upload broke off.
    #[error("{digest}: the upload broke off")]
    Upload {
        /// The announced digest.
        digest: Sha256Digest,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },

    // The store is at fault.
    /// The store is full; nothing of the upload is kept.
    #[error("{digest}: no space left for {size} bytes")]
    NoSpace {
        /// The blob.
        digest: Sha256Digest,
        /// Bytes announced.
        size: u64,
    },
    /// What is stored is not what was put.
    #[error("{digest}: damaged: {problem}")]
    Damaged {
        /// The blob.
        digest: Sha256Digest,
        /// What is wrong.
        problem: Problem,
    },
    /// The store failed.
    #[error("{action} failed")]
    Store {
        /// What was being done.
        action: &'static str,
        /// What the store said.
        #[source]
        source: object_store::Error,
    },
    /// The local folder failed.
    #[error("{action} failed")]
    Io {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The runtime ended while a blocking part of the work was under way.
    #[error("the work was cancelled")]
    Cancelled,
}

impl BlobError {
    /// For `map_err`: a failed store, with "full" told apart.
    pub(crate) fn store(
        action: &'static str,
        digest: Sha256Digest,
        size: u64,
    ) -> impl Fn(object_store::Error) -> Self {
        move |source| match &source {
            object_store::Error::NotFound { .. } => Self::NotFound { digest },
            _ if is_full(&source) => Self::NoSpace { digest, size },
            _ => Self::Store { action, source },
        }
    }
}

/// Whether a full disk or an exceeded quota is anywhere in the chain of causes.
fn is_full(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && matches!(
                io.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            )
        {
            return true;
        }
        cause = error.source();
    }
    false
}
