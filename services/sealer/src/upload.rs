//! Files of the output into storage.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use api::client::Client;
use api::v1;
use api::v1::put_blob_request::Part;
use identifiers::Sha256Digest;
use sha2::{Digest as _, Sha256};
use tlog::ChunkHasher;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::failure::JobError;

/// Stores a file as a blob and gives its chunk root. A blob that is there already is not sent.
pub async fn put(
    storage: &Client,
    path: &Path,
    sha256: Sha256Digest,
    size: u64,
) -> Result<Sha256Digest, JobError> {
    let (stored, chunk_root) = match stat(storage, sha256).await {
        Ok(Some(stored)) => {
            let path = path.to_owned();
            let root = spawn_blocking(move || read(&path, |_| true)).await??;
            (stored, root)
        }
        Ok(None) => {
            let sent = storage.call(|| send(storage, path, sha256, size)).await;
            sent.map_err(|status| JobError::of_storage(&status))?
        }
        Err(status) => return Err(JobError::of_storage(&status)),
    };
    if stored.size == size && stored.chunk_root == chunk_root.to_string() {
        return Ok(chunk_root);
    }
    let message = format!("storage: blob {sha256} is stored with another size or chunk root");
    Err(JobError::refused("storage-refused", message))
}

/// SHA-256 and size of a file.
pub fn digest(path: &Path) -> io::Result<(Sha256Digest, u64)> {
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE];
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            return Ok((Sha256Digest::new(hash.finalize().into()), size));
        }
        hash.update(&piece[..length]);
        size += length as u64;
    }
}

async fn stat(storage: &Client, sha256: Sha256Digest) -> Result<Option<v1::BlobInfo>, Status> {
    let digest = sha256.to_string();
    let answer = storage
        .call(|| {
            let mut service = storage.storage_service();
            let request = v1::StatBlobRequest {
                digest: digest.clone(),
                capability: String::new(),
            };
            async move { service.stat_blob(request).await }
        })
        .await;
    match answer {
        Ok(info) => Ok(Some(info.into_inner())),
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// One upload. The file is read and hashed on a thread of its own, a few pieces ahead.
async fn send(
    storage: &Client,
    path: &Path,
    sha256: Sha256Digest,
    size: u64,
) -> Result<(v1::BlobInfo, Sha256Digest), Status> {
    let (pieces, messages) = mpsc::channel(PIECES_AHEAD);
    let header = v1::PutBlobHeader {
        digest: sha256.to_string(),
        size,
    };
    let path = path.to_owned();
    let reader = spawn_blocking(move || {
        let message = |part| v1::PutBlobRequest { part: Some(part) };
        if pieces.blocking_send(message(Part::Header(header))).is_err() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        read(&path, |piece| {
            let data = Part::Data(piece.to_vec().into());
            pieces.blocking_send(message(data)).is_ok()
        })
    });
    let mut service = storage.storage_service();
    let answer = service.put_blob(ReceiverStream::new(messages)).await;
    let root = reader
        .await
        .map_err(|_| Status::internal("the reader of an upload failed"))?;
    match (answer, root) {
        (Ok(info), Ok(root)) => Ok((info.into_inner(), root)),
        (Err(status), _) => Err(status),
        // Storage got the blob from someone else meanwhile and did not wait for the rest: the next
        // attempt finds it there.
        (Ok(_), Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Err(Status::aborted("the upload ended early"))
        }
        (Ok(_), Err(error)) => {
            let message = format!("the output could not be read back: {error}");
            Err(Status::data_loss(message))
        }
    }
}

/// Reads a file through, until `take` says to stop, and gives its chunk root.
fn read(path: &Path, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<Sha256Digest> {
    let mut file = File::open(path)?;
    let mut chunks = ChunkHasher::new();
    let mut piece = vec![0; PIECE];
    loop {
        let length = file.read(&mut piece)?;
        if length == 0 {
            return Ok(chunks.finish().root());
        }
        chunks.update(&piece[..length]);
        if !take(&piece[..length]) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
    }
}

/// Bytes of a message's data.
const PIECE: usize = 512 * 1024;
const PIECES_AHEAD: usize = 4;
