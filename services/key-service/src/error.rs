use api::{Fault, ServiceError};
use custody::CustodyError;
use key_wrap::{EnvelopeError, WrapError};
use registry_domain::{GrantRefusal, KeyState, RepositoryError};

use crate::scope::OutOfScope;

/// Why the key service refuses or fails.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The store.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// The log, or an artifact in the registry.
    #[error(transparent)]
    Custody(#[from] CustodyError),
    /// A wrapped model key does not open.
    #[error("a stored model key does not open")]
    Envelope(#[from] EnvelopeError),
    /// Keys cannot be wrapped to, or opened from, a caller.
    #[error("the keys cannot be wrapped or opened")]
    Wrap(#[from] WrapError),
    /// An import for an import key that is not this service's.
    #[error("import_key_id: not this key service's import key")]
    ImportKey,
    /// The key is not active.
    #[error("the key is {}", .0.as_str())]
    KeyNotActive(KeyState),
    /// The grant gives nothing.
    #[error(transparent)]
    Grant(#[from] GrantRefusal),
    /// A subkey outside the grant.
    #[error("subkey {index}: {refusal}")]
    OutOfScope {
        /// Its place in the request.
        index: usize,
        /// Why.
        refusal: OutOfScope,
    },
    /// The policy says no.
    #[error("denied: {0}")]
    Denied(String),
    /// The artifact cannot be unlocked at all.
    #[error("the artifact cannot be unlocked: {0}")]
    NotUnlockable(&'static str),
    /// The caller asks for units that the artifact does not have.
    #[error("units: the artifact has no such units in region {0}")]
    Units(u8),
    /// More units than one answer holds.
    #[error("units: {0} units wanted, one request unlocks at most {max}", max = key_wrap::MAX_SUBKEYS)]
    TooManyUnits(u64),
    /// A repeated request whose capability has ended.
    #[error("the capability of this request id has expired; use a new request id")]
    RequestExpired,
    /// The claims cannot be minted.
    #[error("the capability cannot be minted")]
    Claims(#[from] capability::ClaimsError),
    /// A task of this process failed.
    #[error("a task failed")]
    Task(#[from] tokio::task::JoinError),
}

impl ServiceError for KeyError {
    fn fault(&self) -> Fault {
        match self {
            Self::Repository(error) => error.fault(),
            Self::Custody(error) => error.fault(),
            Self::Envelope(_) => Fault::DataLoss,
            Self::Wrap(_) | Self::ImportKey | Self::Units(_) | Self::TooManyUnits(_) => {
                Fault::Caller
            }
            Self::KeyNotActive(_) | Self::NotUnlockable(_) | Self::RequestExpired => {
                Fault::Precondition
            }
            Self::Grant(refusal) => match refusal {
                GrantRefusal::OtherHolder => Fault::Denied,
                _ => Fault::Precondition,
            },
            Self::OutOfScope { .. } | Self::Denied(_) => Fault::Denied,
            Self::Claims(_) | Self::Task(_) => Fault::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Repository(error) => error.reason(),
            Self::Custody(error) => error.reason(),
            Self::Envelope(_) => "KEY_DAMAGED",
            Self::Wrap(_) => "WRAP_FAILED",
            Self::ImportKey => "UNKNOWN_IMPORT_KEY",
            Self::KeyNotActive(_) => "KEY_NOT_ACTIVE",
            Self::Grant(refusal) => match refusal {
                GrantRefusal::OtherHolder => "GRANT_OF_ANOTHER",
                GrantRefusal::FencedOff => "FENCED_OFF",
                GrantRefusal::Closed => "GRANT_CLOSED",
                GrantRefusal::Expired => "GRANT_EXPIRED",
                GrantRefusal::KeyNotActive(_) => "KEY_NOT_ACTIVE",
            },
            Self::OutOfScope { .. } => "OUT_OF_SCOPE",
            Self::Denied(_) => "POLICY_DENIED",
            Self::NotUnlockable(_) => "NOT_UNLOCKABLE",
            Self::Units(_) => "NO_SUCH_UNITS",
            Self::TooManyUnits(_) => "TOO_MANY_UNITS",
            Self::RequestExpired => "REQUEST_EXPIRED",
            Self::Claims(_) => "CLAIMS_INVALID",
            Self::Task(_) => "TASK_FAILED",
        }
    }
}
