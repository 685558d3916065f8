use api::{Fault, InvalidField, ServiceError};
use checkpoint::CheckpointError;
use registry_domain::RepositoryError;
use tonic::{Code, Status};

/// Why the sealer refuses or fails a request.
#[derive(Debug, thiserror::Error)]
pub enum SealerError {
    /// The store.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A field of the request.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The source is not a folder beneath a source root.
    #[error("source: not a folder beneath a source root")]
    Source(#[source] CheckpointError),
    /// The key service has no such key.
    #[error("key: the key service has no such key")]
    NoKey,
    /// The key cannot be used.
    #[error("key: it is disabled or destroyed")]
    KeyNotActive,
    /// The key service does not answer, or not as it should.
    #[error("the key service does not answer")]
    KeyService(#[source] Box<Status>),
    /// As many jobs wait as may.
    #[error("{0} jobs wait already")]
    QueueFull(u32),
    /// A stored job is not one that this software wrote.
    #[error("the stored job is damaged")]
    Damaged,
    /// A task of this process failed.
    #[error("a task failed")]
    Task(#[from] tokio::task::JoinError),
}

impl SealerError {
    /// What the key service's answer about a key means.
    pub(crate) fn of_key_service(status: Status) -> Self {
        match status.code() {
            Code::NotFound => Self::NoKey,
            _ => Self::KeyService(Box::new(status)),
        }
    }
}

impl ServiceError for SealerError {
    fn fault(&self) -> Fault {
        match self {
            Self::Repository(error) => error.fault(),
            Self::Field(error) => error.fault(),
            Self::Source(_) => Fault::Caller,
            Self::NoKey => Fault::NotFound,
            Self::KeyNotActive => Fault::Precondition,
            Self::KeyService(_) => Fault::Unavailable,
            Self::QueueFull(_) => Fault::Exhausted,
            Self::Damaged => Fault::DataLoss,
            Self::Task(_) => Fault::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Repository(error) => error.reason(),
            Self::Field(error) => error.reason(),
            Self::Source(_) => "NO_SUCH_SOURCE",
            Self::NoKey => "KEY_NOT_FOUND",
            Self::KeyNotActive => "KEY_NOT_ACTIVE",
            Self::KeyService(_) => "KEY_SERVICE_UNAVAILABLE",
            Self::QueueFull(_) => "QUEUE_FULL",
            Self::Damaged => "JOB_DAMAGED",
            Self::Task(_) => "TASK_FAILED",
        }
    }
}
