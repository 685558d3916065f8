//! The gRPC service: parse, one domain call, map.

use std::sync::Arc;
use std::time::Duration;

use api::v1::seal_service_server::SealService;
use api::{fields, to_status, v1};
use registry_domain::{JobRecord, Page};
use service_runtime::{CancellationToken, context};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::messages;
use crate::queue::Queue;

/// The sealer over gRPC.
pub struct SealRpc {
    pub queue: Arc<Queue>,
    /// Between two looks at a job that is watched.
    pub poll: Duration,
    /// Ends the streams of watchers, who then ask again elsewhere.
    pub shutdown: CancellationToken,
}

#[tonic::async_trait]
impl SealService for SealRpc {
    async fn submit_seal_job(
        &self,
        request: Request<v1::SubmitSealJobRequest>,
    ) -> Result<Response<v1::SealJob>, Status> {
        let caller = context(&request)?.peer.spiffe.clone();
        let job = self.queue.submit(caller, request.get_ref()).await;
        self.answer(job.map_err(to_status)?)
    }

    async fn get_seal_job(
        &self,
        request: Request<v1::GetSealJobRequest>,
    ) -> Result<Response<v1::SealJob>, Status> {
        let id = fields::id("id", &request.get_ref().id)?;
        self.answer(self.queue.job(id).await.map_err(to_status)?)
    }

    async fn list_seal_jobs(
        &self,
        request: Request<v1::ListSealJobsRequest>,
    ) -> Result<Response<v1::ListSealJobsResponse>, Status> {
        let request = request.get_ref();
        let page = Page {
            size: fields::page_size(request.page_size)?,
            before: fields::optional_id("page_token", &request.page_token)?,
        };
        let state = fields::optional_known("state", request.state)?;
        let state = state.and_then(messages::state_filter);
        let jobs = self.queue.list(state, page).await.map_err(to_status)?;
        let full = jobs.len() == page.size as usize;
        let last = jobs.last().filter(|_| full).map(|job| job.id.to_string());
        let jobs: Result<_, Status> = jobs.into_iter().map(|job| self.message(job)).collect();
        Ok(Response::new(v1::ListSealJobsResponse {
            jobs: jobs?,
            next_page_token: last.unwrap_or_default(),
        }))
    }

    type WatchSealJobStream = ReceiverStream<Result<v1::SealJob, Status>>;

    async fn watch_seal_job(
        &self,
        request: Request<v1::WatchSealJobRequest>,
    ) -> Result<Response<Self::WatchSealJobStream>, Status> {
        let id = fields::id("id", &request.get_ref().id)?;
        let mut job = self.queue.job(id).await.map_err(to_status)?;
        let (queue, poll, shutdown) = (self.queue.clone(), self.poll, self.shutdown.clone());
        let (changes, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let (revision, is_final) = (job.revision, job.state.is_final());
                let now = queue.clock.unix_millis();
                let message = messages::job(job, now).map_err(to_status);
                if changes.send(message).await.is_err() || is_final {
                    return;
                }
                job = loop {
                    tokio::select! {
                        () = changes.closed() => return,
                        () = shutdown.cancelled() => return,
                        () = tokio::time::sleep(poll) => {}
                    }
                    match queue.job(id).await {
                        Ok(job) if job.revision != revision => break job,
                        Ok(_) => {}
                        Err(error) => {
                            // The watcher is gone, or is told: either way it ends here.
                            let _ = changes.send(Err(to_status(error))).await;
                            return;
                        }
                    }
                };
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn cancel_seal_job(
        &self,
        request: Request<v1::CancelSealJobRequest>,
    ) -> Result<Response<v1::SealJob>, Status> {
        let id = fields::id("id", &request.get_ref().id)?;
        self.answer(self.queue.cancel(id).await.map_err(to_status)?)
    }
}

impl SealRpc {
    fn message(&self, job: JobRecord) -> Result<v1::SealJob, Status> {
        messages::job(job, self.queue.clock.unix_millis()).map_err(to_status)
    }

    fn answer(&self, job: JobRecord) -> Result<Response<v1::SealJob>, Status> {
        self.message(job).map(Response::new)
    }
}
