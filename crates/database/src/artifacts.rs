use async_trait::async_trait;
use identifiers::{ArtifactId, KeyId, ReceiptId, RequestId, Sha256Digest};
use registry_domain::{
    ArtifactFilter, ArtifactKind, ArtifactRecord, ArtifactRepository, Conflict, NewArtifact, Page,
    RepositoryError,
};
use sqlx::postgres::{PgConnection, PgPool, PgRow};

use crate::error::{classify, one_row};
use crate::open::{Database, Schema};
use crate::row::Fields;

/// The registered artifacts.
#[derive(Debug, Clone)]
pub struct PgArtifacts {
    pool: PgPool,
}

impl PgArtifacts {
    /// A repository over the schema `registry`.
    ///
    /// # Panics
    /// When the database is open on another schema: a mistake in the program.
    #[must_use]
    pub fn new(database: Database) -> Self {
        assert_eq!(
            database.schema(),
            Schema::Registry,
            "the repository's schema"
        );
        Self {
            pool: database.pool,
        }
    }
}

#[async_trait]
impl ArtifactRepository for PgArtifacts {
    async fn artifact(&self, id: ArtifactId) -> Result<ArtifactRecord, RepositoryError> {
        let row = sqlx::query("SELECT * FROM artifacts WHERE id = $1")
            .bind(id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        record(&row.ok_or(RepositoryError::NotFound(ARTIFACT))?)
    }

    async fn artifact_by_digest(
        &self,
        digest: &Sha256Digest,
    ) -> Result<ArtifactRecord, RepositoryError> {
        let mut connection = self.pool.acquire().await.map_err(classify)?;
        let found = by_digest(&mut connection, digest).await?;
        found.ok_or(RepositoryError::NotFound(ARTIFACT))
    }

    async fn newest_artifact(
        &self,
        model: &str,
        kind: ArtifactKind,
    ) -> Result<ArtifactRecord, RepositoryError> {
        let row = sqlx::query(
            "SELECT * FROM artifacts WHERE model = $1 AND kind = $2 ORDER BY id DESC LIMIT 1",
        )
        .bind(model)
        .bind(kind.as_str())
        .fetch_optional(&self.pool)
        .await
        .map_err(classify)?;
        record(&row.ok_or(RepositoryError::NotFound(ARTIFACT))?)
    }

    async fn list_artifacts(
        &self,
        filter: &ArtifactFilter,
        page: Page<ArtifactId>,
    ) -> Result<Vec<ArtifactRecord>, RepositoryError> {
        let rows = sqlx::query(
            "SELECT * FROM artifacts WHERE ($1::uuid IS NULL OR id < $1) \
             AND ($2::text IS NULL OR model = $2) AND ($3::bytea IS NULL OR source_aggregate = $3) \
             ORDER BY id DESC LIMIT $4",
        )
        .bind(page.before.map(|id| id.as_uuid()))
        .bind(&filter.model)
        .bind(
            filter
                .source_aggregate
                .as_ref()
                .map(|digest| digest.as_bytes().as_slice()),
        )
        .bind(i64::from(page.size))
        .fetch_all(&self.pool)
        .await
        .map_err(classify)?;
        rows.iter().map(record).collect()
    }
}

pub(crate) async fn by_digest(
    connection: &mut PgConnection,
    digest: &Sha256Digest,
) -> Result<Option<ArtifactRecord>, RepositoryError> {
    let row = sqlx::query("SELECT * FROM artifacts WHERE digest = $1")
        .bind(digest.as_bytes().as_slice())
        .fetch_optional(connection)
        .await
        .map_err(classify)?;
    row.as_ref().map(record).transpose()
}

/// Refuses an artifact whose request id or id is in use, or whose key serves another source; binds
/// the key otherwise. Appends run one at a time, so nothing can come between.
pub(crate) async fn admit(
    connection: &mut PgConnection,
    artifact: &NewArtifact,
) -> Result<(), RepositoryError> {
    let used: Option<i32> = sqlx::query_scalar(
        "SELECT 1 FROM artifacts WHERE (sealer = $1 AND request_id = $2) OR id = $3 LIMIT 1",
    )
    .bind(artifact.sealer.to_string())
    .bind(artifact.request_id.as_uuid())
    .bind(artifact.id.as_uuid())
    .fetch_optional(&mut *connection)
    .await
    .map_err(classify)?;
    if used.is_some() {
        return Err(Conflict::RequestReused.into());
    }
    // No row when the key is bound already: to what, the next statement says.
    sqlx::query(
        "INSERT INTO key_sources (key_id, source_aggregate) VALUES ($1, $2) \
         ON CONFLICT ON CONSTRAINT key_sources_one_per_key DO NOTHING",
    )
    .bind(artifact.key_id.as_uuid())
    .bind(artifact.source_aggregate.as_bytes().as_slice())
    .execute(&mut *connection)
    .await
    .map_err(classify)?;
    let row = sqlx::query("SELECT source_aggregate FROM key_sources WHERE key_id = $1")
        .bind(artifact.key_id.as_uuid())
        .fetch_one(connection)
        .await
        .map_err(classify)?;
    let bound = Fields::of(&row, "source of a key").digest("source_aggregate")?;
    if bound == artifact.source_aggregate {
        Ok(())
    } else {
        Err(Conflict::KeyServesAnotherSource { bound }.into())
    }
}

pub(crate) async fn insert(
    connection: &mut PgConnection,
    artifact: &NewArtifact,
    receipt_id: ReceiptId,
) -> Result<(), RepositoryError> {
    let inserted = sqlx::query(
        "INSERT INTO artifacts (id, digest, model, kind, key_id, fingerprint, source_aggregate, envelope, \
         sealer, request_id, receipt_id, registered_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
    )
    .bind(artifact.id.as_uuid())
    .bind(artifact.digest.as_bytes().as_slice())
    .bind(&artifact.model)
    .bind(artifact.kind.as_str())
    .bind(artifact.key_id.as_uuid())
    .bind(artifact.fingerprint.as_bytes().as_slice())
    .bind(artifact.source_aggregate.as_bytes().as_slice())
    .bind(&artifact.envelope)
    .bind(artifact.sealer.to_string())
    .bind(artifact.request_id.as_uuid())
    .bind(receipt_id.as_uuid())
    .bind(artifact.registered_at)
    .execute(connection)
    .await
    .map_err(classify)?;
    one_row(inserted.rows_affected(), ARTIFACT)
}

fn record(row: &PgRow) -> Result<ArtifactRecord, RepositoryError> {
    let fields = Fields::of(row, ARTIFACT);
    let kinds = [ArtifactKind::Checkpoint, ArtifactKind::Container];
    Ok(ArtifactRecord {
        artifact: NewArtifact {
            id: fields.id("id", ArtifactId::from_uuid)?,
            digest: fields.digest("digest")?,
            model: fields.get("model")?,
            kind: fields.word("kind", &kinds, ArtifactKind::as_str)?,
            key_id: fields.id("key_id", KeyId::from_uuid)?,
            fingerprint: fields.fingerprint("fingerprint")?,
            source_aggregate: fields.digest("source_aggregate")?,
            envelope: fields.get("envelope")?,
            sealer: fields.parsed("sealer")?,
            request_id: fields.id("request_id", RequestId::from_uuid)?,
            registered_at: fields.get("registered_at")?,
        },
        receipt_id: fields.id("receipt_id", ReceiptId::from_uuid)?,
    })
}

const ARTIFACT: &str = "artifact";
