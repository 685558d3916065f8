use std::error::Error;

use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use identifiers::Sha256Digest;
use object_store::{MultipartUpload, ObjectStoreExt, PutMode, PutPayload};
use sha2::{Digest as _, Sha256};
use tlog::ChunkHasher;

use crate::index::ChunkIndex;
use crate::store::{blob_key, blocking, chunks_key};
use crate::{BlobError, BlobInfo, BlobStore};

/// The outcome of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The blob.
    pub info: BlobInfo,
    /// False when the blob was there already.
    pub created: bool,
}

impl BlobStore {
    /// Stores a blob of an announced digest and size. The body is hashed while it is written and
    /// becomes visible only when both are right; putting a blob that is there already changes
    /// nothing and still reads and checks the whole body. Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// When digest or length differ, the body fails, the store is full ([`BlobError::NoSpace`]) or
    /// fails; nothing of the blob is visible then.
    pub async fn put<E>(
        &self,
        digest: Sha256Digest,
        size: u64,
        body: impl Stream<Item = Result<Bytes, E>> + Send,
    ) -> Result<Stored, BlobError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let limit = self.options.max_blob;
        if size > limit {
            return Err(BlobError::TooLarge {
                digest,
                size,
                limit,
            });
        }
        if self.free_bytes().await?.is_some_and(|free| size > free) {
            return Err(BlobError::NoSpace { digest, size });
        }
        let present = self.present(digest, size).await?;
        let mut parts = Parts::new(digest, size, body);
        let first = parts.next().await?.unwrap_or_default();
        if present || first.len() as u64 == size {
            self.put_at_once(parts, first, present).await
        } else {
            self.put_in_parts(parts, first).await
        }
    }

    /// A body of one part, or one whose blob is there already: written with a conditional put.
    async fn put_at_once<E, S>(
        &self,
        mut parts: Parts<S>,
        first: Bytes,
        present: bool,
    ) -> Result<Stored, BlobError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
        S: Stream<Item = Result<Bytes, E>> + Send,
    {
        let (digest, size) = (parts.digest, parts.size);
        let mut hashes = Hashes::default();
        hashes = hashes.update(first.clone()).await?;
        while let Some(part) = parts.next().await? {
            hashes = hashes.update(part).await?;
        }
        let index = hashes.finish(digest, size)?;
        let info = info(digest, &index);
        self.put_index(digest, &index).await?;
        if present {
            return Ok(Stored {
                info,
                created: false,
            });
        }
        let written = self
            .store
            .put_opts(&blob_key(digest), first.into(), PutMode::Create.into())
            .await;
        let created = match written {
            Ok(_) => true,
            // Another upload of the same bytes was faster.
            Err(object_store::Error::AlreadyExists { .. }) => false,
            Err(error) => return Err(BlobError::store("writing a blob", digest, size)(error)),
        };
        Ok(Stored { info, created })
    }

    async fn put_in_parts<E, S>(&self, parts: Parts<S>, first: Bytes) -> Result<Stored, BlobError>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
        S: Stream<Item = Result<Bytes, E>> + Send,
    {
        let (digest, size) = (parts.digest, parts.size);
        let failed = || BlobError::store("writing a blob", digest, size);
        let upload = self.store.put_multipart(&blob_key(digest)).await;
        let mut upload = upload.map_err(failed())?;
        let written = write_parts(upload.as_mut(), parts, first).await;
        // The upload becomes a blob only by `complete`, after everything was found right.
        let outcome = match written {
            Ok(index) => self.publish(upload.as_mut(), digest, index).await,
            Err(error) => Err(error),
        };
        if !matches!(outcome, Ok(Stored { created: true, .. })) {
            // Best effort: what stays is invisible and is removed at the next start.
            let _ = upload.abort().await;
        }
        outcome
    }

    async fn publish(
        &self,
        upload: &mut dyn MultipartUpload,
        digest: Sha256Digest,
        index: ChunkIndex,
    ) -> Result<Stored, BlobError> {
        let info = info(digest, &index);
        self.put_index(digest, &index).await?;
        // Completing is atomic. Two uploads that both get here write the same bytes.
        let created = !self.present(digest, index.size).await?;
        if created {
            upload.complete().await.map_err(BlobError::store(
                "writing a blob",
                digest,
                index.size,
            ))?;
        }
        Ok(Stored { info, created })
    }

    /// Whether the blob is there with this size; one of another size is damaged and is replaced.
    async fn present(&self, digest: Sha256Digest, size: u64) -> Result<bool, BlobError> {
        match self.size(digest).await {
            Ok(found) => Ok(found == size),
            Err(BlobError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn put_index(
        &self,
        digest: Sha256Digest,
        index: &ChunkIndex,
    ) -> Result<(), BlobError> {
        let payload = PutPayload::from(index.encode());
        self.store
            .put(&chunks_key(digest), payload)
            .await
            .map(drop)
            .map_err(BlobError::store(
                "writing a chunk index",
                digest,
                index.size,
            ))
    }
}

/// Writes and hashes every part, the two beside each other.
async fn write_parts<E, S>(
    upload: &mut dyn MultipartUpload,
    mut parts: Parts<S>,
    first: Bytes,
) -> Result<ChunkIndex, BlobError>
where
    E: Into<Box<dyn Error + Send + Sync>>,
    S: Stream<Item = Result<Bytes, E>> + Send,
{
    let (digest, size) = (parts.digest, parts.size);
    let mut hashes = Hashes::default();
    let mut next = Some(first);
    while let Some(part) = next {
        let write = upload.put_part(part.clone().into());
        let write = async {
            write
                .await
                .map_err(BlobError::store("writing a blob", digest, size))
        };
        let (hashed, (), following) = tokio::try_join!(hashes.update(part), write, parts.next())?;
        hashes = hashed;
        next = following;
    }
    hashes.finish(digest, size)
}

/// A body gathered into parts of [`part_bytes`], with its length checked.
struct Parts<S> {
    digest: Sha256Digest,
    size: u64,
    part: usize,
    body: std::pin::Pin<Box<S>>,
    gathered: BytesMut,
    taken: u64,
    ended: bool,
}

impl<E, S> Parts<S>
where
    E: Into<Box<dyn Error + Send + Sync>>,
    S: Stream<Item = Result<Bytes, E>> + Send,
{
    fn new(digest: Sha256Digest, size: u64, body: S) -> Self {
        Self {
            digest,
            size,
            part: part_bytes(size),
            body: Box::pin(body),
            gathered: BytesMut::new(),
            taken: 0,
            ended: false,
        }
    }

    /// The next part, shorter than the others only at the end; none after that.
    async fn next(&mut self) -> Result<Option<Bytes>, BlobError> {
        let digest = self.digest;
        while !self.ended && self.gathered.len() < self.part {
            let Some(piece) = self.body.next().await else {
                self.ended = true;
                break;
            };
            let piece = piece.map_err(|error| BlobError::Upload {
                digest,
                source: error.into(),
            })?;
            self.taken = self.taken.saturating_add(piece.len() as u64);
            if self.taken > self.size {
                return Err(self.wrong_length());
            }
            self.gathered.extend_from_slice(&piece);
        }
        if self.ended && self.taken < self.size {
            return Err(self.wrong_length());
        }
        let len = self.gathered.len().min(self.part);
        Ok((len > 0).then(|| self.gathered.split_to(len).freeze()))
    }

    fn wrong_length(&self) -> BlobError {
        BlobError::Length {
            digest: self.digest,
            expected: self.size,
            found: self.taken,
        }
    }
}

/// Both hashes of a body so far.
#[derive(Default)]
struct Hashes {
    whole: Sha256,
    chunks: ChunkHasher,
}

impl Hashes {
    async fn update(self, part: Bytes) -> Result<Self, BlobError> {
        let Self {
            mut whole,
            mut chunks,
        } = self;
        let again = part.clone();
        let (whole, chunks) = tokio::try_join!(
            blocking(move || {
                whole.update(&part);
                Ok(whole)
            }),
            blocking(move || {
                chunks.update(&again);
                Ok(chunks)
            }),
        )?;
        Ok(Self { whole, chunks })
    }

    fn finish(self, expected: Sha256Digest, size: u64) -> Result<ChunkIndex, BlobError> {
        let found = Sha256Digest::new(self.whole.finalize().into());
        if found == expected {
            let tree = self.chunks.finish();
            Ok(ChunkIndex { size, tree })
        } else {
            Err(BlobError::DigestMismatch { expected, found })
        }
    }
}

fn info(digest: Sha256Digest, index: &ChunkIndex) -> BlobInfo {
    BlobInfo {
        digest,
        size: index.size,
        chunk_root: index.tree.root(),
    }
}

/// Bytes written at once: at least 8 MiB (S3 asks for 5 of every part but the last), and so many that
/// the parts stay below the 10 000 that S3 allows.
fn part_bytes(size: u64) -> usize {
    let mib = size.div_ceil(MOST_PARTS << 20).max(8);
    usize::try_from(mib << 20).unwrap_or(usize::MAX)
}

const MOST_PARTS: u64 = 9000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_neither_too_small_nor_too_many_for_a_remote_store() {
        for size in [0, 1, 8 << 20, 70 << 30, 500 << 30, 1 << 40, 5 << 40] {
            let part = part_bytes(size) as u64;
            assert!(
                part >= 8 << 20 && size.div_ceil(part) <= 9000,
                "{size}: {part}"
            );
        }
    }
}
