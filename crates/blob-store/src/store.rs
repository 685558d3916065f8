use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use identifiers::Sha256Digest;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::index::{ChunkIndex, HEAD_BYTES, decode_head};
use crate::{BlobError, Problem};

/// Blobs in an object store. Clones share the store.
#[derive(Clone, Debug)]
pub struct BlobStore {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) options: Options,
    folder: Option<Arc<PathBuf>>,
}

/// Bounds of a store.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most bytes of a blob.
    pub max_blob: u64,
    /// Bytes that an upload must leave free on a local disk.
    pub reserve: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_blob: 1 << 40,
            reserve: 64 << 20,
        }
    }
}

/// What is known of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlobInfo {
    /// Its SHA-256.
    pub digest: Sha256Digest,
    /// Its size in bytes.
    pub size: u64,
    /// RFC 6962 root over SHA-256 leaves of every 1 MiB.
    pub chunk_root: Sha256Digest,
}

impl BlobStore {
    /// Blobs in a local folder, which is made when absent; what an interrupted upload left in it is
    /// removed. One process at a time uses a folder. Writes are synced to disk before they count.
    ///
    /// # Errors
    /// When the folder cannot be made, read or cleaned.
    pub async fn local(folder: &Path, options: Options) -> Result<Self, BlobError> {
        let folder = folder.to_owned();
        let (store, folder) = blocking(move || {
            for part in [BLOBS, CHUNKS] {
                fs::create_dir_all(folder.join(part)).map_err(io("making the blob folder"))?;
                remove_leftovers(&folder.join(part)).map_err(io("cleaning the blob folder"))?;
            }
            let store = LocalFileSystem::new_with_prefix(&folder).map_err(|source| {
                let action = "opening the blob folder";
                BlobError::Store { action, source }
            })?;
            Ok((store.with_fsync(true), folder))
        })
        .await?;
        Ok(Self {
            store: Arc::new(store),
            options,
            folder: Some(Arc::new(folder)),
        })
    }

    /// Blobs in any object store. What an interrupted upload leaves there is never visible as a
    /// blob; a remote store's own rule for unfinished multipart uploads removes it.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, options: Options) -> Self {
        Self {
            store,
            options,
            folder: None,
        }
    }

    /// Size and chunk root of a blob.
    ///
    /// # Errors
    /// [`BlobError::NotFound`]; [`BlobError::Damaged`] when the chunk index is missing or of
    /// another size.
    pub async fn stat(&self, digest: Sha256Digest) -> Result<BlobInfo, BlobError> {
        let size = self.size(digest).await?;
        let damaged = |problem| BlobError::Damaged { digest, problem };
        let head = self
            .store
            .get_range(&chunks_key(digest), 0..HEAD_BYTES as u64)
            .await
            .map_err(self.index_error(digest))?;
        let (indexed, chunk_root) = decode_head(&head).map_err(damaged)?;
        if indexed != size {
            return Err(damaged(Problem::Size {
                expected: indexed,
                found: size,
            }));
        }
        Ok(BlobInfo {
            digest,
            size,
            chunk_root,
        })
    }

    /// Every blob's digest and size, in no order.
    pub fn list(&self) -> BoxStream<'static, Result<(Sha256Digest, u64), BlobError>> {
        let objects = self.store.list(Some(&Key::from(BLOBS)));
        objects
            .map_err(|source| BlobError::Store {
                action: "listing the blobs",
                source,
            })
            .try_filter_map(|object| async move {
                let digest = object.location.filename().map(Sha256Digest::from_hex);
                Ok(digest
                    .and_then(Result::ok)
                    .map(|digest| (digest, object.size)))
            })
            .boxed()
    }

    /// Takes a damaged blob out of sight, under `damaged/`, so that it can be put again.
    ///
    /// # Errors
    /// [`BlobError::NotFound`], or when the store fails.
    pub async fn set_aside(&self, digest: Sha256Digest) -> Result<(), BlobError> {
        let aside = Key::from_iter(["damaged", &digest.to_hex()]);
        self.store
            .rename(&blob_key(digest), &aside)
            .await
            .map_err(BlobError::store("setting a blob aside", digest, 0))
    }

    pub(crate) async fn size(&self, digest: Sha256Digest) -> Result<u64, BlobError> {
        let found = self.store.head(&blob_key(digest)).await;
        let object = found.map_err(BlobError::store("looking up a blob", digest, 0))?;
        Ok(object.size)
    }

    pub(crate) async fn index(
        &self,
        digest: Sha256Digest,
        size: u64,
    ) -> Result<ChunkIndex, BlobError> {
        let found = self.store.get(&chunks_key(digest)).await;
        let found = found.map_err(self.index_error(digest))?;
        let bytes = found.bytes().await.map_err(self.index_error(digest))?;
        ChunkIndex::decode(&bytes, size).map_err(|problem| BlobError::Damaged { digest, problem })
    }

    /// For `map_err`: a blob whose chunk index is missing or cut is damaged, not absent.
    pub(crate) fn index_error(
        &self,
        digest: Sha256Digest,
    ) -> impl Fn(object_store::Error) -> BlobError {
        let local = self.folder.is_some();
        move |source| match &source {
            object_store::Error::NotFound { .. } => BlobError::Damaged {
                digest,
                problem: Problem::Index,
            },
            // The local store reports a range beyond a shortened index as a generic error.
            object_store::Error::Generic { .. } if local => BlobError::Damaged {
                digest,
                problem: Problem::Index,
            },
            _ => BlobError::Store {
                action: "reading a chunk index",
                source,
            },
        }
    }

    /// Bytes that are free for uploads, or none for a store without a known end.
    ///
    /// # Errors
    /// When the file system cannot be asked.
    pub async fn free_bytes(&self) -> Result<Option<u64>, BlobError> {
        let Some(folder) = self.folder.clone() else {
            return Ok(None);
        };
        let reserve = self.options.reserve;
        blocking(move || {
            let errno = |errno: rustix::io::Errno| io("asking for free space")(errno.into());
            let stat = rustix::fs::statvfs(&*folder).map_err(errno)?;
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            Ok(Some(free.saturating_sub(reserve)))
        })
        .await
    }
}

pub(crate) fn blob_key(digest: Sha256Digest) -> Key {
    key(BLOBS, digest)
}

pub(crate) fn chunks_key(digest: Sha256Digest) -> Key {
    key(CHUNKS, digest)
}

fn key(kind: &str, digest: Sha256Digest) -> Key {
    let hex = digest.to_hex();
    Key::from_iter([kind, &hex[..2], &hex])
}

/// Runs blocking work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failed) => match failed.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(BlobError::Cancelled),
        },
    }
}

pub(crate) fn io(action: &'static str) -> impl Fn(io::Error) -> BlobError {
    move |source| BlobError::Io { action, source }
}

/// Removes every file whose name is not a digest: the local store writes to `<name>#<number>` and
/// renames at the end.
fn remove_leftovers(part: &Path) -> io::Result<()> {
    for folder in fs::read_dir(part)? {
        let folder = folder?;
        if !folder.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(folder.path())? {
            let file = file?;
            let name = file.file_name();
            let is_blob = name
                .to_str()
                .is_some_and(|name| Sha256Digest::from_hex(name).is_ok());
            if !is_blob && file.file_type()?.is_file() {
                fs::remove_file(file.path())?;
            }
        }
    }
    Ok(())
}

const BLOBS: &str = "blobs";
const CHUNKS: &str = "chunks";
