use api::{Fault, ServiceError};
use registry_domain::{ManifestError, PinError};
use tonic::{Code, Status};

/// Why a receipt could not be recorded, or an artifact not be trusted.
#[derive(Debug, thiserror::Error)]
pub enum CustodyError {
    /// The registry does not answer.
    #[error("the registry is unavailable: {0}")]
    Unavailable(String),
    /// The registry has no such artifact.
    #[error("the registry has no such artifact")]
    NoArtifact,
    /// The registry refused the call.
    #[error("the registry refused the call: {code:?}: {message}")]
    Refused {
        /// gRPC code.
        code: Code,
        /// Its message.
        message: String,
    },
    /// The registry's proof or checkpoint does not hold.
    #[error("the log cannot be trusted: {0}")]
    Proof(String),
    /// The log went back or forked since this service saw it last.
    #[error("the log cannot be trusted")]
    Pin(#[from] PinError),
    /// The artifact's manifest is not accepted.
    #[error("the artifact cannot be trusted")]
    Manifest(#[from] ManifestError),
    /// The artifact is another one than was asked for, or its receipt does not name it.
    #[error("the artifact cannot be trusted: {0}")]
    Artifact(&'static str),
    /// The receipt cannot be signed.
    #[error("the receipt cannot be made")]
    Receipt(#[from] receipt::ReceiptError),
}

impl ServiceError for CustodyError {
    fn fault(&self) -> Fault {
        match self {
            // Fail closed, but as something an operator can mend.
            Self::Unavailable(_) | Self::Proof(_) | Self::Pin(_) => Fault::Unavailable,
            Self::NoArtifact => Fault::NotFound,
            Self::Manifest(_) | Self::Artifact(_) => Fault::Denied,
            Self::Refused { .. } | Self::Receipt(_) => Fault::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Unavailable(_) => "REGISTRY_UNAVAILABLE",
            Self::Proof(_) | Self::Pin(_) => "LOG_UNTRUSTED",
            Self::NoArtifact => "ARTIFACT_NOT_FOUND",
            Self::Manifest(_) | Self::Artifact(_) => "ARTIFACT_UNTRUSTED",
            Self::Refused { .. } => "REGISTRY_REFUSED",
            Self::Receipt(_) => "RECEIPT_INVALID",
        }
    }
}

impl CustodyError {
    /// Whether trying again later can help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }
}

impl From<Status> for CustodyError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::ResourceExhausted => Self::Unavailable(api::client::explain(&status)),
            Code::NotFound => Self::NoArtifact,
            code => Self::Refused {
                code,
                message: api::client::explain(&status),
            },
        }
    }
}
