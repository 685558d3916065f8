use identifiers::{GrantId, JobId, KeyId, Sha256Digest};
use registry_domain::{
    Conflict, Grant, GrantScope, GrantState, KeyState, NewGrant, RepositoryError,
};
use sqlx::postgres::{PgConnection, PgPool, PgRow};

use crate::error::{classify, one_row};
use crate::keys::key_state;
use crate::row::{Fields, signed};

pub(crate) async fn open(pool: &PgPool, grant: &NewGrant) -> Result<Grant, RepositoryError> {
    let mut transaction = pool.begin().await.map_err(classify)?;
    bind_source(&mut transaction, grant).await?;
    // The key's row is locked: grants of one key are opened one after another.
    let row = sqlx::query(concat!(
        "SELECT g.*, k.state AS key_state FROM seal_grants g JOIN model_keys k ON k.id = g.key_id ",
        "WHERE g.job_id = $1 FOR UPDATE OF g",
    ))
    .bind(grant.job_id.as_uuid())
    .fetch_optional(&mut *transaction)
    .await
    .map_err(classify)?;
    match row.as_ref().map(record).transpose()? {
        None => insert(&mut transaction, grant).await?,
        Some(found) if found.fence > grant.fence => return Err(RepositoryError::FencedOff),
        Some(found) if found.key_id != grant.key_id => {
            return Err(Conflict::OtherContent("seal grant of the job").into());
        }
        Some(found) if found.fence == grant.fence => {
            if found.state == GrantState::Closed {
                let (what, state) = (GRANT, "closed");
                return Err(Conflict::State { what, state }.into());
            }
            let same = found.scope == grant.scope
                && found.source_aggregate == grant.source_aggregate
                && found.holder == grant.holder;
            if !same {
                return Err(Conflict::OtherContent("seal grant of the job").into());
            }
            take_over(&mut transaction, found.id, grant).await?;
        }
        Some(found) => take_over(&mut transaction, found.id, grant).await?,
    }
    let opened = by_job(&mut transaction, grant.job_id).await?;
    transaction.commit().await.map_err(classify)?;
    Ok(opened)
}

pub(crate) async fn get(pool: &PgPool, id: GrantId) -> Result<Grant, RepositoryError> {
    let row = sqlx::query(
        "SELECT g.*, k.state AS key_state FROM seal_grants g JOIN model_keys k ON k.id = g.key_id \
         WHERE g.id = $1",
    )
    .bind(id.as_uuid())
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    record(&row.ok_or(RepositoryError::NotFound(GRANT))?)
}

pub(crate) async fn close(pool: &PgPool, id: GrantId) -> Result<Grant, RepositoryError> {
    let closed = sqlx::query("UPDATE seal_grants SET closed = true WHERE id = $1")
        .bind(id.as_uuid())
        .execute(pool)
        .await
        .map_err(classify)?;
    one_row(closed.rows_affected(), GRANT)?;
    get(pool, id).await
}

/// Binds the key to the grant's source, or finds it bound to it. Locks the key's row.
async fn bind_source(
    connection: &mut PgConnection,
    grant: &NewGrant,
) -> Result<(), RepositoryError> {
    let row =
        sqlx::query("SELECT state, source_aggregate FROM model_keys WHERE id = $1 FOR UPDATE")
            .bind(grant.key_id.as_uuid())
            .fetch_optional(&mut *connection)
            .await
            .map_err(classify)?
            .ok_or(RepositoryError::NotFound("key"))?;
    let fields = Fields::of(&row, "key");
    let state = key_state(&fields, "state")?;
    if state != KeyState::Active {
        let (what, state) = ("key", state.as_str());
        return Err(Conflict::State { what, state }.into());
    }
    match fields
        .bytes_option("source_aggregate")?
        .map(Sha256Digest::new)
    {
        Some(bound) if bound == grant.source_aggregate => Ok(()),
        Some(bound) => Err(Conflict::KeyServesAnotherSource { bound }.into()),
        None => {
            let bound = sqlx::query("UPDATE model_keys SET source_aggregate = $2 WHERE id = $1")
                .bind(grant.key_id.as_uuid())
                .bind(grant.source_aggregate.as_bytes().as_slice())
                .execute(connection)
                .await
                .map_err(classify)?;
            one_row(bound.rows_affected(), "key")
        }
    }
}

async fn insert(connection: &mut PgConnection, grant: &NewGrant) -> Result<(), RepositoryError> {
    let inserted = sqlx::query(
        "INSERT INTO seal_grants (id, job_id, fence, key_id, source_aggregate, scheme, transform, lock, \
         unlock, blob_salt, container_salt, holder, opened_at, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)",
    )
    .bind(grant.id.as_uuid())
    .bind(grant.job_id.as_uuid())
    .bind(signed(grant.fence, "fence")?)
    .bind(grant.key_id.as_uuid())
    .bind(grant.source_aggregate.as_bytes().as_slice())
    .bind(&grant.scope.scheme)
    .bind(&grant.scope.transform)
    .bind(&grant.scope.lock)
    .bind(&grant.scope.unlock)
    .bind(grant.scope.blob_salt.as_ref().map(<[u8; 16]>::as_slice))
    .bind(grant.scope.container_salt.as_ref().map(<[u8; 16]>::as_slice))
    .bind(grant.holder.to_string())
    .bind(grant.opened_at)
    .bind(grant.expires_at)
    .execute(connection)
    .await
    .map_err(classify)?;
    one_row(inserted.rows_affected(), GRANT)
}

/// Gives a job's grant to its newest lease; the expiry never moves back.
async fn take_over(
    connection: &mut PgConnection,
    id: GrantId,
    grant: &NewGrant,
) -> Result<(), RepositoryError> {
    let updated = sqlx::query(
        "UPDATE seal_grants SET fence = $2, source_aggregate = $3, scheme = $4, transform = $5, lock = $6, \
         unlock = $7, blob_salt = $8, container_salt = $9, holder = $10, closed = false, \
         expires_at = greatest(expires_at, $11) WHERE id = $1",
    )
    .bind(id.as_uuid())
    .bind(signed(grant.fence, "fence")?)
    .bind(grant.source_aggregate.as_bytes().as_slice())
    .bind(&grant.scope.scheme)
    .bind(&grant.scope.transform)
    .bind(&grant.scope.lock)
    .bind(&grant.scope.unlock)
    .bind(grant.scope.blob_salt.as_ref().map(<[u8; 16]>::as_slice))
    .bind(grant.scope.container_salt.as_ref().map(<[u8; 16]>::as_slice))
    .bind(grant.holder.to_string())
    .bind(grant.expires_at)
    .execute(connection)
    .await
    .map_err(classify)?;
    one_row(updated.rows_affected(), GRANT)
}

async fn by_job(connection: &mut PgConnection, job: JobId) -> Result<Grant, RepositoryError> {
    let row = sqlx::query(
        "SELECT g.*, k.state AS key_state FROM seal_grants g JOIN model_keys k ON k.id = g.key_id \
         WHERE g.job_id = $1",
    )
    .bind(job.as_uuid())
    .fetch_one(connection)
    .await
    .map_err(classify)?;
    record(&row)
}

fn record(row: &PgRow) -> Result<Grant, RepositoryError> {
    let fields = Fields::of(row, GRANT);
    let closed: bool = fields.get("closed")?;
    Ok(Grant {
        id: fields.id("id", GrantId::from_uuid)?,
        job_id: fields.id("job_id", JobId::from_uuid)?,
        fence: fields.number("fence")?,
        key_id: fields.id("key_id", KeyId::from_uuid)?,
        key_state: key_state(&fields, "key_state")?,
        source_aggregate: fields.digest("source_aggregate")?,
        scope: GrantScope {
            scheme: fields.get("scheme")?,
            transform: fields.get("transform")?,
            lock: fields.get("lock")?,
            unlock: fields.get("unlock")?,
            blob_salt: fields.bytes_option("blob_salt")?,
            container_salt: fields.bytes_option("container_salt")?,
        },
        holder: fields.parsed("holder")?,
        state: if closed {
            GrantState::Closed
        } else {
            GrantState::Open
        },
        opened_at: fields.get("opened_at")?,
        expires_at: fields.get("expires_at")?,
    })
}

const GRANT: &str = "seal grant";
