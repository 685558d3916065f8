use async_trait::async_trait;
use identifiers::{ArtifactId, JobId, RequestId, Sha256Digest, SpiffeId};
use serde::{Deserialize, Serialize};

use crate::{ArtifactKind, Inserted, Page, RepositoryError};

/// The queue of seal jobs.
///
/// A job is leased to one worker at a time. Each lease has a higher fencing token, and every
/// write under a lease is refused once a later lease exists ([`RepositoryError::FencedOff`]).
#[async_trait]
pub trait JobRepository: Send + Sync {
    /// Accepts a job. The same submitter, request id and body give the stored job, another body is a conflict.
    async fn submit(&self, job: &NewJob) -> Result<Inserted<JobRecord>, RepositoryError>;
    /// The job that a submitter's request made, if any.
    async fn job_by_request(
        &self,
        submitter: &SpiffeId,
        request_id: RequestId,
    ) -> Result<Option<JobRecord>, RepositoryError>;
    /// One job.
    async fn job(&self, id: JobId) -> Result<JobRecord, RepositoryError>;
    /// Jobs, newest first.
    async fn list_jobs(
        &self,
        filter: &JobFilter,
        page: Page<JobId>,
    ) -> Result<Vec<JobRecord>, RepositoryError>;
    /// Asks a job to stop: a queued one ends at once, a running one when its worker sees it. An
    /// ended job stays as it is.
    async fn cancel(&self, id: JobId, at: i64) -> Result<JobRecord, RepositoryError>;

    /// Leases the oldest job that is queued or whose lease ran out. Jobs whose lease ran out
    /// are ended instead when cancelled or out of attempts.
    async fn lease(
        &self,
        worker: &SpiffeId,
        now: i64,
        terms: LeaseTerms,
    ) -> Result<Option<Lease>, RepositoryError>;
    /// Renews a lease and reports progress.
    async fn heartbeat(
        &self,
        lease: &Lease,
        progress: &Progress,
        now: i64,
        terms: LeaseTerms,
    ) -> Result<Heartbeat, RepositoryError>;
    /// Stores what a later attempt needs to resume (the source's aggregate, salts).
    async fn save_resume(
        &self,
        lease: &Lease,
        document: &serde_json::Value,
    ) -> Result<(), RepositoryError>;
    /// Records that a file of the output is durable. Recording the same file again is no change.
    async fn file_durable(&self, lease: &Lease, file: &DurableFile) -> Result<(), RepositoryError>;
    /// The files recorded as durable, by stage and number.
    async fn durable_files(&self, id: JobId) -> Result<Vec<DurableFile>, RepositoryError>;
    /// Forgets the durable files: the attempt starts over.
    async fn clear_durable_files(&self, lease: &Lease) -> Result<(), RepositoryError>;
    /// Ends the job as succeeded.
    async fn succeed(
        &self,
        lease: &Lease,
        result: &JobResult,
        now: i64,
    ) -> Result<JobRecord, RepositoryError>;
    /// Ends the job as failed.
    async fn fail(
        &self,
        lease: &Lease,
        failure: &JobFailure,
        now: i64,
    ) -> Result<JobRecord, RepositoryError>;
    /// Ends a job that was asked to stop.
    async fn cancelled(&self, lease: &Lease, now: i64) -> Result<JobRecord, RepositoryError>;
    /// Gives a lease back so that another worker can take the job at once.
    async fn release(&self, lease: &Lease, now: i64) -> Result<(), RepositoryError>;
}

/// A job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    /// Waits for a worker.
    Queued,
    /// Leased to a worker.
    Running,
    /// Ended with a result.
    Succeeded,
    /// Ended with a failure.
    Failed,
    /// Ended on request.
    Cancelled,
}

impl JobState {
    /// Whether the job ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }

    /// The state's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A job to be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    /// Its id.
    pub id: JobId,
    /// Who submits it.
    pub submitter: SpiffeId,
    /// The submitter's idempotency id.
    pub request_id: RequestId,
    /// What is asked for, encoded by the sealer; compared byte for byte on a repeat.
    pub request: Vec<u8>,
    /// Unix milliseconds.
    pub submitted_at: i64,
}

/// A stored job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// Who submitted it.
    pub submitter: SpiffeId,
    /// The submitter's idempotency id.
    pub request_id: RequestId,
    /// What is asked for.
    pub request: Vec<u8>,
    /// Its state.
    pub state: JobState,
    /// Whether it was asked to stop.
    pub cancel_requested: bool,
    /// The fencing token of the newest lease; 0 before the first.
    pub fence: u64,
    /// How often it was leased and not given back.
    pub attempts: u32,
    /// Grows with every change.
    pub revision: u64,
    /// As last reported.
    pub progress: Progress,
    /// What a later attempt needs to resume.
    pub resume: Option<serde_json::Value>,
    /// Set when it succeeded.
    pub result: Option<JobResult>,
    /// Set when it failed.
    pub failure: Option<JobFailure>,
    /// Unix milliseconds.
    pub submitted_at: i64,
    /// When it was first leased.
    pub started_at: Option<i64>,
    /// When it ended.
    pub ended_at: Option<i64>,
}

/// How far a job is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// What the job is doing, for a person.
    pub phase: String,
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes in all.
    pub bytes_total: u64,
    /// Tensors done.
    pub tensors_done: u64,
    /// Tensors in all.
    pub tensors_total: u64,
}

/// What a job produced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobResult {
    /// The artifacts registered; none where the job only looked.
    pub artifacts: Vec<SealedArtifact>,
    /// What happened to each file of the source, or of the artifact.
    pub files: Vec<FileOutcome>,
    /// What a comparison saw that found no difference.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comparison: Option<Comparison>,
}

/// What a job compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Tensors compared.
    pub tensors: u64,
    /// Files compared.
    pub files: u64,
    /// The largest difference of a value, in units of the last place.
    pub largest_ulps: u64,
}

/// An artifact that a job registered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealedArtifact {
    /// Its id in the registry.
    pub id: ArtifactId,
    /// Digest of its manifest.
    pub digest: Sha256Digest,
    /// What it is.
    pub kind: ArtifactKind,
}

/// What happened to one file of the source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileOutcome {
    /// Its path in the source.
    pub path: String,
    /// What happened to it.
    pub fate: FileFate,
    /// Why; may be empty.
    pub why: String,
}

/// Whether a file of the source is in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileFate {
    /// Its content is sealed.
    Sealed,
    /// Copied as it is.
    Copied,
    /// Not in the output.
    LeftOut,
}

/// Why a job failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobFailure {
    /// A stable word for scripts, like `source-changed`.
    pub reason: String,
    /// A sentence for a person.
    pub message: String,
}

/// Which jobs to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// Only this submitter's.
    pub submitter: Option<SpiffeId>,
    /// Only in this state.
    pub state: Option<JobState>,
}

/// For how long a job is leased, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTerms {
    /// Milliseconds from now to the lease's end.
    pub duration: i64,
    /// Leases after which a job whose lease runs out again has failed.
    pub max_attempts: u32,
}

/// The right to work on a job.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease {
    /// The job as it was leased.
    pub job: JobRecord,
    /// Who works on it.
    pub worker: SpiffeId,
    /// The fencing token.
    pub fence: u64,
}

/// The answer to a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// When the lease ends now, Unix milliseconds.
    pub expires_at: i64,
    /// Whether the job was asked to stop.
    pub cancel_requested: bool,
}

/// A file of a job's output that is durable in storage.
#[derive(Debug, Clone, PartialEq)]
pub struct DurableFile {
    /// Which part of the work wrote it, like `checkpoint` or `container`.
    pub stage: String,
    /// Its number within the stage, from 0.
    pub number: u32,
    /// Its path within the artifact.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// The blob's name.
    pub sha256: Sha256Digest,
    /// RFC 6962 root over leaves of 1 MiB.
    pub chunk_root: Sha256Digest,
    /// What the stage needs to go on after it.
    pub detail: serde_json::Value,
}
