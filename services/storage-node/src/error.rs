use api::{Fault, InvalidField, ServiceError};
use blob_store::BlobError;
use capability::Refusal;

/// Why a storage node refuses or fails.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The blobs.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// A malformed request.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// An inference node without a capability.
    #[error("capability: required to read a blob")]
    CapabilityRequired,
    /// A capability that is not good here and now.
    #[error(transparent)]
    Capability(#[from] Refusal),
    /// A capability that was minted for another node.
    #[error("the capability was minted for another node")]
    OtherSubject,
    /// A capability for other blobs.
    #[error("the capability does not name this blob")]
    BlobNotNamed,
    /// The capability ended while the blob was being read.
    #[error("the capability expired during the read")]
    ExpiredDuringRead,
    /// A bound is reached.
    #[error("as many {0} as this node allows are under way; try again later")]
    Busy(&'static str),
    /// An upload that ended in the middle.
    #[error("the upload broke off")]
    Broken(#[source] Box<tonic::Status>),
    /// An upload that paused for too long.
    #[error("the upload paused for more than {seconds} seconds")]
    Stalled {
        /// The longest pause.
        seconds: u64,
    },
}

impl ServiceError for StorageError {
    fn fault(&self) -> Fault {
        match self {
            Self::Blob(error) => blob_fault(error),
            Self::Field(error) => error.fault(),
            Self::CapabilityRequired | Self::ExpiredDuringRead => Fault::Unauthenticated,
            Self::Capability(refusal) => match refusal {
                Refusal::WrongCertificate | Refusal::WrongIssuer(_) => Fault::Denied,
                _ => Fault::Unauthenticated,
            },
            Self::OtherSubject | Self::BlobNotNamed => Fault::Denied,
            Self::Busy(_) => Fault::Exhausted,
            Self::Broken(_) => Fault::Cancelled,
            Self::Stalled { .. } => Fault::TimedOut,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Blob(error) => blob_reason(error),
            Self::Field(error) => error.reason(),
            Self::CapabilityRequired => "CAPABILITY_REQUIRED",
            Self::Capability(refusal) => match refusal {
                Refusal::Malformed { .. } | Refusal::Claims(_) => "CAPABILITY_MALFORMED",
                Refusal::UnknownKey => "CAPABILITY_KEY_UNKNOWN",
                Refusal::BadSignature => "CAPABILITY_SIGNATURE_WRONG",
                Refusal::WrongIssuer(_) => "CAPABILITY_OF_OTHER_ISSUER",
                Refusal::WrongCertificate => "CAPABILITY_OF_OTHER_CERTIFICATE",
                Refusal::NotYetValid { .. } => "CAPABILITY_NOT_YET_VALID",
                Refusal::Expired { .. } => "CAPABILITY_EXPIRED",
            },
            Self::ExpiredDuringRead => "CAPABILITY_EXPIRED",
            Self::OtherSubject => "CAPABILITY_OF_OTHER_NODE",
            Self::BlobNotNamed => "CAPABILITY_OF_OTHER_BLOB",
            Self::Busy(_) => "TOO_MANY_TRANSFERS",
            Self::Broken(_) => "UPLOAD_BROKEN",
            Self::Stalled { .. } => "UPLOAD_STALLED",
        }
    }
}

impl From<StorageError> for tonic::Status {
    fn from(error: StorageError) -> Self {
        api::to_status(error)
    }
}

fn blob_fault(error: &BlobError) -> Fault {
    match error {
        BlobError::NotFound { .. } => Fault::NotFound,
        BlobError::OutOfRange { .. }
        | BlobError::DigestMismatch { .. }
        | BlobError::Length { .. }
        | BlobError::TooLarge { .. } => Fault::Caller,
        BlobError::Upload { source, .. } => match source.downcast_ref::<StorageError>() {
            Some(cause) => cause.fault(),
            None => Fault::Cancelled,
        },
        BlobError::NoSpace { .. } => Fault::Exhausted,
        BlobError::Damaged { .. } => Fault::DataLoss,
        BlobError::Cancelled => Fault::Unavailable,
        _ => Fault::Internal,
    }
}

fn blob_reason(error: &BlobError) -> &'static str {
    match error {
        BlobError::NotFound { .. } => "BLOB_NOT_FOUND",
        BlobError::OutOfRange { .. } => "RANGE_OUTSIDE_BLOB",
        BlobError::DigestMismatch { .. } => "DIGEST_MISMATCH",
        BlobError::Length { .. } => "LENGTH_MISMATCH",
        BlobError::TooLarge { .. } => "BLOB_TOO_LARGE",
        BlobError::Upload { source, .. } => match source.downcast_ref::<StorageError>() {
            Some(cause) => cause.reason(),
            None => "UPLOAD_BROKEN",
        },
        BlobError::NoSpace { .. } => "NO_SPACE",
        BlobError::Damaged { .. } => "BLOB_DAMAGED",
        BlobError::Cancelled => "STOPPING",
        _ => "STORE_FAILED",
    }
}
