//! Why an attempt at a job did not succeed, and what follows from it.

use std::error::Error;
use std::io;

use api::client::{explain, is_transient};
use checkpoint::CheckpointError;
use convert::ConvertError;
use custody::CustodyError;
use key_client::KeyClientError;
use registry_domain::{Conflict, JobFailure, ManifestError, RepositoryError};
use sealed_jlm::SealedJlmError;
use sealing::SealingError;
use tonic::{Code, Status};

/// How an attempt ended that did not succeed.
#[derive(Debug)]
pub enum JobError {
    /// The job has failed: another attempt would end the same way.
    Failed(JobFailure),
    /// Something that the job needs is away: it is tried again.
    Passing(String),
    /// The work was asked to stop.
    Stopped,
}

impl JobError {
    /// A failure with a stable reason.
    pub fn refused(reason: &str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        Self::Failed(JobFailure {
            reason: reason.to_owned(),
            message,
        })
    }

    /// What the key service answered.
    pub fn of_key_service(status: &Status) -> Self {
        match api::reason(status) {
            // A later lease of the job opened the grant.
            Some("FENCED_OFF") => Self::Stopped,
            Some("GRANT_EXPIRED") => Self::Passing("the seal grant expired".to_owned()),
            _ => Self::of_status("key-refused", "key service", status),
        }
    }

    /// What storage answered.
    pub fn of_storage(status: &Status) -> Self {
        match api::reason(status) {
            Some("NO_SPACE") => Self::refused("no-space", format!("storage: {}", explain(status))),
            _ => Self::of_status("storage-refused", "storage", status),
        }
    }

    /// What the registry answered.
    pub fn of_registry(status: &Status) -> Self {
        Self::of_status("registry-refused", "registry", status)
    }

    fn of_status(reason: &str, service: &str, status: &Status) -> Self {
        let message = format!("{service}: {}", explain(status));
        if is_passing(status) {
            Self::Passing(message)
        } else {
            Self::refused(reason, message)
        }
    }
}

/// Whether trying again later can help. A certificate that is not accepted can be mended by an
/// operator, and the job is not lost meanwhile.
fn is_passing(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Cancelled
            | Code::Aborted
            | Code::Unauthenticated
    ) || is_transient(status)
}

impl From<RepositoryError> for JobError {
    fn from(error: RepositoryError) -> Self {
        match &error {
            RepositoryError::Unavailable(_) | RepositoryError::Busy => Self::Passing(chain(&error)),
            RepositoryError::FencedOff
            | RepositoryError::Conflict(Conflict::State { .. })
            | RepositoryError::NotFound(_) => Self::Stopped,
            RepositoryError::Conflict(Conflict::OtherContent(_)) => {
                Self::refused("output-differs", chain(&error))
            }
            _ => Self::refused("state-damaged", chain(&error)),
        }
    }
}

impl From<SealingError> for JobError {
    fn from(error: SealingError) -> Self {
        let message = chain(&error);
        match error {
            SealingError::Cancelled => Self::Stopped,
            SealingError::Checkpoint(error) => error.into(),
            SealingError::SourceChanged { .. } => Self::refused("source-changed", message),
            SealingError::OtherKey { .. } | SealingError::Subkey(_) | SealingError::Draw(_) => {
                Self::refused("key-refused", message)
            }
            SealingError::Options { .. } => Self::refused("options-refused", message),
            _ => Self::refused("source-refused", message),
        }
    }
}

impl From<CheckpointError> for JobError {
    fn from(error: CheckpointError) -> Self {
        let message = chain(&error);
        match error {
            CheckpointError::NoSpace { .. } => Self::refused("no-space", message),
            CheckpointError::Io { source, .. } if is_no_space(&source) => {
                Self::refused("no-space", message)
            }
            // An earlier attempt in this process has not let go of its folder yet.
            CheckpointError::Exists { .. } => Self::Passing(message),
            _ => Self::refused("source-refused", message),
        }
    }
}

impl From<ConvertError> for JobError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Source(error) => error.into(),
            error => Self::refused("container-refused", chain(&error)),
        }
    }
}

impl From<SealedJlmError> for JobError {
    fn from(error: SealedJlmError) -> Self {
        Self::refused("container-refused", chain(&error))
    }
}

impl From<model_key::SubkeyError> for JobError {
    fn from(error: model_key::SubkeyError) -> Self {
        Self::refused("key-refused", error.to_string())
    }
}

impl From<KeyClientError> for JobError {
    fn from(error: KeyClientError) -> Self {
        match error.status() {
            Some(status) => Self::of_key_service(status),
            None => match error {
                KeyClientError::Ended { .. } => Self::Passing(error.to_string()),
                error => Self::refused("key-refused", chain(&error)),
            },
        }
    }
}

impl From<CustodyError> for JobError {
    fn from(error: CustodyError) -> Self {
        match error {
            // A log that cannot be trusted stops everything until an operator mends it.
            CustodyError::Unavailable(_) | CustodyError::Proof(_) | CustodyError::Pin(_) => {
                Self::Passing(chain(&error))
            }
            error => Self::refused("registry-refused", chain(&error)),
        }
    }
}

impl From<ManifestError> for JobError {
    fn from(error: ManifestError) -> Self {
        Self::refused("manifest-refused", chain(&error))
    }
}

impl From<io::Error> for JobError {
    fn from(error: io::Error) -> Self {
        let reason = if is_no_space(&error) {
            "no-space"
        } else {
            "work-folder-failed"
        };
        Self::refused(reason, error.to_string())
    }
}

/// A panic in a task, or a runtime that stops.
impl From<tokio::task::JoinError> for JobError {
    fn from(error: tokio::task::JoinError) -> Self {
        if error.is_cancelled() {
            Self::Stopped
        } else {
            tracing::error!(%error, "a task of a job failed");
            Self::refused("sealer-failed", "a task of the sealer failed")
        }
    }
}

fn is_no_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// An error and its causes as one sentence.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

const MAX_MESSAGE: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(error: JobError) -> Option<String> {
        match error {
            JobError::Failed(failure) => Some(failure.reason),
            JobError::Passing(_) | JobError::Stopped => None,
        }
    }

    #[test]
    fn what_is_away_passes_and_what_is_refused_does_not() {
        let away = [
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::ResourceExhausted,
        ];
        for code in away {
            let error = JobError::of_storage(&Status::new(code, "away"));
            assert!(matches!(error, JobError::Passing(_)), "{code:?}");
        }
        let refused = Status::failed_precondition("another source");
        let of_key = JobError::of_key_service(&refused);
        assert_eq!(reason(of_key).as_deref(), Some("key-refused"));
        let of_registry = JobError::of_registry(&refused);
        assert_eq!(reason(of_registry).as_deref(), Some("registry-refused"));
    }

    #[test]
    fn failures_have_stable_reasons() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(reason(full().into()).as_deref(), Some("no-space"));
        let written = CheckpointError::Io {
            file: "a".to_owned(),
            action: "write",
            source: full(),
        };
        assert_eq!(reason(written.into()).as_deref(), Some("no-space"));
        let changed = SealingError::SourceChanged {
            found: identifiers::Sha256Digest::new([1; 32]),
            expected: identifiers::Sha256Digest::new([2; 32]),
        };
        assert_eq!(reason(changed.into()).as_deref(), Some("source-changed"));
        assert!(matches!(
            JobError::from(SealingError::Cancelled),
            JobError::Stopped
        ));
        assert!(matches!(
            JobError::from(RepositoryError::FencedOff),
            JobError::Stopped
        ));
    }
}
