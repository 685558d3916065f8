use async_trait::async_trait;
use identifiers::{JobId, RequestId, Sha256Digest, SpiffeId};
use registry_domain::{
    Conflict, DurableFile, Heartbeat, Inserted, JobFailure, JobFilter, JobRecord, JobRepository,
    JobResult, JobState, Lease, LeaseTerms, NewJob, Page, Progress, RepositoryError,
};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::types::Json;

use crate::error::{classify, classify_with};
use crate::leases;
use crate::open::{Database, Schema};
use crate::row::Fields;

/// The sealer's queue.
#[derive(Debug, Clone)]
pub struct PgJobs {
    pool: PgPool,
}

impl PgJobs {
    /// A repository over the schema `jobs`.
    ///
    /// # Panics
    /// When the database is open on another schema: a mistake in the program.
    #[must_use]
    pub fn new(database: Database) -> Self {
        assert_eq!(database.schema(), Schema::Jobs, "the repository's schema");
        Self {
            pool: database.pool,
        }
    }
}

#[async_trait]
impl JobRepository for PgJobs {
    async fn submit(&self, job: &NewJob) -> Result<Inserted<JobRecord>, RepositoryError> {
        let reused = |constraint: &str| {
            let conflict = Conflict::OtherContent(JOB);
            (constraint == "seal_jobs_pkey").then_some(conflict)
        };
        let inserted = sqlx::query(
            "INSERT INTO seal_jobs (id, submitter, request_id, request, state, progress, submitted_at) \
             VALUES ($1, $2, $3, $4, 'queued', $5, $6) \
             ON CONFLICT ON CONSTRAINT seal_jobs_request_unique DO NOTHING RETURNING *",
        )
        .bind(job.id.as_uuid())
        .bind(job.submitter.to_string())
        .bind(job.request_id.as_uuid())
        .bind(&job.request)
        .bind(Json(Progress::default()))
        .bind(job.submitted_at)
        .fetch_optional(&self.pool)
        .await
        .map_err(|error| classify_with(error, reused))?;
        if let Some(row) = inserted {
            return record(&row).map(Inserted::New);
        }
        let row = sqlx::query("SELECT * FROM seal_jobs WHERE submitter = $1 AND request_id = $2")
            .bind(job.submitter.to_string())
            .bind(job.request_id.as_uuid())
            .fetch_one(&self.pool)
            .await
            .map_err(classify)?;
        let found = record(&row)?;
        if found.request != job.request {
            return Err(Conflict::RequestReused.into());
        }
        Ok(Inserted::Existing(found))
    }

    async fn job_by_request(
        &self,
        submitter: &SpiffeId,
        request_id: RequestId,
    ) -> Result<Option<JobRecord>, RepositoryError> {
        let row = sqlx::query("SELECT * FROM seal_jobs WHERE submitter = $1 AND request_id = $2")
            .bind(submitter.to_string())
            .bind(request_id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .map_err(classify)?;
        row.as_ref().map(record).transpose()
    }

    async fn job(&self, id: JobId) -> Result<JobRecord, RepositoryError> {
        get(&self.pool, id).await
    }

    async fn list_jobs(
        &self,
        filter: &JobFilter,
        page: Page<JobId>,
    ) -> Result<Vec<JobRecord>, RepositoryError> {
        let rows = sqlx::query(
            "SELECT * FROM seal_jobs WHERE ($1::uuid IS NULL OR id < $1) \
             AND ($2::text IS NULL OR submitter = $2) AND ($3::text IS NULL OR state = $3) \
             ORDER BY id DESC LIMIT $4",
        )
        .bind(page.before.map(|id| id.as_uuid()))
        .bind(filter.submitter.as_ref().map(SpiffeId::to_string))
        .bind(filter.state.map(JobState::as_str))
        .bind(i64::from(page.size))
        .fetch_all(&self.pool)
        .await
        .map_err(classify)?;
        rows.iter().map(record).collect()
    }

    async fn cancel(&self, id: JobId, at: i64) -> Result<JobRecord, RepositoryError> {
        // No row means that the job ended already, or never was.
        sqlx::query(
            "UPDATE seal_jobs SET cancel_requested = true, revision = revision + 1, \
             state = CASE state WHEN 'queued' THEN 'cancelled' ELSE state END, \
             ended_at = CASE state WHEN 'queued' THEN $2::bigint END \
             WHERE id = $1 AND state IN ('queued', 'running') AND NOT cancel_requested",
        )
        .bind(id.as_uuid())
        .bind(at)
        .execute(&self.pool)
        .await
        .map_err(classify)?;
        self.job(id).await
    }

    async fn lease(
        &self,
        worker: &SpiffeId,
        now: i64,
        terms: LeaseTerms,
    ) -> Result<Option<Lease>, RepositoryError> {
        leases::take(&self.pool, worker, now, terms).await
    }

    async fn heartbeat(
        &self,
        lease: &Lease,
        progress: &Progress,
        now: i64,
        terms: LeaseTerms,
    ) -> Result<Heartbeat, RepositoryError> {
        leases::heartbeat(&self.pool, lease, progress, now, terms).await
    }

    async fn save_resume(
        &self,
        lease: &Lease,
        document: &serde_json::Value,
    ) -> Result<(), RepositoryError> {
        leases::save_resume(&self.pool, lease, document).await
    }

    async fn file_durable(&self, lease: &Lease, file: &DurableFile) -> Result<(), RepositoryError> {
        leases::file_durable(&self.pool, lease, file).await
    }

    async fn durable_files(&self, id: JobId) -> Result<Vec<DurableFile>, RepositoryError> {
        let rows = sqlx::query("SELECT * FROM job_files WHERE job_id = $1 ORDER BY stage, number")
            .bind(id.as_uuid())
            .fetch_all(&self.pool)
            .await
            .map_err(classify)?;
        rows.iter().map(file).collect()
    }

    async fn clear_durable_files(&self, lease: &Lease) -> Result<(), RepositoryError> {
        leases::clear_files(&self.pool, lease).await
    }

    async fn succeed(
        &self,
        lease: &Lease,
        result: &JobResult,
        now: i64,
    ) -> Result<JobRecord, RepositoryError> {
        leases::succeed(&self.pool, lease, result, now).await
    }

    async fn fail(
        &self,
        lease: &Lease,
        failure: &JobFailure,
        now: i64,
    ) -> Result<JobRecord, RepositoryError> {
        leases::fail(&self.pool, lease, failure, now).await
    }

    async fn cancelled(&self, lease: &Lease, now: i64) -> Result<JobRecord, RepositoryError> {
        leases::cancelled(&self.pool, lease, now).await
    }

    async fn release(&self, lease: &Lease, _now: i64) -> Result<(), RepositoryError> {
        leases::release(&self.pool, lease).await
    }
}

pub(crate) async fn get(pool: &PgPool, id: JobId) -> Result<JobRecord, RepositoryError> {
    let row = sqlx::query("SELECT * FROM seal_jobs WHERE id = $1")
        .bind(id.as_uuid())
        .fetch_optional(pool)
        .await
        .map_err(classify)?;
    record(&row.ok_or(RepositoryError::NotFound(JOB))?)
}

pub(crate) fn record(row: &PgRow) -> Result<JobRecord, RepositoryError> {
    use JobState::{Cancelled, Failed, Queued, Running, Succeeded};
    let fields = Fields::of(row, JOB);
    let states = [Queued, Running, Succeeded, Failed, Cancelled];
    let reason: Option<String> = fields.get("failure_reason")?;
    let message: Option<String> = fields.get("failure_message")?;
    Ok(JobRecord {
        id: fields.id("id", JobId::from_uuid)?,
        submitter: fields.parsed("submitter")?,
        request_id: fields.id("request_id", RequestId::from_uuid)?,
        request: fields.get("request")?,
        state: fields.word("state", &states, JobState::as_str)?,
        cancel_requested: fields.get("cancel_requested")?,
        fence: fields.number("fence")?,
        attempts: fields.number("attempts")?,
        revision: fields.number("revision")?,
        progress: fields.json("progress")?.ok_or_else(|| fields.damaged())?,
        resume: fields.get("resume")?,
        result: fields.json("result")?,
        failure: reason.map(|reason| JobFailure {
            reason,
            message: message.unwrap_or_default(),
        }),
        submitted_at: fields.get("submitted_at")?,
        started_at: fields.get("started_at")?,
        ended_at: fields.get("ended_at")?,
    })
}

pub(crate) fn file(row: &PgRow) -> Result<DurableFile, RepositoryError> {
    let fields = Fields::of(row, "durable file");
    Ok(DurableFile {
        stage: fields.get("stage")?,
        number: fields.number("number")?,
        path: fields.get("path")?,
        size: fields.number("size")?,
        sha256: fields.bytes("sha256").map(Sha256Digest::new)?,
        chunk_root: fields.bytes("chunk_root").map(Sha256Digest::new)?,
        detail: fields.get("detail")?,
    })
}

pub(crate) const JOB: &str = "seal job";
