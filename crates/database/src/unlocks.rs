use identifiers::{CapabilityId, KeyId, RequestId, Sha256Digest, SpiffeId};
use registry_domain::{
    CapabilityRecord, Conflict, Inserted, NewCapability, NewRevocation, Quota, RepositoryError,
    Revocation,
};
use sqlx::postgres::{PgConnection, PgPool, PgRow};

use crate::error::{classify, one_row};
use crate::row::{Fields, signed};

pub(crate) async fn record(
    pool: &PgPool,
    capability: &NewCapability,
    quota: Option<Quota>,
) -> Result<Inserted<CapabilityRecord>, RepositoryError> {
    let mut transaction = pool.begin().await.map_err(classify)?;
    // One at a time for each node: repeats and quotas are decided without a race.
    let node = capability.node.to_string();
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('capabilities of ' || $1, 0))")
        .bind(&node)
        .execute(&mut *transaction)
        .await
        .map_err(classify)?;
    let row = sqlx::query("SELECT * FROM capabilities WHERE node = $1 AND request_id = $2")
        .bind(&node)
        .bind(capability.request_id.as_uuid())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(classify)?;
    if let Some(row) = row {
        let found = capability_of(&row)?;
        if found.body != capability.body {
            return Err(Conflict::RequestReused.into());
        }
        return Ok(Inserted::Existing(found));
    }
    if let Some(Quota { limit, since }) = quota {
        let artifact = &capability.artifact;
        let used = count_since(&mut transaction, &capability.node, artifact, since).await?;
        if used >= limit {
            return Err(RepositoryError::QuotaExceeded { used, limit });
        }
    }
    let inserted = sqlx::query(
        "INSERT INTO capabilities (id, request_id, body, node, artifact, key_id, epoch, issued_at, \
         expires_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(capability.id.as_uuid())
    .bind(capability.request_id.as_uuid())
    .bind(capability.body.as_bytes().as_slice())
    .bind(&node)
    .bind(capability.artifact.as_bytes().as_slice())
    .bind(capability.key_id.as_uuid())
    .bind(signed(capability.epoch, "epoch")?)
    .bind(capability.issued_at)
    .bind(capability.expires_at)
    .execute(&mut *transaction)
    .await
    .map_err(classify)?;
    one_row(inserted.rows_affected(), CAPABILITY)?;
    transaction.commit().await.map_err(classify)?;
    Ok(Inserted::New(capability.clone()))
}

pub(crate) async fn get(
    pool: &PgPool,
    id: CapabilityId,
) -> Result<CapabilityRecord, RepositoryError> {
    let row = sqlx::query("SELECT * FROM capabilities WHERE id = $1")
        .bind(id.as_uuid())
        .fetch_optional(pool)
        .await
        .map_err(classify)?;
    capability_of(&row.ok_or(RepositoryError::NotFound(CAPABILITY))?)
}

pub(crate) async fn count_since(
    connection: &mut PgConnection,
    node: &SpiffeId,
    artifact: &Sha256Digest,
    since: i64,
) -> Result<u64, RepositoryError> {
    let count: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM capabilities WHERE node = $1 AND artifact = $2 AND issued_at >= $3",
    )
    .bind(node.to_string())
    .bind(artifact.as_bytes().as_slice())
    .bind(since)
    .fetch_one(connection)
    .await
    .map_err(classify)?;
    u64::try_from(count).map_err(|_| RepositoryError::Damaged(CAPABILITY))
}

pub(crate) async fn revoke(
    pool: &PgPool,
    revocation: &NewRevocation,
) -> Result<Inserted<Revocation>, RepositoryError> {
    let mut transaction = pool.begin().await.map_err(classify)?;
    sqlx::query("LOCK TABLE revocations IN EXCLUSIVE MODE")
        .execute(&mut *transaction)
        .await
        .map_err(classify)?;
    let row = sqlx::query("SELECT * FROM revocations WHERE caller = $1 AND request_id = $2")
        .bind(revocation.caller.to_string())
        .bind(revocation.request_id.as_uuid())
        .fetch_optional(&mut *transaction)
        .await
        .map_err(classify)?;
    if let Some(row) = row {
        let found = revocation_of(&row)?;
        let same = found.artifact == revocation.artifact
            && found.node == revocation.node
            && found.reason == revocation.reason;
        return if same {
            Ok(Inserted::Existing(found))
        } else {
            Err(Conflict::RequestReused.into())
        };
    }
    let epoch = epoch(&mut transaction).await? + 1;
    let inserted = sqlx::query(
        "INSERT INTO revocations (epoch, caller, request_id, artifact, node, reason, at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(signed(epoch, "epoch")?)
    .bind(revocation.caller.to_string())
    .bind(revocation.request_id.as_uuid())
    .bind(revocation.artifact.as_bytes().as_slice())
    .bind(revocation.node.as_ref().map(SpiffeId::to_string))
    .bind(&revocation.reason)
    .bind(revocation.at)
    .execute(&mut *transaction)
    .await
    .map_err(classify)?;
    one_row(inserted.rows_affected(), REVOCATION)?;
    transaction.commit().await.map_err(classify)?;
    Ok(Inserted::New(Revocation {
        epoch,
        artifact: revocation.artifact,
        node: revocation.node.clone(),
        reason: revocation.reason.clone(),
        at: revocation.at,
    }))
}

pub(crate) async fn revocation(
    pool: &PgPool,
    node: &SpiffeId,
    artifact: &Sha256Digest,
) -> Result<Option<Revocation>, RepositoryError> {
    let row = sqlx::query(
        "SELECT * FROM revocations WHERE artifact = $1 AND (node IS NULL OR node = $2) \
         ORDER BY epoch DESC LIMIT 1",
    )
    .bind(artifact.as_bytes().as_slice())
    .bind(node.to_string())
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    row.as_ref().map(revocation_of).transpose()
}

pub(crate) async fn epoch(connection: &mut PgConnection) -> Result<u64, RepositoryError> {
    let epoch: Option<i64> = sqlx::query_scalar("SELECT max(epoch) FROM revocations")
        .fetch_one(connection)
        .await
        .map_err(classify)?;
    u64::try_from(epoch.unwrap_or(0)).map_err(|_| RepositoryError::Damaged(REVOCATION))
}

fn capability_of(row: &PgRow) -> Result<CapabilityRecord, RepositoryError> {
    let fields = Fields::of(row, CAPABILITY);
    Ok(CapabilityRecord {
        id: fields.id("id", CapabilityId::from_uuid)?,
        request_id: fields.id("request_id", RequestId::from_uuid)?,
        body: fields.digest("body")?,
        node: fields.parsed("node")?,
        artifact: fields.digest("artifact")?,
        key_id: fields.id("key_id", KeyId::from_uuid)?,
        epoch: fields.number("epoch")?,
        issued_at: fields.get("issued_at")?,
        expires_at: fields.get("expires_at")?,
    })
}

fn revocation_of(row: &PgRow) -> Result<Revocation, RepositoryError> {
    let fields = Fields::of(row, REVOCATION);
    Ok(Revocation {
        epoch: fields.number("epoch")?,
        artifact: fields.digest("artifact")?,
        node: fields.parsed_option("node")?,
        reason: fields.get("reason")?,
        at: fields.get("at")?,
    })
}

const CAPABILITY: &str = "capability";
const REVOCATION: &str = "revocation";
