use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use identifiers::ReceiptId;
use registry_domain::{
    Append, Appended, ArtifactRecord, CheckpointSigner, Conflict, LogEntry, LogHead, NewEntry,
    RepositoryError,
};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::types::Uuid;
use tlog::{Frontier, Hash, NodeId, leaf_hash};
use tokio::sync::mpsc;

use super::{NODE, RECEIPT, Waiting, entry, head, nodes};
use crate::artifacts;
use crate::error::classify;
use crate::row::signed;

/// Takes waiting appends in batches; each batch is one transaction.
pub(super) struct Appender {
    pool: PgPool,
    signer: Arc<dyn CheckpointSigner>,
    /// The tree as of the last transaction seen here.
    frontier: Frontier,
}

type Outcome = Result<Appended, RepositoryError>;

/// What a batch adds to the log.
struct Batch {
    frontier: Frontier,
    nodes: Vec<(NodeId, Hash)>,
    /// Not written yet.
    entries: Vec<(u64, NewEntry)>,
    /// Entries with the batch's receipt ids, stored before or added by it.
    by_id: HashMap<ReceiptId, LogEntry>,
}

impl Appender {
    pub(super) fn new(pool: PgPool, signer: Arc<dyn CheckpointSigner>) -> Self {
        let frontier = Frontier::new();
        Self {
            pool,
            signer,
            frontier,
        }
    }

    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Waiting>, batch: usize) {
        let mut waiting = Vec::with_capacity(batch);
        while queue.recv_many(&mut waiting, batch).await > 0 {
            let (appends, answers): (Vec<Append>, Vec<_>) = waiting
                .drain(..)
                .map(|one| (one.append, one.answer))
                .unzip();
            let outcomes = match self.commit(&appends).await {
                Ok(outcomes) => outcomes,
                Err(error) => share(error, appends.len()),
            };
            for (answer, outcome) in answers.into_iter().zip(outcomes) {
                // A caller that went away finds its entry by repeating the append.
                let _ = answer.send(outcome);
            }
        }
    }

    async fn commit(&mut self, appends: &[Append]) -> Result<Vec<Outcome>, RepositoryError> {
        let mut transaction = self.pool.begin().await.map_err(classify)?;
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind(APPENDER_LOCK)
            .execute(&mut *transaction)
            .await
            .map_err(classify)?;
        let head = head(&mut transaction).await?;
        let frontier = self.frontier_at(&mut transaction, head.as_ref()).await?;
        let mut batch = Batch {
            frontier,
            nodes: Vec::new(),
            entries: Vec::new(),
            by_id: known(&mut transaction, appends).await?,
        };
        let mut outcomes = Vec::with_capacity(appends.len());
        for append in appends {
            match batch.add(&mut transaction, append).await {
                Err(error @ (RepositoryError::Unavailable(_) | RepositoryError::Internal(_))) => {
                    return Err(error);
                }
                outcome => outcomes.push(outcome),
            }
        }
        let committed = if batch.frontier.size() == head.as_ref().map_or(0, |head| head.size) {
            head
        } else {
            let root = batch.frontier.root();
            let size = batch.frontier.size();
            let note = self.signer.sign(size, &root);
            let head = LogHead { size, root, note };
            batch.flush(&mut transaction).await?;
            batch.write_tree(&mut transaction, &head).await?;
            transaction.commit().await.map_err(classify)?;
            self.frontier = batch.frontier;
            Some(head)
        };
        if let Some(head) = committed {
            let signer = Arc::clone(&self.signer);
            let noted = tokio::task::spawn_blocking(move || signer.committed(&head)).await;
            noted
                .map_err(|error| RepositoryError::Internal(Box::new(error)))?
                .map_err(RepositoryError::Unavailable)?;
        }
        Ok(outcomes)
    }

    /// The tree of the stored head: the one held here unless another process appended meanwhile.
    async fn frontier_at(
        &self,
        connection: &mut PgConnection,
        head: Option<&LogHead>,
    ) -> Result<Frontier, RepositoryError> {
        let found = head.map_or(0, |head| head.size);
        if found < self.frontier.size() {
            return Err(RepositoryError::Damaged("log, which went back"));
        }
        let Some(head) = head else {
            return Ok(Frontier::new());
        };
        if self.frontier.size() == head.size && self.frontier.root() == head.root {
            return Ok(self.frontier.clone());
        }
        let peaks = nodes(connection, &Frontier::peak_ids(head.size)).await?;
        let frontier = Frontier::from_peaks(head.size, peaks);
        // Never sign over a tree that does not lead to the head signed before.
        let intact = frontier.filter(|frontier| frontier.root() == head.root);
        intact.ok_or(RepositoryError::Damaged(NODE))
    }
}

impl Batch {
    async fn add(&mut self, connection: &mut PgConnection, append: &Append) -> Outcome {
        if append.entry.envelope.is_empty() || append.entry.envelope.len() > tlog::MAX_ENTRY_BYTES {
            return Err(Conflict::OtherContent("receipt of at most 65535 bytes").into());
        }
        if let Some(artifact) = &append.artifact
            && let Some(found) = artifacts::by_digest(connection, &artifact.digest).await?
        {
            let entry = self.entry_of(connection, found.receipt_id).await?;
            return Ok(appended(entry, Some(found), false));
        }
        let id = append.entry.receipt_id;
        if let Some(entry) = self.by_id.get(&id) {
            // An artifact that is there was answered above: the receipt is not its own.
            if entry.envelope != append.entry.envelope || append.artifact.is_some() {
                return Err(Conflict::ReceiptReused.into());
            }
            return Ok(appended(entry.clone(), None, false));
        }
        if let Some(artifact) = &append.artifact {
            artifacts::admit(connection, artifact).await?;
        }
        let entry = self.push(&append.entry);
        if append.artifact.is_some() {
            // The artifact refers to its receipt, and later appends of the batch may repeat it.
            self.flush(connection).await?;
        }
        let mut registered = None;
        if let Some(artifact) = &append.artifact {
            artifacts::insert(connection, artifact, id).await?;
            let (artifact, receipt_id) = (artifact.clone(), id);
            registered = Some(ArtifactRecord {
                artifact,
                receipt_id,
            });
        }
        Ok(appended(entry, registered, true))
    }

    fn push(&mut self, new: &NewEntry) -> LogEntry {
        let index = self.frontier.size();
        self.nodes
            .extend(self.frontier.append(leaf_hash(&new.envelope)));
        self.entries.push((index, new.clone()));
        let entry = LogEntry {
            index,
            receipt_id: new.receipt_id,
            envelope: new.envelope.clone(),
        };
        self.by_id.insert(new.receipt_id, entry.clone());
        entry
    }

    async fn entry_of(
        &self,
        connection: &mut PgConnection,
        id: ReceiptId,
    ) -> Result<LogEntry, RepositoryError> {
        if let Some(entry) = self.by_id.get(&id) {
            return Ok(entry.clone());
        }
        let row = sqlx::query("SELECT * FROM log_entries WHERE receipt_id = $1")
            .bind(id.as_uuid())
            .fetch_one(connection)
            .await
            .map_err(classify)?;
        entry(&row)
    }

    async fn flush(&mut self, connection: &mut PgConnection) -> Result<(), RepositoryError> {
        let entries = std::mem::take(&mut self.entries);
        if entries.is_empty() {
            return Ok(());
        }
        let indexes: Result<Vec<i64>, _> = entries
            .iter()
            .map(|(index, _)| signed(*index, RECEIPT))
            .collect();
        let each = || entries.iter().map(|(_, entry)| entry);
        let ids: Vec<Uuid> = each().map(|entry| entry.receipt_id.as_uuid()).collect();
        let envelopes: Vec<&[u8]> = each().map(|entry| entry.envelope.as_slice()).collect();
        let events: Vec<&str> = each().map(|entry| entry.event.as_str()).collect();
        let actors: Vec<String> = each().map(|entry| entry.actor.to_string()).collect();
        let artifact = |entry: &NewEntry| entry.artifact.map(|digest| digest.as_bytes().to_vec());
        let artifacts: Vec<Option<Vec<u8>>> = each().map(artifact).collect();
        let times: Vec<i64> = each().map(|entry| entry.appended_at).collect();
        let inserted = sqlx::query(
            "INSERT INTO log_entries (entry_index, receipt_id, envelope, event, actor, artifact, appended_at) \
             SELECT * FROM unnest($1::bigint[], $2::uuid[], $3::bytea[], $4::text[], $5::text[], \
             $6::bytea[], $7::bigint[])",
        )
        .bind(indexes?)
        .bind(ids)
        .bind(envelopes)
        .bind(events)
        .bind(actors)
        .bind(artifacts)
        .bind(times)
        .execute(connection)
        .await
        .map_err(classify)?;
        all_rows(inserted.rows_affected(), entries.len())
    }

    async fn write_tree(
        &self,
        connection: &mut PgConnection,
        head: &LogHead,
    ) -> Result<(), RepositoryError> {
        let levels: Vec<i16> = self
            .nodes
            .iter()
            .map(|(id, _)| i16::from(id.level))
            .collect();
        let indexes: Result<Vec<i64>, _> = self
            .nodes
            .iter()
            .map(|(id, _)| signed(id.index, NODE))
            .collect();
        let hashes: Vec<&[u8]> = self
            .nodes
            .iter()
            .map(|(_, hash)| hash.as_bytes().as_slice())
            .collect();
        let inserted = sqlx::query(
            "INSERT INTO log_nodes (level, node_index, hash) \
             SELECT * FROM unnest($1::smallint[], $2::bigint[], $3::bytea[])",
        )
        .bind(levels)
        .bind(indexes?)
        .bind(hashes)
        .execute(&mut *connection)
        .await
        .map_err(classify)?;
        all_rows(inserted.rows_affected(), self.nodes.len())?;
        let inserted =
            sqlx::query("INSERT INTO log_checkpoints (size, root, note) VALUES ($1, $2, $3)")
                .bind(signed(head.size, "log size")?)
                .bind(head.root.as_bytes().as_slice())
                .bind(&head.note)
                .execute(connection)
                .await
                .map_err(classify)?;
        all_rows(inserted.rows_affected(), 1)
    }
}

/// The stored entries with the receipt ids of the batch.
async fn known(
    connection: &mut PgConnection,
    appends: &[Append],
) -> Result<HashMap<ReceiptId, LogEntry>, RepositoryError> {
    let ids: Vec<Uuid> = appends
        .iter()
        .map(|append| append.entry.receipt_id.as_uuid())
        .collect();
    let rows = sqlx::query(
        "SELECT entry_index, receipt_id, envelope FROM log_entries WHERE receipt_id = ANY($1)",
    )
    .bind(ids)
    .fetch_all(connection)
    .await
    .map_err(classify)?;
    let by_id = |row| {
        let entry = entry(row)?;
        Ok((entry.receipt_id, entry))
    };
    rows.iter().map(by_id).collect()
}

const fn appended(entry: LogEntry, artifact: Option<ArtifactRecord>, is_new: bool) -> Appended {
    Appended {
        entry,
        artifact,
        is_new,
    }
}

fn all_rows(written: u64, expected: usize) -> Result<(), RepositoryError> {
    if written == expected as u64 {
        return Ok(());
    }
    let error = format!("{written} of {expected} rows were written");
    Err(RepositoryError::Internal(error.into()))
}

/// One error for each append of a batch that was not committed.
fn share(error: RepositoryError, count: usize) -> Vec<Outcome> {
    type Wrap = fn(Box<dyn Error + Send + Sync>) -> RepositoryError;
    let (wrap, source): (Wrap, Arc<dyn Error + Send + Sync>) = match error {
        RepositoryError::Unavailable(source) => (RepositoryError::Unavailable, source.into()),
        RepositoryError::Internal(source) => (RepositoryError::Internal, source.into()),
        other => (RepositoryError::Internal, Arc::new(other)),
    };
    (0..count)
        .map(|_| Err(wrap(Box::new(Shared(Arc::clone(&source))))))
        .collect()
}

/// An error with several owners.
struct Shared(Arc<dyn Error + Send + Sync>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for Shared {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// The advisory lock of the one appender.
const APPENDER_LOCK: i64 = 0x0063_6861_6e6c_6f67;
