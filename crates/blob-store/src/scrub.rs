use std::fmt;

use futures::TryStreamExt;
use identifiers::Sha256Digest;
use object_store::{GetResultPayload, ObjectStoreExt};
use sha2::{Digest as _, Sha256};
use std::fs;
use std::io::Read;
use tlog::{CHUNK_BYTES, ChunkHasher, ChunkTree};

use crate::index::ChunkIndex;
use crate::store::{blob_key, blocking, io};
use crate::{BlobError, BlobStore};

/// What is wrong with a stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// Its bytes hash to something else.
    Digest {
        /// What they hash to.
        found: Sha256Digest,
    },
    /// It has another size than its chunk index says.
    Size {
        /// Bytes by the index.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A chunk of 1 MiB, counted from 0, is not what was put.
    Chunk(u64),
    /// The chunk index is missing, malformed or not that of these bytes.
    Index,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digest { found } => write!(f, "its bytes hash to {found}"),
            Self::Size { expected, found } => {
                write!(f, "it has {found} bytes, its chunk index says {expected}")
            }
            Self::Chunk(chunk) => write!(f, "chunk {chunk} is not what was put"),
            Self::Index => f.write_str("its chunk index is missing or wrong"),
        }
    }
}

/// The outcome of hashing a stored blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubReport {
    /// The blob.
    pub digest: Sha256Digest,
    /// Bytes found.
    pub size: u64,
    /// What is wrong; none when everything is as it was put.
    pub problem: Option<Problem>,
}

impl BlobStore {
    /// Hashes a stored blob and compares it with its name and its chunk index.
    ///
    /// # Errors
    /// [`BlobError::NotFound`], or when the store fails. Damage is not an error but a report.
    pub async fn scrub(&self, digest: Sha256Digest) -> Result<ScrubReport, BlobError> {
        let (found, size, tree) = self.hash(digest).await?;
        let problem = if found == digest {
            match self.index(digest, size).await {
                Ok(index) => (index.tree != tree).then_some(Problem::Index),
                Err(BlobError::Damaged { problem, .. }) => Some(problem),
                Err(error) => return Err(error),
            }
        } else {
            Some(Problem::Digest { found })
        };
        Ok(ScrubReport {
            digest,
            size,
            problem,
        })
    }

    /// Writes the chunk index of an intact blob anew; false when the blob itself is damaged.
    ///
    /// # Errors
    /// As [`BlobStore::scrub`].
    pub async fn rebuild_index(&self, digest: Sha256Digest) -> Result<bool, BlobError> {
        let (found, size, tree) = self.hash(digest).await?;
        let intact = found == digest;
        if intact {
            self.put_index(digest, &ChunkIndex { size, tree }).await?;
        }
        Ok(intact)
    }

    async fn hash(
        &self,
        digest: Sha256Digest,
    ) -> Result<(Sha256Digest, u64, ChunkTree), BlobError> {
        let failed = || BlobError::store("reading a blob", digest, 0);
        let found = self.store.get(&blob_key(digest)).await.map_err(failed())?;
        let mut hashes = (Sha256::new(), ChunkHasher::new(), 0);
        match found.payload {
            GetResultPayload::File(file, _) => {
                hashes = blocking(move || hash_file(file, hashes)).await?
            }
            GetResultPayload::Stream(mut body) => {
                while let Some(bytes) = body.try_next().await.map_err(failed())? {
                    hashes = blocking(move || {
                        let (mut whole, mut chunks, size) = hashes;
                        whole.update(&bytes);
                        chunks.update(&bytes);
                        Ok((whole, chunks, size + bytes.len() as u64))
                    })
                    .await?;
                }
            }
        }
        let (whole, chunks, size) = hashes;
        Ok((
            Sha256Digest::new(whole.finalize().into()),
            size,
            chunks.finish(),
        ))
    }
}

fn hash_file(
    mut file: fs::File,
    (mut whole, mut chunks, mut size): (Sha256, ChunkHasher, u64),
) -> Result<(Sha256, ChunkHasher, u64), BlobError> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok((whole, chunks, size)),
            Ok(n) => {
                whole.update(&buffer[..n]);
                chunks.update(&buffer[..n]);
                size += n as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io("reading a blob")(error)),
        }
    }
}
