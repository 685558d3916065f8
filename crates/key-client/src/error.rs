use api::InvalidField;
use key_wrap::WrapError;
use model_key::SubkeyId;

/// Why the key service's answer is not what was asked for.
#[derive(Debug, thiserror::Error)]
pub enum KeyClientError {
    /// The key service refused, or cannot be reached.
    #[error("the key service answered: {}", api::client::explain(.0))]
    Status(#[source] Box<tonic::Status>),
    /// A field of its answer is malformed.
    #[error("the key service's answer is malformed")]
    Malformed(#[from] InvalidField),
    /// The wrapped keys do not open.
    #[error("the wrapped keys do not open")]
    Wrap(#[from] WrapError),
    /// A subkey is outside what the grant's salts allow.
    #[error("{} is of another salt than the grant's", .0.label)]
    OtherSalt(Box<SubkeyId>),
    /// The answers ended before the last batch.
    #[error("the key service ended its answers after {received} of {batches} batches")]
    Ended {
        /// Batches received.
        received: usize,
        /// Batches asked for.
        batches: usize,
    },
    /// A batch has another number of subkeys than was asked for.
    #[error("the key service answered with {found} subkeys, {expected} were asked for")]
    Count {
        /// Asked for.
        expected: usize,
        /// Given.
        found: usize,
    },
}

impl From<tonic::Status> for KeyClientError {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl KeyClientError {
    /// The status, where the key service answered with one.
    #[must_use]
    pub fn status(&self) -> Option<&tonic::Status> {
        match self {
            Self::Status(status) => Some(status),
            _ => None,
        }
    }
}
