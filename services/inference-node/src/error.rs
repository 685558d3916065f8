use api::{Fault, InvalidField, ServiceError};
use custody::CustodyError;
use direct_io::AllocError;
use engine::{ModelError, RunError};
use jlm::{JlmError, UnitId};
use key_client::KeyClientError;
use pager::{GeometryError, PageError, PagerError};
use sealed_jlm::SealedJlmError;
use text::{ChatError, TextError};
use tonic::Code;

use crate::blob::ReadError;
use crate::loaded::Closed;

/// Why the node refuses or fails.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A malformed request.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The log, or the artifact in the registry.
    #[error(transparent)]
    Custody(#[from] CustodyError),
    /// The key service does not unlock.
    #[error("the model cannot be unlocked")]
    Unlock(#[from] KeyClientError),
    /// The artifact has no container.
    #[error("the artifact is no container; only sealed containers are loaded")]
    NotContainer,
    /// Storage.
    #[error("the container cannot be read")]
    Read(#[from] ReadError),
    /// The sealed container is refused.
    #[error("the container is refused")]
    Sealed(#[from] SealedJlmError),
    /// Its metadata is refused.
    #[error("the container is refused")]
    Structure(#[from] JlmError),
    /// The container is not the one in the manifest.
    #[error("the container's {0} is not the manifest's")]
    Mismatch(&'static str),
    /// The metadata is larger than a node reads.
    #[error("the container's metadata has {0} bytes, more than a node reads")]
    MetadataTooLarge(u64),
    /// The unlock left out a unit.
    #[error("the unlock gave no key for {0}")]
    NoKey(UnitId),
    /// A container without text.
    #[error("the container has no vocabulary")]
    NoVocabulary,
    /// A vocabulary that cannot be used.
    #[error("the container's vocabulary cannot be used")]
    Vocabulary(#[source] TextError),
    /// A model that the engine does not run.
    #[error("the model cannot be run")]
    Model(#[from] ModelError),
    /// Pages that cannot be paged.
    #[error("the container's pages cannot be used")]
    Geometry(#[from] GeometryError),
    /// A budget that does not hold two pages.
    #[error("budget_bytes: {asked} bytes hold less than two pages, at least {minimum} are needed")]
    Budget {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of two pages.
        minimum: u64,
    },
    /// The pager cannot be started.
    #[error("the model's pages cannot be set up")]
    Pager(#[from] PagerError),
    /// No memory for what is always resident.
    #[error("no memory for the model's dense region")]
    Memory(#[from] AllocError),
    /// As many models as the node holds.
    #[error("{0} models are loaded, as many as this node holds; unload one first")]
    TooManyModels(usize),
    /// A model that is not loaded.
    #[error("model {0} is not loaded")]
    NotLoaded(String),
    /// A model that was closed.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// The node is stopping.
    #[error("the node is stopping")]
    Stopping,
    /// Too many sessions wait.
    #[error("as many sessions as this node allows are waiting; try again later")]
    Busy,
    /// A client that does not read.
    #[error("the tokens were left unread for {0} seconds")]
    Unread(u64),
    /// A prompt that cannot be encoded.
    #[error("prompt")]
    Prompt(#[source] TextError),
    /// A model without a chat template that can be used.
    #[error("the model takes no chat: {0}")]
    NoTemplate(String),
    /// A chat that cannot be rendered.
    #[error("chat")]
    Chat(#[from] ChatError),
    /// A run that cannot start or go on.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A session hit a fault of the engine.
    #[error("the session failed")]
    Panicked,
    /// A task of this process failed.
    #[error("a task failed")]
    Task(#[from] tokio::task::JoinError),
}

impl ServiceError for NodeError {
    fn fault(&self) -> Fault {
        match self {
            Self::Field(error) => error.fault(),
            Self::Custody(error) => error.fault(),
            Self::Unlock(error) => unlock_fault(error),
            Self::Read(error) => read_fault(error),
            Self::Sealed(SealedJlmError::Plain(_)) => Fault::Precondition,
            Self::Sealed(_) | Self::Structure(_) | Self::Mismatch(_) => Fault::DataLoss,
            Self::NotContainer
            | Self::MetadataTooLarge(_)
            | Self::NoVocabulary
            | Self::NoTemplate(_)
            | Self::Vocabulary(_)
            | Self::Model(_)
            | Self::Geometry(_) => Fault::Precondition,
            Self::NoKey(_) => Fault::Denied,
            Self::Budget { .. } | Self::Prompt(_) => Fault::Caller,
            Self::Pager(_) | Self::Panicked | Self::Task(_) => Fault::Internal,
            Self::Memory(_) | Self::TooManyModels(_) | Self::Busy => Fault::Exhausted,
            Self::NotLoaded(_) => Fault::NotFound,
            Self::Closed(closed) => match closed {
                Closed::Revoked(_) => Fault::Precondition,
                Closed::Unloaded => Fault::Cancelled,
                Closed::Stopping => Fault::Unavailable,
            },
            Self::Stopping => Fault::Unavailable,
            Self::Unread(_) => Fault::TimedOut,
            Self::Chat(error) => match error {
                ChatError::Refused { .. } | ChatError::Bound { .. } => Fault::Caller,
                _ => Fault::Precondition,
            },
            Self::Run(error) => run_fault(error),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Field(error) => error.reason(),
            Self::Custody(error) => error.reason(),
            Self::Unlock(_) => match self.fault() {
                Fault::Unavailable => "KEY_SERVICE_UNAVAILABLE",
                _ => "UNLOCK_REFUSED",
            },
            Self::Read(ReadError::NoHash(_) | ReadError::NotProven(_)) => "BLOB_NOT_PROVEN",
            Self::Read(_) => match self.fault() {
                Fault::Unavailable => "STORAGE_UNAVAILABLE",
                _ => "STORAGE_REFUSED",
            },
            Self::NotContainer => "NOT_A_CONTAINER",
            Self::Sealed(SealedJlmError::Plain(_)) => "PLAIN_CONTAINER",
            Self::Sealed(_) | Self::Structure(_) => "CONTAINER_REFUSED",
            Self::Mismatch(_) => "CONTAINER_IS_ANOTHER",
            Self::MetadataTooLarge(_) => "CONTAINER_TOO_LARGE",
            Self::NoKey(_) => "UNIT_NOT_GRANTED",
            Self::NoVocabulary | Self::Vocabulary(_) | Self::Model(_) | Self::Geometry(_) => {
                "MODEL_UNSUPPORTED"
            }
            Self::Budget { .. } => "BUDGET_TOO_SMALL",
            Self::Pager(_) => "PAGER_FAILED",
            Self::Memory(_) => "NO_MEMORY",
            Self::TooManyModels(_) => "TOO_MANY_MODELS",
            Self::NotLoaded(_) => "MODEL_NOT_LOADED",
            Self::Closed(closed) => match closed {
                Closed::Revoked(_) => "MODEL_REVOKED",
                Closed::Unloaded => "MODEL_UNLOADED",
                Closed::Stopping => "STOPPING",
            },
            Self::Stopping => "STOPPING",
            Self::Busy => "TOO_MANY_SESSIONS",
            Self::Unread(_) => "TOKENS_UNREAD",
            Self::Prompt(_) => "PROMPT_INVALID",
            Self::NoTemplate(_) => "NO_CHAT_TEMPLATE",
            Self::Chat(_) => "CHAT_INVALID",
            Self::Run(error) => run_reason(error),
            Self::Panicked => "SESSION_FAILED",
            Self::Task(_) => "TASK_FAILED",
        }
    }
}

/// Whether the key service is away, and not refusing. A bound or a fault of its own can pass.
pub(crate) fn unlock_is_transient(error: &KeyClientError) -> bool {
    error.status().is_some_and(|status| {
        matches!(
            status.code(),
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::Aborted
                | Code::ResourceExhausted
                | Code::Internal
                | Code::Unknown
        )
    })
}

fn unlock_fault(error: &KeyClientError) -> Fault {
    let Some(status) = error.status() else {
        return Fault::Internal;
    };
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Fault::Denied,
        Code::FailedPrecondition | Code::InvalidArgument => Fault::Precondition,
        Code::NotFound => Fault::NotFound,
        Code::ResourceExhausted => Fault::Exhausted,
        Code::DataLoss => Fault::DataLoss,
        _ => Fault::Unavailable,
    }
}

fn read_fault(error: &ReadError) -> Fault {
    match error {
        ReadError::Status(status) => match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => Fault::Denied,
            Code::NotFound | Code::InvalidArgument | Code::DataLoss => Fault::DataLoss,
            _ => Fault::Unavailable,
        },
        ReadError::TooMuch | ReadError::NoHash(_) | ReadError::NotProven(_) => Fault::DataLoss,
        ReadError::Short { .. } | ReadError::Stalled | ReadError::Stopped => Fault::Unavailable,
    }
}

/// The read that failed below a page, if it is known.
fn read_of(error: &PageError) -> Option<&ReadError> {
    let PageError::Read { source, .. } = error else {
        return None;
    };
    source.downcast_ref()
}

fn run_fault(error: &RunError) -> Fault {
    match error {
        RunError::EmptyPrompt
        | RunError::TokenId { .. }
        | RunError::Context { .. }
        | RunError::Sampling { .. } => Fault::Caller,
        RunError::KvBudget { .. } => Fault::Exhausted,
        RunError::Cancelled => Fault::Cancelled,
        RunError::Weights { source, .. } => match source.downcast_ref::<PageError>() {
            Some(PageError::NotAuthentic { .. }) => Fault::DataLoss,
            Some(PageError::NoKey { .. }) => Fault::Denied,
            Some(PageError::NoMemory { .. } | PageError::AllLeased { .. }) => Fault::Exhausted,
            Some(error) => read_of(error).map_or(Fault::Unavailable, read_fault),
            None => Fault::Internal,
        },
        _ => Fault::Internal,
    }
}

fn run_reason(error: &RunError) -> &'static str {
    match error {
        RunError::EmptyPrompt => "EMPTY_PROMPT",
        RunError::TokenId { .. } => "TOKEN_OUTSIDE_VOCABULARY",
        RunError::Context { .. } => "CONTEXT_TOO_SHORT",
        RunError::Sampling { .. } => "SAMPLING_INVALID",
        RunError::KvBudget { .. } => "KV_BUDGET_USED_UP",
        RunError::Cancelled => "CANCELLED",
        RunError::Weights { source, .. } => match source.downcast_ref::<PageError>() {
            Some(PageError::NotAuthentic { .. }) => "PAGE_NOT_AUTHENTIC",
            _ => "PAGE_UNAVAILABLE",
        },
        _ => "RUN_FAILED",
    }
}
