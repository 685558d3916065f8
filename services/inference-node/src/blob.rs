//! A container in storage, read by ranges: several in flight, resumed where one broke off.

use std::cell::RefCell;
use std::future::Future;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use api::client::{Client, Retry, explain, is_transient};
use api::v1;
use direct_io::Arrived;
use futures::stream::{FuturesUnordered, StreamExt};
use identifiers::Sha256Digest;
use pager::{RangeSource, SourceError};
use rayon::prelude::*;
use service_runtime::CancellationToken;
use tlog::{CHUNK_BYTES, ProofError, chunk_leaf, verify_chunks};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tonic::{Code, Status};

/// The capability token in use; a renewal replaces it for every read that starts after.
#[derive(Clone)]
pub struct Token(Arc<RwLock<Arc<str>>>);

impl Token {
    /// A token as the key service minted it.
    #[must_use]
    pub fn new(token: &str) -> Self {
        Self(Arc::new(RwLock::new(token.into())))
    }

    /// Takes the place of the token that ends.
    pub fn replace(&self, token: &str) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token.into();
    }

    fn current(&self) -> Arc<str> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// One blob of a storage node. Reads block and are for threads outside the runtime.
pub struct Blob {
    /// Connects to the node, as the one that the token is bound to.
    pub client: Client,
    /// Its name in storage.
    pub digest: Sha256Digest,
    /// Bytes, as the manifest says.
    pub size: u64,
    /// What proven reads are compared with, from the manifest.
    pub chunk_root: Sha256Digest,
    /// What storage lets it be read by.
    pub token: Token,
    /// Where the connection is driven.
    pub runtime: Handle,
    /// Ends every read.
    pub stop: CancellationToken,
    /// Ranges of one read that are in flight together, at least 1.
    pub streams: usize,
    /// Pauses between attempts.
    pub retry: Retry,
}

/// Why a range could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Storage refused, or failed for longer than a read waits.
    #[error("storage answered {:?}: {}", .0.code(), explain(.0))]
    Status(Box<Status>),
    /// Storage ends its answers too early, each time.
    #[error("storage ends its answer {missing} bytes before the end of the range")]
    Short {
        /// Bytes that are missing.
        missing: usize,
    },
    /// Storage sends more than was asked for.
    #[error("storage sends more than the range that was asked for")]
    TooMuch,
    /// A proof that holds something else than hashes.
    #[error("storage sends a proof with a hash of {0} bytes")]
    NoHash(usize),
    /// Storage sends other bytes than the manifest's, or a proof of others.
    #[error("what storage sends is not the blob of the manifest")]
    NotProven(#[from] ProofError),
    /// Storage goes silent, each time.
    #[error("storage sent nothing for {} seconds", STALL.as_secs())]
    Stalled,
    /// The model is being closed.
    #[error("the model is being closed")]
    Stopped,
}

impl ReadError {
    /// Whether storage is away, and not refusing.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            // A busy node says so with RESOURCE_EXHAUSTED.
            Self::Status(status) => {
                is_transient(status)
                    || matches!(
                        status.code(),
                        Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled
                    )
            }
            Self::Short { .. } | Self::Stalled => true,
            Self::TooMuch | Self::NoHash(_) | Self::NotProven(_) | Self::Stopped => false,
        }
    }
}

/// Takes pieces of the range as they become complete.
type Taker<'a, 'b> = RefCell<&'a mut Arrived<'b>>;

/// One of the ranges that a read is split into.
struct Part<'a> {
    /// Where it starts in the blob.
    offset: u64,
    /// Where it starts in the read.
    base: usize,
    out: &'a mut [u8],
    /// Bytes that are there.
    got: usize,
    /// Bytes that were handed on.
    handed: usize,
}

impl Part<'_> {
    /// Takes bytes in, and hands on the pieces that they complete.
    fn take(
        &mut self,
        data: &[u8],
        piece: usize,
        taker: &Taker<'_, '_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let room = &mut self.out[self.got..];
        let room = room.get_mut(..data.len()).ok_or(ReadError::TooMuch)?;
        room.copy_from_slice(data);
        self.got += data.len();
        while self.handed < self.got {
            let end = self.out.len().min(self.handed + piece);
            if end > self.got {
                break;
            }
            let bytes = &mut self.out[self.handed..end];
            if (taker.borrow_mut())(self.base + self.handed, bytes).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            self.handed = end;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn missing(&self) -> usize {
        self.out.len() - self.got
    }
}

impl Blob {
    /// Reads a range whole.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let mut ignore = |_: usize, _: &mut [u8]| ControlFlow::Continue(());
        self.read_parts(offset, out, MIN_PART, &mut ignore)
            .map(drop)
    }

    /// Reads a range, and proves it against the chunk root: what comes back is what the manifest's
    /// signer saw. Whole chunks are read and hashed for it, so this is for what no key
    /// authenticates, not for pages.
    pub(crate) fn read_proven(&self, range: Range<u64>) -> Result<Vec<u8>, ReadError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let chunk = CHUNK_BYTES as u64;
        let first = range.start / chunk;
        let end = range.end.next_multiple_of(chunk).min(self.size);
        let start = first * chunk;
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        self.read(start, &mut bytes)?;
        let leaves: Vec<_> = bytes.par_chunks(CHUNK_BYTES).map(chunk_leaf).collect();
        let path = self.wait_for(self.proof(&range))?;
        let chunks = self.size.div_ceil(chunk);
        verify_chunks(&leaves, first, chunks, &path, &self.chunk_root)?;
        bytes.truncate((range.end - start) as usize);
        bytes.drain(..(range.start - start) as usize);
        Ok(bytes)
    }

    /// The hashes beside the chunks of a range.
    async fn proof(&self, range: &Range<u64>) -> Result<Vec<Sha256Digest>, ReadError> {
        let mut failures = 0;
        loop {
            let token = self.token.current();
            let request = v1::ProveRangeRequest {
                digest: self.digest.to_string(),
                offset: range.start,
                length: range.end - range.start,
                capability: token.to_string(),
            };
            let mut storage = self.client.storage_service();
            let error = match timeout(STALL, storage.prove_range(request)).await {
                Ok(Ok(proof)) => {
                    let path = proof.into_inner().path;
                    let hash = |hash: Vec<u8>| match <[u8; 32]>::try_from(hash) {
                        Ok(hash) => Ok(Sha256Digest::new(hash)),
                        Err(other) => Err(ReadError::NoHash(other.len())),
                    };
                    return path.into_iter().map(hash).collect();
                }
                Ok(Err(status)) => status.into(),
                Err(_) => ReadError::Stalled,
            };
            failures += 1;
            if !self.goes_on(&error, failures, &token) {
                return Err(error);
            }
            tracing::debug!(blob = %self.digest, %error, "asking for the proof again");
            tokio::time::sleep(self.retry.pause(failures)).await;
        }
    }

    /// Whether a read is tried again that failed this often in a row, with this token.
    fn goes_on(&self, error: &ReadError, failures: u32, token: &str) -> bool {
        // A token that ended was renewed in the meantime, or it is over.
        let renewed = matches!(error, ReadError::Status(status)
            if status.code() == Code::Unauthenticated && *token != *self.token.current());
        failures <= ATTEMPTS && (renewed || error.is_transient())
    }

    /// Waits, outside the runtime's threads, until the work is done or the model is closed.
    fn wait_for<T>(
        &self,
        work: impl Future<Output = Result<T, ReadError>>,
    ) -> Result<T, ReadError> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => Err(ReadError::Stopped),
                done = work => done,
            }
        })
    }

    fn read_parts(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let taker = RefCell::new(arrived);
        let share = out.len().div_ceil(self.streams).max(MIN_PART);
        let share = share.next_multiple_of(piece);
        let all = async {
            let mut parts: FuturesUnordered<_> = out
                .chunks_mut(share)
                .enumerate()
                .map(|(index, out)| {
                    let base = index * share;
                    let part = Part {
                        offset: offset + base as u64,
                        base,
                        out,
                        got: 0,
                        handed: 0,
                    };
                    self.read_part(part, piece, &taker)
                })
                .collect();
            while let Some(done) = parts.next().await {
                if done?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        };
        self.wait_for(all)
    }

    /// Reads one part to its end, over as many streams as it takes.
    async fn read_part(
        &self,
        mut part: Part<'_>,
        piece: usize,
        taker: &Taker<'_, '_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let mut failures = 0;
        loop {
            let token = self.token.current();
            let before = part.got;
            let error = match self.read_stream(&mut part, &token, piece, taker).await {
                Ok(ControlFlow::Break(())) => return Ok(ControlFlow::Break(())),
                Ok(ControlFlow::Continue(())) if part.missing() == 0 => {
                    return Ok(ControlFlow::Continue(()));
                }
                Ok(ControlFlow::Continue(())) => ReadError::Short {
                    missing: part.missing(),
                },
                Err(error) => error,
            };
            failures = if part.got > before { 1 } else { failures + 1 };
            if !self.goes_on(&error, failures, &token) {
                return Err(error);
            }
            tracing::debug!(blob = %self.digest, at = part.got, %error, "reading on");
            tokio::time::sleep(self.retry.pause(failures)).await;
        }
    }

    /// Reads one stream from where the part stands.
    async fn read_stream(
        &self,
        part: &mut Part<'_>,
        token: &str,
        piece: usize,
        taker: &Taker<'_, '_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        if part.missing() == 0 {
            return Ok(ControlFlow::Continue(()));
        }
        let request = v1::GetBlobRequest {
            digest: self.digest.to_string(),
            offset: part.offset + part.got as u64,
            length: part.missing() as u64,
            capability: token.to_owned(),
        };
        let mut storage = self.client.storage_service();
        let mut answers = timeout(STALL, storage.get_blob(request))
            .await
            .map_err(|_| ReadError::Stalled)??
            .into_inner();
        loop {
            let answer = timeout(STALL, answers.message());
            match answer.await.map_err(|_| ReadError::Stalled)?? {
                None => return Ok(ControlFlow::Continue(())),
                Some(answer) => {
                    if part.take(&answer.data, piece, taker)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
    }
}

impl From<Status> for ReadError {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl RangeSource for Blob {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        Ok(self.read(offset, out)?)
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        Ok(self.read_parts(offset, out, piece, arrived)?)
    }
}

/// A range is not split further.
const MIN_PART: usize = 1 << 20;
/// Streams in a row that may fail without a byte.
const ATTEMPTS: u32 = 8;
/// Longest silence of a stream.
const STALL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
