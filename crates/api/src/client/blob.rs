//! Whole blobs from a storage node.

use std::time::Duration;

use proto::v1::{GetBlobRequest, GetBlobResponse};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;

use super::retry::{Retry, is_transient};
use super::{Client, explain};

/// Why a blob could not be read whole.
#[derive(Debug, thiserror::Error)]
pub enum ReadBlobError {
    /// What storage answered, after every attempt.
    #[error("{}", explain(.0))]
    Status(Box<Status>),
    /// Storage sent nothing for too long.
    #[error("storage sent nothing for {} seconds", STALL.as_secs())]
    Silent,
    /// Storage ended its answer early, time after time.
    #[error("storage ended its answer at {received} of {size} bytes")]
    Short {
        /// Bytes received.
        received: u64,
        /// Bytes of the blob.
        size: u64,
    },
    /// Storage sends more than the blob has.
    #[error("storage sends more than the {size} bytes of the blob")]
    Long {
        /// Bytes of the blob.
        size: u64,
    },
    /// Whoever takes the pieces stopped taking them.
    #[error("the pieces are not taken any more")]
    Closed,
    /// The taker's thread failed.
    #[error("the thread that takes the pieces failed")]
    Task(#[from] tokio::task::JoinError),
}

impl Client {
    /// Reads a blob of `size` bytes: `take` gets its pieces in order, at most 1 MiB each, on a thread
    /// of its own, and may end early, with its own reason. A stream that breaks off is read on.
    /// Nothing is verified: the taker compares digest and size, and what it made of the pieces of a
    /// read that failed is dropped. Needs a role that reads without a capability.
    pub async fn read_blob<T: Send + 'static>(
        &self,
        digest: &str,
        size: u64,
        take: impl FnOnce(&mut dyn Iterator<Item = GetBlobResponse>) -> T + Send + 'static,
    ) -> Result<T, ReadBlobError> {
        let (pieces, mut arriving) = mpsc::channel(PIECES_AHEAD);
        let taker = tokio::task::spawn_blocking(move || {
            take(&mut std::iter::from_fn(|| arriving.blocking_recv()))
        });
        let received = self.receive(digest, size, &pieces).await;
        drop(pieces);
        let taken = taker.await?;
        match received {
            Ok(()) | Err(ReadBlobError::Closed) => Ok(taken),
            Err(error) => Err(error),
        }
    }

    async fn receive(
        &self,
        digest: &str,
        size: u64,
        pieces: &mpsc::Sender<GetBlobResponse>,
    ) -> Result<(), ReadBlobError> {
        let (mut received, mut failures) = (0, 0);
        while received < size {
            let before = received;
            let error = match self.read_on(digest, size, &mut received, pieces).await {
                Ok(()) => ReadBlobError::Short { received, size },
                Err(ReadBlobError::Status(status)) if is_transient(&status) => {
                    ReadBlobError::Status(status)
                }
                Err(error) => return Err(error),
            };
            failures = if received > before { 1 } else { failures + 1 };
            if received < size {
                if failures >= Retry::ATTEMPTS {
                    return Err(error);
                }
                tokio::time::sleep(self.retry.pause(failures)).await;
            }
        }
        Ok(())
    }

    /// One stream, from the first byte that is not here yet.
    async fn read_on(
        &self,
        digest: &str,
        size: u64,
        received: &mut u64,
        pieces: &mpsc::Sender<GetBlobResponse>,
    ) -> Result<(), ReadBlobError> {
        let request = GetBlobRequest {
            digest: digest.to_owned(),
            offset: *received,
            length: size - *received,
            capability: String::new(),
        };
        let refused = |status| ReadBlobError::Status(Box::new(status));
        let mut service = self.storage_service();
        let answers = timeout(STALL, service.get_blob(request)).await;
        let answers = answers.map_err(|_| ReadBlobError::Silent)?;
        let mut answers = answers.map_err(refused)?.into_inner();
        loop {
            let answer = timeout(STALL, answers.message()).await;
            let answer = answer.map_err(|_| ReadBlobError::Silent)?;
            let Some(piece) = answer.map_err(refused)? else {
                return Ok(());
            };
            let length = piece.data.len() as u64;
            if length > size - *received {
                return Err(ReadBlobError::Long { size });
            }
            if pieces.send(piece).await.is_err() {
                return Err(ReadBlobError::Closed);
            }
            *received += length;
        }
    }
}

/// Pieces that wait for the taker.
const PIECES_AHEAD: usize = 8;
/// Longest silence of a stream.
const STALL: Duration = Duration::from_secs(30);
