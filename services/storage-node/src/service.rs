use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::fields;
use api::v1::put_blob_request::Part;
use api::v1::storage_service_server::StorageService;
use api::v1::{
    BlobInfo, GetBlobRequest, GetBlobResponse, ProveRangeRequest, PutBlobRequest, RangeProof,
    ScrubReport, ScrubRequest, StatBlobRequest,
};
use api::{Fault, InvalidField, ServiceError};
use blob_store::{BlobError, BlobStore};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use identifiers::Sha256Digest;
use service_runtime::{Clock, Peer, context};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

use crate::access::{Access, Allowed};
use crate::counts::{Counts, Under};
use crate::error::StorageError;

/// `chancery.v1.StorageService` over a blob store.
pub(crate) struct Storage {
    pub blobs: BlobStore,
    pub access: Arc<Access>,
    pub clock: Arc<dyn Clock>,
    pub counts: Counts,
    pub uploads: Arc<Semaphore>,
    pub reads: Arc<Semaphore>,
    pub scrubs: Arc<Semaphore>,
    pub pause: Duration,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl StorageService for Storage {
    type GetBlobStream = Answers<GetBlobResponse>;
    type ScrubStream = Answers<ScrubReport>;

    async fn put_blob(
        &self,
        request: Request<Streaming<PutBlobRequest>>,
    ) -> Result<Response<BlobInfo>, Status> {
        let _permit = take(&self.uploads, "uploads")?;
        let _under = Under::way(&self.counts.uploads);
        let mut messages = request.into_inner();
        let (digest, size) = match next(&mut messages, self.pause)
            .await?
            .map(|first| first.part)
        {
            Some(Some(Part::Header(header))) => (
                fields::digest("header.digest", &header.digest)?,
                header.size,
            ),
            _ => return Err(InvalidField::new("header", "required as the first message").into()),
        };
        let stored = self
            .blobs
            .put(digest, size, data(messages, self.pause))
            .await;
        let stored = stored.map_err(StorageError::from)?;
        if stored.created {
            self.counts.put_blobs.inc();
            self.counts.put_bytes.inc_by(size);
        }
        tracing::info!(%digest, size, created = stored.created, "blob stored");
        Ok(Response::new(message(stored.info)))
    }

    async fn get_blob(
        &self,
        request: Request<GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        let peer = context(&request)?.peer;
        let GetBlobRequest {
            digest,
            offset,
            length,
            capability,
        } = request.into_inner();
        let digest = fields::digest("digest", &digest)?;
        let allowed = self.allow(&peer, &capability, &digest)?;
        let permit = take(&self.reads, "reads")?;
        let under = Under::way(&self.counts.reads);
        let length = (length > 0).then_some(length);
        let range = self.blobs.get(digest, offset, length).await;
        let range = range.map_err(|error| self.failed(error))?;
        let counts = self.counts.clone();
        let clock = self.clock.clone();
        let answers = range.pieces.map(move |piece| {
            // Held until the last piece was taken or the caller went away.
            let _held = (&permit, &under);
            if let Allowed::Until(end) = allowed
                && unix_seconds(&*clock) >= end
            {
                return Err(StorageError::ExpiredDuringRead.into());
            }
            match piece {
                Ok(data) => {
                    counts.read_bytes.inc_by(data.len() as u64);
                    Ok(GetBlobResponse { data })
                }
                Err(error) => Err(failed(&counts, error).into()),
            }
        });
        Ok(Response::new(end_at_error(answers)))
    }

    async fn prove_range(
        &self,
        request: Request<ProveRangeRequest>,
    ) -> Result<Response<RangeProof>, Status> {
        let peer = context(&request)?.peer;
        let ProveRangeRequest {
            digest,
            offset,
            length,
            capability,
        } = request.into_inner();
        let digest = fields::digest("digest", &digest)?;
        self.allow(&peer, &capability, &digest)?;
        let _permit = take(&self.reads, "reads")?;
        let length = (length > 0).then_some(length);
        let proof = self.blobs.range_proof(digest, offset, length).await;
        let proof = proof.map_err(|error| self.failed(error))?;
        let path = proof.path.iter().map(|hash| hash.as_bytes().to_vec());
        Ok(Response::new(RangeProof {
            first_chunk: proof.first,
            chunks: proof.chunks,
            path: path.collect(),
        }))
    }

    async fn stat_blob(
        &self,
        request: Request<StatBlobRequest>,
    ) -> Result<Response<BlobInfo>, Status> {
        let peer = context(&request)?.peer;
        let StatBlobRequest { digest, capability } = request.into_inner();
        let digest = fields::digest("digest", &digest)?;
        self.allow(&peer, &capability, &digest)?;
        let info = self.blobs.stat(digest).await;
        Ok(Response::new(message(
            info.map_err(|error| self.failed(error))?,
        )))
    }

    async fn scrub(
        &self,
        request: Request<ScrubRequest>,
    ) -> Result<Response<Self::ScrubStream>, Status> {
        let only = fields::optional_id::<Sha256Digest>("digest", &request.into_inner().digest)?;
        let permit = take(&self.scrubs, "scrubs")?;
        let digests = match only {
            Some(digest) => stream::iter([Ok(digest)]).boxed(),
            None => self.blobs.list().map_ok(|(digest, _)| digest).boxed(),
        };
        let (blobs, counts) = (self.blobs.clone(), self.counts.clone());
        let reports = digests.and_then(move |digest| {
            let blobs = blobs.clone();
            async move { blobs.scrub(digest).await }
        });
        let reports = reports.map(move |report| {
            let _held = &permit;
            let report = report.map_err(|error| Status::from(StorageError::from(error)))?;
            if let Some(problem) = report.problem {
                counts.damaged.inc();
                tracing::error!(digest = %report.digest, %problem, "a stored blob is damaged");
            }
            Ok(ScrubReport {
                digest: report.digest.to_string(),
                size: report.size,
                intact: report.problem.is_none(),
                problem: report
                    .problem
                    .map(|problem| problem.to_string())
                    .unwrap_or_default(),
            })
        });
        Ok(Response::new(end_at_error(reports)))
    }
}

impl Storage {
    fn allow(
        &self,
        peer: &Peer,
        token: &str,
        blob: &Sha256Digest,
    ) -> Result<Allowed, StorageError> {
        let allowed = self
            .access
            .check(peer, token, blob, unix_seconds(&*self.clock));
        allowed.inspect_err(|error| {
            self.counts.refused_capabilities.inc();
            tracing::warn!(peer = %peer.spiffe, %blob, reason = error.reason(), "read refused");
        })
    }

    fn failed(&self, error: BlobError) -> StorageError {
        failed(&self.counts, error)
    }
}

fn failed(counts: &Counts, error: BlobError) -> StorageError {
    let error = StorageError::from(error);
    if error.fault() == Fault::DataLoss {
        counts.damaged.inc();
        tracing::error!(%error, "a stored blob is damaged");
    }
    error
}

/// The data of an upload after its header.
fn data(
    messages: Streaming<PutBlobRequest>,
    pause: Duration,
) -> impl Stream<Item = Result<Bytes, StorageError>> + Send {
    stream::try_unfold(messages, move |mut messages| async move {
        match next(&mut messages, pause).await? {
            None => Ok(None),
            Some(PutBlobRequest {
                part: Some(Part::Data(data)),
            }) => Ok(Some((data, messages))),
            Some(_) => Err(InvalidField::new("data", "required after the header").into()),
        }
    })
}

/// The next message of an upload, within the longest pause.
async fn next(
    messages: &mut Streaming<PutBlobRequest>,
    pause: Duration,
) -> Result<Option<PutBlobRequest>, StorageError> {
    match timeout(pause, messages.message()).await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(status)) => Err(StorageError::Broken(Box::new(status))),
        Err(_) => Err(StorageError::Stalled {
            seconds: pause.as_secs(),
        }),
    }
}

fn take(places: &Arc<Semaphore>, what: &'static str) -> Result<OwnedSemaphorePermit, StorageError> {
    places
        .clone()
        .try_acquire_owned()
        .map_err(|_| StorageError::Busy(what))
}

/// Ends a stream after its first error.
fn end_at_error<T: Send + 'static>(
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> Answers<T> {
    let mut failed = false;
    Box::pin(answers.take_while(move |answer| {
        let more = !failed;
        failed |= answer.is_err();
        std::future::ready(more)
    }))
}

fn message(info: blob_store::BlobInfo) -> BlobInfo {
    BlobInfo {
        digest: info.digest.to_string(),
        size: info.size,
        chunk_root: info.chunk_root.to_string(),
    }
}

fn unix_seconds(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.unix_seconds()).unwrap_or(0)
}
