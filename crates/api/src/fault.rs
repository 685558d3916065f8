use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use workload_identity::Denied;

/// Who or what is at fault: it decides a status's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The request itself is wrong: `INVALID_ARGUMENT`.
    Caller,
    /// The request is right but not in this state: `FAILED_PRECONDITION`.
    Precondition,
    /// What it names does not exist: `NOT_FOUND`.
    NotFound,
    /// It contradicts what exists already: `ALREADY_EXISTS`.
    Conflict,
    /// The caller may not: `PERMISSION_DENIED`.
    Denied,
    /// The caller did not show who it is, or what it showed has ended: `UNAUTHENTICATED`.
    Unauthenticated,
    /// A bound is reached: `RESOURCE_EXHAUSTED`.
    Exhausted,
    /// Something this service needs is away; trying again can help: `UNAVAILABLE`.
    Unavailable,
    /// It took too long: `DEADLINE_EXCEEDED`.
    TimedOut,
    /// It was cancelled: `CANCELLED`.
    Cancelled,
    /// What is stored is damaged: `DATA_LOSS`.
    DataLoss,
    /// This service is at fault: `INTERNAL`, with an incident id and no detail.
    Internal,
}

impl Fault {
    /// The gRPC code.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::Caller => Code::InvalidArgument,
            Self::Precondition => Code::FailedPrecondition,
            Self::NotFound => Code::NotFound,
            Self::Conflict => Code::AlreadyExists,
            Self::Denied => Code::PermissionDenied,
            Self::Unauthenticated => Code::Unauthenticated,
            Self::Exhausted => Code::ResourceExhausted,
            Self::Unavailable => Code::Unavailable,
            Self::TimedOut => Code::DeadlineExceeded,
            Self::Cancelled => Code::Cancelled,
            Self::DataLoss => Code::DataLoss,
            Self::Internal => Code::Internal,
        }
    }

    /// Whether the causes of the error are the caller's business too.
    const fn shows_causes(self) -> bool {
        matches!(
            self,
            Self::Caller
                | Self::Precondition
                | Self::NotFound
                | Self::Conflict
                | Self::Denied
                | Self::Unauthenticated
        )
    }
}

/// An error that a service answers with.
pub trait ServiceError: Error {
    /// Who is at fault.
    fn fault(&self) -> Fault;

    /// A stable word for programs, in upper case: `KEY_DISABLED`.
    fn reason(&self) -> &'static str;
}

impl ServiceError for Denied {
    fn fault(&self) -> Fault {
        match self {
            Self::Expired => Fault::Unauthenticated,
            Self::UnknownMethod | Self::Role(_) | Self::Name | Self::DenyList => Fault::Denied,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Expired => "CERTIFICATE_EXPIRED",
            Self::UnknownMethod => "METHOD_NOT_LISTED",
            Self::Role(_) => "ROLE_NOT_ALLOWED",
            Self::Name => "CALLER_NOT_ALLOWED",
            Self::DenyList => "CALLER_DENIED",
        }
    }
}

/// The one way from an error to a status.
///
/// The message is the error and, where the caller can do something about it, its causes. An
/// internal error is logged under an incident id, and the id is all that the caller sees.
pub fn to_status(error: impl ServiceError) -> Status {
    let (fault, reason) = (error.fault(), error.reason());
    let message = match fault {
        Fault::Internal => {
            let incident = next_incident();
            tracing::error!(incident, reason, error = chain(&error), "internal error");
            format!("internal error, incident {incident}")
        }
        _ if fault.shows_causes() => chain(&error),
        _ => {
            tracing::warn!(reason, code = ?fault.code(), error = chain(&error), "request failed");
            error.to_string()
        }
    };
    let mut status = Status::new(fault.code(), message);
    status
        .metadata_mut()
        .insert(REASON, MetadataValue::from_static(reason));
    status
}

/// The stable reason that [`to_status`] put into a status.
#[must_use]
pub fn reason(status: &Status) -> Option<&str> {
    status.metadata().get(REASON)?.to_str().ok()
}

/// Makes incident ids of this process differ from those of others.
pub fn seed_incidents(seed: u64) {
    INCIDENTS.store(seed, Ordering::Relaxed);
}

/// The error and its sources, one sentence; what the sentence says already is left out.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        // A status prints its code and metadata too; its message is what it says.
        let boxed = || source.downcast_ref::<Box<Status>>().map(|status| &**status);
        let status = source.downcast_ref::<Status>().or_else(boxed);
        let cause = status.map_or_else(|| source.to_string(), |status| status.message().to_owned());
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        next = source.source();
    }
    text
}

fn next_incident() -> String {
    let count = INCIDENTS.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}", mix(count))
}

/// The finaliser of SplitMix64: different counts give different, unlike ids.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The metadata key of the stable reason.
pub const REASON: &str = "chancery-reason";

static INCIDENTS: AtomicU64 = AtomicU64::new(0);

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the key cannot be read")]
    struct Sample {
        fault: Fault,
        source: std::fmt::Error,
    }

    impl ServiceError for Sample {
        fn fault(&self) -> Fault {
            self.fault
        }

        fn reason(&self) -> &'static str {
            "SAMPLE"
        }
    }

    fn sample(fault: Fault) -> Status {
        to_status(Sample {
            fault,
            source: std::fmt::Error,
        })
    }

    #[test]
    fn every_fault_has_its_own_code_and_keeps_the_reason() {
        let faults = [
            Fault::Caller,
            Fault::Precondition,
            Fault::NotFound,
            Fault::Conflict,
            Fault::Denied,
            Fault::Unauthenticated,
            Fault::Exhausted,
            Fault::Unavailable,
            Fault::TimedOut,
            Fault::Cancelled,
            Fault::DataLoss,
            Fault::Internal,
        ];
        let codes: std::collections::HashSet<i32> = faults
            .into_iter()
            .map(|fault| {
                let status = sample(fault);
                assert_eq!(reason(&status), Some("SAMPLE"));
                status.code() as i32
            })
            .collect();
        assert_eq!(codes.len(), faults.len());
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the peer answered: {}", .0.message())]
    struct Answered(#[source] Box<Status>);

    #[test]
    fn a_peers_status_is_said_once() {
        let answered = Answered(Box::new(Status::permission_denied("not today")));
        assert_eq!(chain(&answered), "the peer answered: not today");
    }

    #[test]
    fn a_caller_sees_causes_and_an_internal_error_only_its_incident() {
        let shown = sample(Fault::Precondition);
        assert_eq!(
            shown.message(),
            format!("the key cannot be read: {}", std::fmt::Error)
        );
        let first = sample(Fault::Internal);
        let second = sample(Fault::Internal);
        assert!(first.message().starts_with("internal error, incident "));
        assert_ne!(first.message(), second.message());
        assert_eq!(
            sample(Fault::Unavailable).message(),
            "the key cannot be read"
        );
    }
}
