use std::sync::Arc;

use async_trait::async_trait;
use identifiers::{ReceiptId, Sha256Digest, SpiffeId};
use registry_domain::{
    Append, Appended, CheckpointSigner, EntryFilter, LogEntry, LogHead, LogRepository,
    RepositoryError,
};
use sqlx::postgres::{PgConnection, PgPool, PgRow};
use tlog::NodeId;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::error::classify;
use crate::open::{Database, Schema};
use crate::row::{Fields, signed};

mod appender;

use appender::Appender;

/// The receipt log.
///
/// Appends that wait at the same time share one transaction, and one appender runs at a time
/// across every process (an advisory lock), so the log has one order.
#[derive(Debug, Clone)]
pub struct PgLog {
    pool: PgPool,
    queue: mpsc::Sender<Waiting>,
}

/// Bounds of the appender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOptions {
    /// The most appends in one transaction, at least 1.
    pub batch: usize,
    /// The most appends that wait, at least 1; further ones are [`RepositoryError::Busy`].
    pub queue: usize,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self {
            batch: 256,
            queue: 4096,
        }
    }
}

struct Waiting {
    append: Append,
    answer: oneshot::Sender<Result<Appended, RepositoryError>>,
}

impl PgLog {
    /// The log in the schema `registry`. Its appender runs on the current tokio runtime until
    /// the last clone is dropped, and finishes what waits then.
    ///
    /// # Panics
    /// When the database is open on another schema: a mistake in the program.
    #[must_use]
    pub fn start(
        database: Database,
        signer: Arc<dyn CheckpointSigner>,
        options: LogOptions,
    ) -> Self {
        assert_eq!(
            database.schema(),
            Schema::Registry,
            "the repository's schema"
        );
        let pool = database.pool;
        let (queue, waiting) = mpsc::channel(options.queue.max(1));
        let appender = Appender::new(pool.clone(), signer);
        tokio::spawn(appender.run(waiting, options.batch.max(1)));
        Self { pool, queue }
    }
}

#[async_trait]
impl LogRepository for PgLog {
    async fn append(&self, append: Append) -> Result<Appended, RepositoryError> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { append, answer };
        self.queue.try_send(waiting).map_err(|error| match error {
            TrySendError::Full(_) => RepositoryError::Busy,
            TrySendError::Closed(_) => stopped(),
        })?;
        answered.await.map_err(|_| stopped())?
    }

    async fn head(&self) -> Result<Option<LogHead>, RepositoryError> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        head(&mut connection).await
    }

    async fn entry(&self, id: ReceiptId) -> Result<LogEntry, RepositoryError> {
        let row = sqlx::query("SELECT * FROM log_entries WHERE receipt_id = $1")
            .bind(id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        entry(&row.ok_or(RepositoryError::NotFound(RECEIPT))?)
    }

    async fn entry_at(&self, index: u64) -> Result<LogEntry, RepositoryError> {
        let Ok(index) = i64::try_from(index) else {
            return Err(RepositoryError::NotFound(RECEIPT));
        };
        let row = sqlx::query("SELECT * FROM log_entries WHERE entry_index = $1")
            .bind(index)
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        entry(&row.ok_or(RepositoryError::NotFound(RECEIPT))?)
    }

    async fn entries(
        &self,
        filter: &EntryFilter,
        from: u64,
        limit: u32,
    ) -> Result<Vec<LogEntry>, RepositoryError> {
        let Ok(from) = i64::try_from(from) else {
            return Ok(Vec::new());
        };
        let rows = sqlx::query(
            "SELECT entry_index, receipt_id, envelope FROM log_entries WHERE entry_index >= $1 \
             AND ($2::text IS NULL OR event = $2) AND ($3::bytea IS NULL OR artifact = $3) \
             AND ($4::text IS NULL OR actor = $4) ORDER BY entry_index LIMIT $5",
        )
        .bind(from)
        .bind(&filter.event)
        .bind(
            filter
                .artifact
                .as_ref()
                .map(|digest| digest.as_bytes().as_slice()),
        )
        .bind(filter.actor.as_ref().map(SpiffeId::to_string))
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(classify)?;
        rows.iter().map(entry).collect()
    }

    async fn nodes(&self, ids: &[NodeId]) -> Result<Vec<Sha256Digest>, RepositoryError> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        nodes(&mut connection, ids).await
    }

    async fn node_run(
        &self,
        level: u8,
        start: u64,
        width: u32,
    ) -> Result<Vec<Sha256Digest>, RepositoryError> {
        let rows = sqlx::query(
            "SELECT hash FROM log_nodes WHERE level = $1 AND node_index >= $2 AND node_index < $3 \
             ORDER BY node_index",
        )
        .bind(i16::from(level))
        .bind(signed(start, NODE)?)
        .bind(signed(start.saturating_add(width.into()), NODE)?)
        .fetch_all(&self.pool)
        .await
        .map_err(classify)?;
        if rows.len() != width as usize {
            return Err(RepositoryError::NotFound("tile"));
        }
        rows.iter()
            .map(|row| Fields::of(row, NODE).digest("hash"))
            .collect()
    }
}

async fn head(connection: &mut PgConnection) -> Result<Option<LogHead>, RepositoryError> {
    let row = sqlx::query("SELECT * FROM log_checkpoints ORDER BY size DESC LIMIT 1")
        .fetch_optional(connection)
        .await
        .map_err(classify)?;
    let read = |row: PgRow| {
        let fields = Fields::of(&row, "checkpoint");
        Ok(LogHead {
            size: fields.number("size")?,
            root: fields.digest("root")?,
            note: fields.get("note")?,
        })
    };
    row.map(read).transpose()
}

async fn nodes(
    connection: &mut PgConnection,
    ids: &[NodeId],
) -> Result<Vec<Sha256Digest>, RepositoryError> {
    let levels: Vec<i16> = ids.iter().map(|id| i16::from(id.level)).collect();
    let indexes: Result<Vec<i64>, _> = ids.iter().map(|id| signed(id.index, NODE)).collect();
    let rows = sqlx::query(
        "SELECT n.hash FROM unnest($1::smallint[], $2::bigint[]) WITH ORDINALITY AS want(level, node_index, at) \
         JOIN log_nodes n ON n.level = want.level AND n.node_index = want.node_index ORDER BY want.at",
    )
    .bind(levels)
    .bind(indexes?)
    .fetch_all(connection)
    .await
    .map_err(classify)?;
    if rows.len() != ids.len() {
        return Err(RepositoryError::Damaged(NODE));
    }
    rows.iter()
        .map(|row| Fields::of(row, NODE).digest("hash"))
        .collect()
}

fn entry(row: &PgRow) -> Result<LogEntry, RepositoryError> {
    let fields = Fields::of(row, RECEIPT);
    Ok(LogEntry {
        index: fields.number("entry_index")?,
        receipt_id: fields.id("receipt_id", ReceiptId::from_uuid)?,
        envelope: fields.get("envelope")?,
    })
}

fn stopped() -> RepositoryError {
    RepositoryError::Unavailable("the log's appender has stopped".into())
}

const RECEIPT: &str = "receipt";
const NODE: &str = "log node";
