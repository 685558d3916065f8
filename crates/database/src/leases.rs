//! Writes under a lease: each names the fencing token and has no effect once a later lease exists.

use identifiers::SpiffeId;
use registry_domain::{
    Conflict, DurableFile, Heartbeat, JobFailure, JobRecord, JobResult, Lease, LeaseTerms,
    Progress, RepositoryError,
};
use sqlx::Row as _;
use sqlx::postgres::{PgConnection, PgPool, PgRow};
use sqlx::types::Json;

use crate::error::classify;
use crate::jobs::{JOB, file, get, record};
use crate::row::signed;

pub(crate) async fn take(
    pool: &PgPool,
    worker: &SpiffeId,
    now: i64,
    terms: LeaseTerms,
) -> Result<Option<Lease>, RepositoryError> {
    // Any number of jobs may have run out of attempts, or stop on request with their worker gone.
    sqlx::query(
        "UPDATE seal_jobs SET revision = revision + 1, ended_at = $1, lease_expires_at = NULL, \
         state = CASE WHEN cancel_requested THEN 'cancelled' ELSE 'failed' END, \
         failure_reason = CASE WHEN NOT cancel_requested THEN 'attempts-exhausted' END, \
         failure_message = CASE WHEN NOT cancel_requested \
             THEN 'the job was lost ' || attempts || ' times while it ran' END \
         WHERE id IN (SELECT id FROM seal_jobs WHERE state = 'running' AND lease_expires_at <= $1 \
             AND (cancel_requested OR attempts >= $2) FOR UPDATE SKIP LOCKED)",
    )
    .bind(now)
    .bind(i64::from(terms.max_attempts))
    .execute(pool)
    .await
    .map_err(classify)?;
    let row = sqlx::query(
        "UPDATE seal_jobs SET state = 'running', worker = $1, fence = fence + 1, attempts = attempts + 1, \
         revision = revision + 1, lease_expires_at = $3, started_at = coalesce(started_at, $2) \
         WHERE id = (SELECT id FROM seal_jobs \
             WHERE state = 'queued' OR (state = 'running' AND lease_expires_at <= $2) \
             ORDER BY submitted_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) \
         RETURNING *",
    )
    .bind(worker.to_string())
    .bind(now)
    .bind(now.saturating_add(terms.duration))
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    let lease = |row: PgRow| {
        let job = record(&row)?;
        let fence = job.fence;
        let worker = worker.clone();
        Ok(Lease { job, worker, fence })
    };
    row.map(lease).transpose()
}

pub(crate) async fn heartbeat(
    pool: &PgPool,
    lease: &Lease,
    progress: &Progress,
    now: i64,
    terms: LeaseTerms,
) -> Result<Heartbeat, RepositoryError> {
    let row = sqlx::query(
        "UPDATE seal_jobs SET lease_expires_at = greatest(lease_expires_at, $4), \
         revision = revision + CASE WHEN progress = $5 THEN 0 ELSE 1 END, progress = $5 \
         WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running' \
         RETURNING lease_expires_at, cancel_requested",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .bind(now.saturating_add(terms.duration))
    .bind(Json(progress))
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    let Some(row) = row else {
        return Err(lost(pool, lease).await);
    };
    Ok(Heartbeat {
        expires_at: row.try_get("lease_expires_at").map_err(classify)?,
        cancel_requested: row.try_get("cancel_requested").map_err(classify)?,
    })
}

pub(crate) async fn save_resume(
    pool: &PgPool,
    lease: &Lease,
    document: &serde_json::Value,
) -> Result<(), RepositoryError> {
    let saved = sqlx::query(
        "UPDATE seal_jobs SET resume = $4 WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running'",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .bind(document)
    .execute(pool)
    .await
    .map_err(classify)?;
    match saved.rows_affected() {
        1 => Ok(()),
        _ => Err(lost(pool, lease).await),
    }
}

pub(crate) async fn file_durable(
    pool: &PgPool,
    lease: &Lease,
    durable: &DurableFile,
) -> Result<(), RepositoryError> {
    let mut transaction = pool.begin().await.map_err(classify)?;
    if !hold(&mut transaction, lease).await? {
        drop(transaction);
        return Err(lost(pool, lease).await);
    }
    let inserted = sqlx::query(
        "INSERT INTO job_files (job_id, stage, number, path, size, sha256, chunk_root, detail) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT ON CONSTRAINT job_files_pkey DO NOTHING",
    )
    .bind(lease.job.id.as_uuid())
    .bind(&durable.stage)
    .bind(i64::from(durable.number))
    .bind(&durable.path)
    .bind(signed(durable.size, "file size")?)
    .bind(durable.sha256.as_bytes().as_slice())
    .bind(durable.chunk_root.as_bytes().as_slice())
    .bind(&durable.detail)
    .execute(&mut *transaction)
    .await
    .map_err(classify)?;
    if inserted.rows_affected() == 0 {
        let row =
            sqlx::query("SELECT * FROM job_files WHERE job_id = $1 AND stage = $2 AND number = $3")
                .bind(lease.job.id.as_uuid())
                .bind(&durable.stage)
                .bind(i64::from(durable.number))
                .fetch_one(&mut *transaction)
                .await
                .map_err(classify)?;
        if file(&row)? != *durable {
            return Err(Conflict::OtherContent("durable file").into());
        }
    }
    transaction.commit().await.map_err(classify)
}

pub(crate) async fn clear_files(pool: &PgPool, lease: &Lease) -> Result<(), RepositoryError> {
    let mut transaction = pool.begin().await.map_err(classify)?;
    if !hold(&mut transaction, lease).await? {
        drop(transaction);
        return Err(lost(pool, lease).await);
    }
    // Any number of files may be there.
    sqlx::query("DELETE FROM job_files WHERE job_id = $1")
        .bind(lease.job.id.as_uuid())
        .execute(&mut *transaction)
        .await
        .map_err(classify)?;
    transaction.commit().await.map_err(classify)
}

pub(crate) async fn succeed(
    pool: &PgPool,
    lease: &Lease,
    result: &JobResult,
    now: i64,
) -> Result<JobRecord, RepositoryError> {
    let row = sqlx::query(
        "UPDATE seal_jobs SET state = 'succeeded', result = $4, ended_at = $5, lease_expires_at = NULL, \
         revision = revision + 1 WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running' \
         RETURNING *",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .bind(Json(result))
    .bind(now)
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    ended(pool, lease, row, |job| job.result.as_ref() == Some(result)).await
}

pub(crate) async fn fail(
    pool: &PgPool,
    lease: &Lease,
    failure: &JobFailure,
    now: i64,
) -> Result<JobRecord, RepositoryError> {
    let row = sqlx::query(
        "UPDATE seal_jobs SET state = 'failed', failure_reason = $4, failure_message = $5, ended_at = $6, \
         lease_expires_at = NULL, revision = revision + 1 \
         WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running' RETURNING *",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .bind(&failure.reason)
    .bind(&failure.message)
    .bind(now)
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    ended(pool, lease, row, |job| {
        job.failure.as_ref() == Some(failure)
    })
    .await
}

pub(crate) async fn cancelled(
    pool: &PgPool,
    lease: &Lease,
    now: i64,
) -> Result<JobRecord, RepositoryError> {
    let row = sqlx::query(
        "UPDATE seal_jobs SET state = 'cancelled', ended_at = $4, lease_expires_at = NULL, \
         revision = revision + 1 WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running' \
         AND cancel_requested RETURNING *",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .bind(now)
    .fetch_optional(pool)
    .await
    .map_err(classify)?;
    let stopped = |job: &JobRecord| job.state == registry_domain::JobState::Cancelled;
    ended(pool, lease, row, stopped).await
}

pub(crate) async fn release(pool: &PgPool, lease: &Lease) -> Result<(), RepositoryError> {
    let released = sqlx::query(
        "UPDATE seal_jobs SET state = 'queued', worker = NULL, lease_expires_at = NULL, \
         attempts = attempts - 1, revision = revision + 1 \
         WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running' AND NOT cancel_requested",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .execute(pool)
    .await
    .map_err(classify)?;
    if released.rows_affected() == 1 {
        return Ok(());
    }
    Err(lost(pool, lease).await)
}

/// Locks the job's row; `false` when the lease does not hold it.
async fn hold(connection: &mut PgConnection, lease: &Lease) -> Result<bool, RepositoryError> {
    let held = sqlx::query(
        "SELECT 1 FROM seal_jobs WHERE id = $1 AND fence = $2 AND worker = $3 AND state = 'running' \
         FOR UPDATE",
    )
    .bind(lease.job.id.as_uuid())
    .bind(signed(lease.fence, "fence")?)
    .bind(lease.worker.to_string())
    .fetch_optional(connection)
    .await
    .map_err(classify)?;
    Ok(held.is_some())
}

/// The outcome of ending a job: repeating the end that was stored is no error.
async fn ended(
    pool: &PgPool,
    lease: &Lease,
    row: Option<PgRow>,
    is_same: impl Fn(&JobRecord) -> bool,
) -> Result<JobRecord, RepositoryError> {
    if let Some(row) = row {
        return record(&row);
    }
    let job = get(pool, lease.job.id).await?;
    if job.fence == lease.fence && is_same(&job) {
        return Ok(job);
    }
    Err(explain(&job, lease))
}

/// Why a write under the lease had no effect.
async fn lost(pool: &PgPool, lease: &Lease) -> RepositoryError {
    match get(pool, lease.job.id).await {
        Ok(job) => explain(&job, lease),
        Err(error) => error,
    }
}

fn explain(job: &JobRecord, lease: &Lease) -> RepositoryError {
    if job.fence != lease.fence {
        return RepositoryError::FencedOff;
    }
    let (what, state) = (JOB, job.state.as_str());
    Conflict::State { what, state }.into()
}
