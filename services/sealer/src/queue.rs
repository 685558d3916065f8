//! The sealer's domain towards its callers: every operation of the gRPC service is one method here.

use std::sync::Arc;

use api::client::Client;
use api::v1::SubmitSealJobRequest;
use identifiers::{JobId, SpiffeId};
use prost::Message as _;
use registry_domain::{
    Conflict, JobFilter, JobRecord, JobRepository, JobState, NewJob, Page, RepositoryError,
};
use service_runtime::{Clock, Randomness};
use tokio::sync::Notify;

use crate::error::SealerError;
use crate::keys;
use crate::order::{Order, Work};
use crate::sources::SourceRoots;

/// Takes jobs in and tells of them.
pub struct Queue {
    pub jobs: Arc<dyn JobRepository>,
    pub key_service: Client,
    pub sources: SourceRoots,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
    pub max_waiting: u32,
    /// Wakes idle workers.
    pub submitted: Arc<Notify>,
}

impl Queue {
    /// Accepts a job. What can be checked without reading the source is checked before.
    pub async fn submit(
        &self,
        caller: SpiffeId,
        request: &SubmitSealJobRequest,
    ) -> Result<JobRecord, SealerError> {
        let order = Order::parse(request)?;
        let body = request.encode_to_vec();
        // A repeat is answered whatever became of the key, the source and the queue.
        let earlier = self.jobs.job_by_request(&caller, order.request_id).await?;
        if let Some(job) = earlier {
            return if job.request == body {
                Ok(job)
            } else {
                Err(RepositoryError::from(Conflict::RequestReused).into())
            };
        }
        if let Some(source) = order.source() {
            self.check_source(source.to_owned()).await?;
        }
        if let Work::Seal(order) = &order.work {
            let key = keys::find(&self.key_service, &order.key)
                .await
                .map_err(SealerError::of_key_service)?;
            if !key.is_active {
                return Err(SealerError::KeyNotActive);
            }
        }
        self.check_room().await?;
        let now = self.clock.unix_millis();
        let job = NewJob {
            id: JobId::from_parts(u64::try_from(now).unwrap_or(0), &self.randomness.bytes()),
            submitter: caller,
            request_id: order.request_id,
            request: body,
            submitted_at: now,
        };
        let job = self.jobs.submit(&job).await?.into_inner();
        tracing::info!(job = %job.id, model = order.model, "job accepted");
        self.submitted.notify_waiters();
        Ok(job)
    }

    /// One job.
    pub async fn job(&self, id: JobId) -> Result<JobRecord, SealerError> {
        Ok(self.jobs.job(id).await?)
    }

    /// Jobs, newest first.
    pub async fn list(
        &self,
        state: Option<JobState>,
        page: Page<JobId>,
    ) -> Result<Vec<JobRecord>, SealerError> {
        let filter = JobFilter {
            submitter: None,
            state,
        };
        Ok(self.jobs.list_jobs(&filter, page).await?)
    }

    /// Asks a job to stop.
    pub async fn cancel(&self, id: JobId) -> Result<JobRecord, SealerError> {
        Ok(self.jobs.cancel(id, self.clock.unix_millis()).await?)
    }

    async fn check_source(&self, source: String) -> Result<(), SealerError> {
        let sources = self.sources.clone();
        let opened = tokio::task::spawn_blocking(move || sources.open(&source).map(drop));
        opened.await?.map_err(SealerError::Source)
    }

    async fn check_room(&self) -> Result<(), SealerError> {
        let page = Page {
            size: self.max_waiting,
            before: None,
        };
        let waiting = self.list(Some(JobState::Queued), page).await?;
        if waiting.len() < self.max_waiting as usize {
            return Ok(());
        }
        Err(SealerError::QueueFull(self.max_waiting))
    }
}
