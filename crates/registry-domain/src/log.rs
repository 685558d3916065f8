use std::collections::HashMap;

use async_trait::async_trait;
use identifiers::{ReceiptId, Sha256Digest, SpiffeId};
use tlog::NodeId;

use crate::{ArtifactRecord, NewArtifact, RepositoryError};

/// The receipt log.
#[async_trait]
pub trait LogRepository: Send + Sync {
    /// Appends a receipt, and registers an artifact with it, in one transaction. Answers once
    /// both are durable under a signed checkpoint. The same receipt id with the same bytes, or the
    /// same artifact digest, gives what is stored.
    async fn append(&self, append: Append) -> Result<Appended, RepositoryError>;
    /// The newest checkpoint; `None` before the first append.
    async fn head(&self) -> Result<Option<LogHead>, RepositoryError>;
    /// One entry by its receipt id.
    async fn entry(&self, id: ReceiptId) -> Result<LogEntry, RepositoryError>;
    /// One entry by its index.
    async fn entry_at(&self, index: u64) -> Result<LogEntry, RepositoryError>;
    /// Entries by index, ascending from `from`, at most `limit`.
    async fn entries(
        &self,
        filter: &EntryFilter,
        from: u64,
        limit: u32,
    ) -> Result<Vec<LogEntry>, RepositoryError>;
    /// Hashes of complete subtrees, in the order asked for.
    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Sha256Digest>, RepositoryError>;
    /// Hashes of `width` complete subtrees of one level from `start`: the content of a tile.
    async fn node_run(
        &self,
        level: u8,
        start: u64,
        width: u32,
    ) -> Result<Vec<Sha256Digest>, RepositoryError>;
}

/// Signs the heads of a log, and remembers them outside the store.
pub trait CheckpointSigner: Send + Sync {
    /// The signed note over the tree of `size` entries with this root.
    fn sign(&self, size: u64, root: &Sha256Digest) -> String;

    /// Takes note of a head that is durable now, before any append it covers is answered. It may
    /// block. After an error the appends are answered as unavailable; they can be repeated.
    fn committed(&self, head: &LogHead) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}

/// What one append writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Append {
    /// The receipt.
    pub entry: NewEntry,
    /// The artifact that the receipt registers.
    pub artifact: Option<NewArtifact>,
}

/// A receipt to be appended, with the fields that lists filter by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEntry {
    /// Its id.
    pub receipt_id: ReceiptId,
    /// The DSSE envelope: the entry's bytes, at most 65,535.
    pub envelope: Vec<u8>,
    /// The event's name.
    pub event: String,
    /// Who did it.
    pub actor: SpiffeId,
    /// The artifact it names.
    pub artifact: Option<Sha256Digest>,
    /// Unix milliseconds.
    pub appended_at: i64,
}

/// The outcome of an append.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The entry in the log.
    pub entry: LogEntry,
    /// The registered artifact, if the append had one.
    pub artifact: Option<ArtifactRecord>,
    /// Whether this call wrote it.
    pub is_new: bool,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its index.
    pub index: u64,
    /// The receipt's id.
    pub receipt_id: ReceiptId,
    /// The DSSE envelope.
    pub envelope: Vec<u8>,
}

/// A signed head of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHead {
    /// Entries.
    pub size: u64,
    /// Root hash.
    pub root: Sha256Digest,
    /// The signed note.
    pub note: String,
}

/// Which entries to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Only this event.
    pub event: Option<String>,
    /// Only of this artifact.
    pub artifact: Option<Sha256Digest>,
    /// Only by this actor.
    pub actor: Option<SpiffeId>,
}

/// Why a proof was not made.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// The sizes or the index do not fit together.
    #[error("no such proof")]
    Range(#[source] tlog::ProofError),
    /// The log could not be read.
    #[error("the log could not be read")]
    Repository(#[source] RepositoryError),
}

/// The inclusion proof of an entry in the tree of `size` entries, leaf sibling first.
pub async fn inclusion_proof(
    log: &dyn LogRepository,
    index: u64,
    size: u64,
) -> Result<Vec<Sha256Digest>, ProofError> {
    let plan = tlog::inclusion_plan(index, size).map_err(ProofError::Range)?;
    fulfil(log, &plan).await
}

/// The consistency proof from the tree of `old` entries to that of `new`.
pub async fn consistency_proof(
    log: &dyn LogRepository,
    old: u64,
    new: u64,
) -> Result<Vec<Sha256Digest>, ProofError> {
    let plan = tlog::consistency_plan(old, new).map_err(ProofError::Range)?;
    fulfil(log, &plan).await
}

async fn fulfil(
    log: &dyn LogRepository,
    plan: &tlog::ProofPlan,
) -> Result<Vec<Sha256Digest>, ProofError> {
    let ids = plan.nodes();
    let hashes = log.nodes(&ids).await.map_err(ProofError::Repository)?;
    let by_id: HashMap<NodeId, Sha256Digest> = ids.into_iter().zip(hashes).collect();
    let node = |id: NodeId| by_id.get(&id).copied();
    let missing = || ProofError::Repository(RepositoryError::Damaged("log node"));
    plan.hashes(node).ok_or_else(missing)
}
