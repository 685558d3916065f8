use api::{Fault, ServiceError};
use identifiers::SpiffeId;
use receipt::ReceiptError;
use registry_domain::{ManifestError, ProofError, RepositoryError};

/// Why the registry refuses or fails.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The store.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A manifest that is not accepted.
    #[error("the manifest is refused")]
    Manifest(#[from] ManifestError),
    /// A receipt that is not accepted.
    #[error("the receipt is refused")]
    Receipt(#[from] ReceiptError),
    /// Signed by someone other than the caller.
    #[error("it is signed by {signer}, and presented by {caller}")]
    OtherCaller {
        /// Who signed it.
        signer: SpiffeId,
        /// Who presents it.
        caller: SpiffeId,
    },
    /// A tree size or an index beyond the log.
    #[error("{field}: the log has {size} entries")]
    BeyondLog {
        /// The field.
        field: &'static str,
        /// Entries in the log.
        size: u64,
    },
    /// No such tile.
    #[error("the log has no such tile")]
    NoTile,
    /// A proof that cannot be made.
    #[error("the proof cannot be made")]
    Proof(#[source] ProofError),
    /// A receipt of this replica that cannot be signed.
    #[error("the receipt cannot be made")]
    OwnReceipt(#[source] ReceiptError),
    /// A stored entry that does not fit its tile.
    #[error("a stored entry is damaged")]
    Tile(#[from] tlog::TileError),
    /// A task of this process failed.
    #[error("a task failed")]
    Task(#[from] tokio::task::JoinError),
}

impl From<ProofError> for RegistryError {
    fn from(error: ProofError) -> Self {
        match error {
            ProofError::Repository(error) => Self::Repository(error),
            range @ ProofError::Range(_) => Self::Proof(range),
        }
    }
}

impl ServiceError for RegistryError {
    fn fault(&self) -> Fault {
        match self {
            Self::Repository(error) => error.fault(),
            Self::Manifest(_) | Self::Receipt(_) | Self::BeyondLog { .. } | Self::Proof(_) => {
                Fault::Caller
            }
            Self::OtherCaller { .. } => Fault::Denied,
            Self::NoTile => Fault::NotFound,
            Self::Tile(_) => Fault::DataLoss,
            Self::OwnReceipt(_) | Self::Task(_) => Fault::Internal,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Repository(error) => error.reason(),
            Self::Manifest(_) => "MANIFEST_REFUSED",
            Self::Receipt(_) => "RECEIPT_REFUSED",
            Self::OtherCaller { .. } => "SIGNED_BY_ANOTHER",
            Self::BeyondLog { .. } => "BEYOND_LOG",
            Self::Proof(_) => "NO_SUCH_PROOF",
            Self::NoTile => "NO_SUCH_TILE",
            Self::Tile(_) => "STORED_DATA_DAMAGED",
            Self::OwnReceipt(_) => "RECEIPT_INVALID",
            Self::Task(_) => "TASK_FAILED",
        }
    }
}
