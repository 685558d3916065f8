use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use identifiers::Sha256Digest;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectStore, ObjectStoreExt};
use tlog::{CHUNK_BYTES, chunk_leaf};
use tokio::sync::mpsc;

use crate::index::{HEAD_BYTES, RangeProof, chunks};
use crate::store::{blob_key, chunks_key};
use crate::{BlobError, BlobStore, Problem};

/// A range of a blob on its way.
pub struct BlobRange {
    /// Size of the whole blob in bytes.
    pub size: u64,
    /// The bytes of the blob that follow.
    pub range: Range<u64>,
    /// The bytes in order, in pieces of at most [`crate::PIECE_BYTES`], each checked against the
    /// chunk index before it is handed out. A bounded number is read ahead.
    pub pieces: BoxStream<'static, Result<Bytes, BlobError>>,
}

impl BlobStore {
    /// Reads `length` bytes of a blob from `offset`; none means to the end.
    ///
    /// # Errors
    /// [`BlobError::NotFound`], [`BlobError::OutOfRange`], or when the store fails; in the stream
    /// [`BlobError::Damaged`] at the first chunk that is not what was put.
    pub async fn get(
        &self,
        digest: Sha256Digest,
        offset: u64,
        length: Option<u64>,
    ) -> Result<BlobRange, BlobError> {
        let size = self.size(digest).await?;
        let range = range_of(digest, size, offset, length)?;
        if range.is_empty() {
            let pieces = stream::empty().boxed();
            return Ok(BlobRange {
                size,
                range,
                pieces,
            });
        }
        let first = range.start / CHUNK_BYTES as u64;
        let end = chunks(range.end);
        let covering = first * CHUNK_BYTES as u64..size.min(end * CHUNK_BYTES as u64);

        let leaves = HEAD_BYTES as u64 + first * 32..HEAD_BYTES as u64 + end * 32;
        let wanted = leaves.end - leaves.start;
        let leaves = self.store.get_range(&chunks_key(digest), leaves).await;
        let leaves = leaves.map_err(self.index_error(digest))?;
        if leaves.len() as u64 != wanted {
            return Err(BlobError::Damaged {
                digest,
                problem: Problem::Index,
            });
        }
        let check = Check {
            digest,
            first,
            leaves,
            covering: covering.clone(),
            range: range.clone(),
        };

        let options = GetOptions::new().with_range(Some(GetRange::Bounded(covering)));
        let found = self.store.get_opts(&blob_key(digest), options).await;
        let found = found.map_err(BlobError::store("reading a blob", digest, 0))?;
        let pieces = match found.payload {
            GetResultPayload::File(file, _) => pieces_of_file(file, check),
            GetResultPayload::Stream(body) => pieces_of_stream(body, check),
        };
        Ok(BlobRange {
            size,
            range,
            pieces,
        })
    }

    /// What proves the chunks that cover a range against the blob's chunk root.
    ///
    /// # Errors
    /// As [`BlobStore::get`]; an empty range has no proof and is out of range.
    pub async fn range_proof(
        &self,
        digest: Sha256Digest,
        offset: u64,
        length: Option<u64>,
    ) -> Result<RangeProof, BlobError> {
        let size = self.size(digest).await?;
        let range = range_of(digest, size, offset, length)?;
        let index = self.index(digest, size).await?;
        let (first, end) = (range.start / CHUNK_BYTES as u64, chunks(range.end));
        let path = index
            .tree
            .range_proof(first, end)
            .map_err(|_| BlobError::OutOfRange {
                digest,
                offset,
                length: length.unwrap_or(0),
                size,
            })?;
        Ok(RangeProof {
            first,
            end,
            chunks: chunks(size),
            path,
        })
    }
}

/// What the chunks of a range must hash to, and how much of them was asked for.
struct Check {
    digest: Sha256Digest,
    first: u64,
    /// Leaf hashes of the covering chunks, 32 bytes each.
    leaves: Bytes,
    /// The whole chunks around the range.
    covering: Range<u64>,
    range: Range<u64>,
}

impl Check {
    /// Offset and length of the `n`th covering chunk.
    fn chunk(&self, n: u64) -> Option<(u64, usize)> {
        let start = self.covering.start + n * CHUNK_BYTES as u64;
        let len = self
            .covering
            .end
            .checked_sub(start)?
            .min(CHUNK_BYTES as u64);
        (len > 0).then_some((start, len as usize))
    }

    /// The wanted part of the `n`th covering chunk, once it is found intact.
    fn pass(&self, n: u64, bytes: Bytes) -> Result<Bytes, BlobError> {
        let leaf = &self.leaves[n as usize * 32..][..32];
        if chunk_leaf(&bytes).as_bytes() != leaf {
            return Err(self.damaged(n));
        }
        let start = self.covering.start + n * CHUNK_BYTES as u64;
        let from = self.range.start.saturating_sub(start) as usize;
        let to = (self.range.end - start).min(bytes.len() as u64) as usize;
        Ok(bytes.slice(from..to))
    }

    fn damaged(&self, n: u64) -> BlobError {
        BlobError::Damaged {
            digest: self.digest,
            problem: Problem::Chunk(self.first + n),
        }
    }
}

/// Reads and hashes on a blocking thread, a few chunks ahead of the consumer.
fn pieces_of_file(file: fs::File, check: Check) -> BoxStream<'static, Result<Bytes, BlobError>> {
    let (send, receive) = mpsc::channel(CHUNKS_AHEAD);
    tokio::task::spawn_blocking(move || {
        for n in 0.. {
            let Some((start, len)) = check.chunk(n) else {
                break;
            };
            let mut bytes = BytesMut::zeroed(len);
            let piece = match file.read_exact_at(&mut bytes, start) {
                Ok(()) => check.pass(n, bytes.freeze()),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    Err(check.damaged(n))
                }
                Err(source) => Err(BlobError::Io {
                    action: "reading a blob",
                    source,
                }),
            };
            let failed = piece.is_err();
            // A consumer that went away ends the read.
            if send.blocking_send(piece).is_err() || failed {
                break;
            }
        }
    });
    stream::unfold(receive, |mut receive| async move {
        receive.recv().await.map(|piece| (piece, receive))
    })
    .boxed()
}

/// Gathers a remote store's stream into chunks.
fn pieces_of_stream(
    body: BoxStream<'static, object_store::Result<Bytes>>,
    check: Check,
) -> BoxStream<'static, Result<Bytes, BlobError>> {
    let state = (body, BytesMut::new(), check, 0);
    stream::try_unfold(state, |(mut body, mut gathered, check, n)| async move {
        let Some((_, len)) = check.chunk(n) else {
            return Ok(None);
        };
        while gathered.len() < len {
            let failed = BlobError::store("reading a blob", check.digest, 0);
            match body.try_next().await.map_err(failed)? {
                Some(bytes) => gathered.extend_from_slice(&bytes),
                None => return Err(check.damaged(n)),
            }
        }
        let chunk = gathered.split_to(len).freeze();
        // A chunk hashes in less than a millisecond, the bound for work on async threads.
        let piece = check.pass(n, chunk)?;
        Ok(Some((piece, (body, gathered, check, n + 1))))
    })
    .boxed()
}

fn range_of(
    digest: Sha256Digest,
    size: u64,
    offset: u64,
    length: Option<u64>,
) -> Result<Range<u64>, BlobError> {
    let end = match length {
        Some(length) => offset.checked_add(length),
        None => Some(size),
    };
    match end {
        Some(end) if offset <= end && end <= size => Ok(offset..end),
        _ => Err(BlobError::OutOfRange {
            digest,
            offset,
            length: length.unwrap_or(0),
            size,
        }),
    }
}

/// Chunks read and checked before the consumer asks for them.
const CHUNKS_AHEAD: usize = 4;
