//! Errors of the repositories as faults, the same for every service that has a database.

use registry_domain::{Conflict, RepositoryError};

use crate::fault::{Fault, ServiceError};

impl ServiceError for RepositoryError {
    fn fault(&self) -> Fault {
        match self {
            Self::NotFound(_) => Fault::NotFound,
            Self::Conflict(conflict) => match conflict {
                Conflict::KeyServesAnotherSource { .. } | Conflict::State { .. } => {
                    Fault::Precondition
                }
                Conflict::NameTaken(_)
                | Conflict::RequestReused
                | Conflict::ReceiptReused
                | Conflict::OtherContent(_) => Fault::Conflict,
            },
            Self::FencedOff => Fault::Precondition,
            Self::QuotaExceeded { .. } | Self::Busy => Fault::Exhausted,
            Self::Unavailable(_) => Fault::Unavailable,
            Self::Damaged(_) => Fault::DataLoss,
            Self::Internal(_) => Fault::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "NOT_FOUND",
            Self::Conflict(conflict) => match conflict {
                Conflict::NameTaken(_) => "NAME_TAKEN",
                Conflict::RequestReused => "REQUEST_ID_REUSED",
                Conflict::KeyServesAnotherSource { .. } => "KEY_SERVES_ANOTHER_SOURCE",
                Conflict::State { .. } => "WRONG_STATE",
                Conflict::ReceiptReused => "RECEIPT_ID_REUSED",
                Conflict::OtherContent(_) => "OTHER_CONTENT",
            },
            Self::FencedOff => "FENCED_OFF",
            Self::QuotaExceeded { .. } => "QUOTA_EXCEEDED",
            Self::Busy => "BUSY",
            Self::Unavailable(_) => "DATABASE_UNAVAILABLE",
            Self::Damaged(_) => "STORED_DATA_DAMAGED",
            Self::Internal(_) => "DATABASE_REFUSED",
        }
    }
}
