//! Blobs in a local folder and in memory: what is put is what is read, and nothing else is kept.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use blob_store::{BlobError, BlobStore, Options, PIECE_BYTES, Problem};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use identifiers::Sha256Digest;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, UploadPart,
};
use sha2::{Digest as _, Sha256};
use tlog::{chunk_leaf, chunk_root, verify_chunks};

fn content(len: usize) -> Vec<u8> {
    let mut state = 7u32;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn digest(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest::new(Sha256::digest(bytes).into())
}

fn body(bytes: &[u8]) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + use<> {
    let pieces: Vec<_> = bytes
        .chunks(700_001)
        .map(|piece| Ok(Bytes::copy_from_slice(piece)))
        .collect();
    stream::iter(pieces)
}

async fn read(
    store: &BlobStore,
    digest: Sha256Digest,
    offset: u64,
    length: Option<u64>,
) -> Result<Vec<u8>, BlobError> {
    let range = store.get(digest, offset, length).await?;
    let pieces: Vec<Bytes> = range.pieces.try_collect().await?;
    assert!(
        pieces
            .iter()
            .all(|piece| !piece.is_empty() && piece.len() <= PIECE_BYTES)
    );
    Ok(pieces.concat())
}

async fn local() -> (tempfile::TempDir, BlobStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = BlobStore::local(folder.path(), options()).await.unwrap();
    (folder, store)
}

fn options() -> Options {
    Options {
        max_blob: 64 << 20,
        reserve: 0,
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn blob_file(folder: &Path, digest: Sha256Digest) -> PathBuf {
    let hex = digest.to_hex();
    folder.join("blobs").join(&hex[..2]).join(hex)
}

/// A size on each side of every boundary: chunk, part, and nothing.
const SIZES: [usize; 6] = [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 8 << 20, (9 << 20) + 77];

#[tokio::test]
async fn what_is_put_is_what_is_read_by_any_range() {
    let (_folder, on_disk) = local().await;
    let in_memory = BlobStore::new(Arc::new(InMemory::new()), options());
    for store in [on_disk, in_memory] {
        for size in SIZES {
            let bytes = content(size);
            let digest = digest(&bytes);
            let stored = store.put(digest, size as u64, body(&bytes)).await.unwrap();
            assert!(stored.created);
            assert_eq!(stored.info, store.stat(digest).await.unwrap());
            assert_eq!(stored.info.chunk_root, chunk_root(&bytes));
            assert_eq!(read(&store, digest, 0, None).await.unwrap(), bytes);
            for (offset, length) in [
                (0, size),
                (size / 3, size / 2),
                (size, 0),
                (size.saturating_sub(1), size.min(1)),
            ] {
                let got = read(&store, digest, offset as u64, Some(length as u64))
                    .await
                    .unwrap();
                assert_eq!(
                    got,
                    bytes[offset..offset + length],
                    "{size} {offset} {length}"
                );
            }
            assert_eq!(store.scrub(digest).await.unwrap().problem, None);
        }
        let mut listed: Vec<_> = store.list().try_collect().await.unwrap();
        listed.sort_by_key(|(_, size)| *size);
        let expected: Vec<_> = SIZES
            .iter()
            .map(|&size| (digest(&content(size)), size as u64))
            .collect();
        assert_eq!(listed, expected);
    }
}

#[tokio::test]
async fn putting_again_changes_nothing_and_still_checks_the_body() {
    let (folder, store) = local().await;
    for size in [1000, 9 << 20] {
        let bytes = content(size);
        let digest = digest(&bytes);
        store.put(digest, size as u64, body(&bytes)).await.unwrap();
        let before = fs::metadata(blob_file(folder.path(), digest))
            .unwrap()
            .modified()
            .unwrap();
        let again = store.put(digest, size as u64, body(&bytes)).await.unwrap();
        assert!(!again.created);
        let after = fs::metadata(blob_file(folder.path(), digest))
            .unwrap()
            .modified()
            .unwrap();
        assert_eq!(before, after);
        let mut other = bytes.clone();
        other[size / 2] ^= 1;
        let error = store
            .put(digest, size as u64, body(&other))
            .await
            .unwrap_err();
        assert!(matches!(error, BlobError::DigestMismatch { .. }), "{error}");
        assert_eq!(read(&store, digest, 0, None).await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn two_uploads_of_the_same_bytes_at_once_both_succeed() {
    let (_folder, store) = local().await;
    for size in [1000, 9 << 20] {
        let bytes = content(size);
        let digest = digest(&bytes);
        let (one, two) = tokio::join!(
            store.put(digest, size as u64, body(&bytes)),
            store.put(digest, size as u64, body(&bytes)),
        );
        assert_eq!(one.unwrap().info, two.unwrap().info);
        assert_eq!(read(&store, digest, 0, None).await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn a_wrong_digest_or_length_and_a_broken_body_leave_nothing() {
    let (folder, store) = local().await;
    for size in [1000usize, 9 << 20] {
        let bytes = content(size);
        let right = digest(&bytes);
        let wrong = digest(b"something else");
        let announced = size as u64;
        let error = store.put(wrong, announced, body(&bytes)).await.unwrap_err();
        assert!(
            matches!(error, BlobError::DigestMismatch { expected, found } if expected == wrong && found == right)
        );
        for announced in [announced - 1, announced + 1, 0] {
            let error = store.put(right, announced, body(&bytes)).await.unwrap_err();
            assert!(matches!(error, BlobError::Length { .. }), "{error}");
        }
        let broken = body(&bytes[..size - 1]).chain(stream::iter([Err(io::Error::other("reset"))]));
        let error = store.put(right, announced, broken).await.unwrap_err();
        assert!(matches!(error, BlobError::Upload { .. }), "{error}");
        let error = store.stat(right).await.unwrap_err();
        assert!(matches!(error, BlobError::NotFound { .. }), "{error}");
    }
    let error = store
        .put(digest(b""), 65 << 20, body(b""))
        .await
        .unwrap_err();
    assert!(matches!(error, BlobError::TooLarge { .. }), "{error}");
    assert_eq!(files(&folder.path().join("blobs")), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn an_interrupted_upload_is_invisible_and_gone_after_a_restart() {
    let (folder, store) = local().await;
    let bytes = content(20 << 20);
    let digest = digest(&bytes);
    {
        let stalled = body(&bytes[..18 << 20]).chain(stream::pending());
        let put = store.put(digest, bytes.len() as u64, stalled);
        let waited = tokio::time::timeout(std::time::Duration::from_millis(400), put).await;
        assert!(waited.is_err());
    }
    assert!(matches!(
        store.stat(digest).await,
        Err(BlobError::NotFound { .. })
    ));
    // What a killed process would have left.
    let leftover =
        blob_file(folder.path(), digest).with_file_name(format!("{}#1", digest.to_hex()));
    fs::create_dir_all(leftover.parent().unwrap()).unwrap();
    fs::write(&leftover, &bytes[..100]).unwrap();
    let keep = content(10);
    store
        .put(self::digest(&keep), 10, body(&keep))
        .await
        .unwrap();
    drop(store);
    let store = BlobStore::local(folder.path(), options()).await.unwrap();
    assert!(!leftover.exists());
    assert_eq!(store.list().count().await, 1);
    store
        .put(digest, bytes.len() as u64, body(&bytes))
        .await
        .unwrap();
    assert_eq!(store.scrub(digest).await.unwrap().problem, None);
}

#[tokio::test]
async fn blobs_and_ranges_that_do_not_exist_are_refused() {
    let (_folder, store) = local().await;
    let bytes = content(5000);
    let digest = digest(&bytes);
    store.put(digest, 5000, body(&bytes)).await.unwrap();
    for (offset, length) in [
        (0, Some(5001)),
        (5001, None),
        (5001, Some(0)),
        (u64::MAX, Some(2)),
        (4000, Some(1001)),
    ] {
        let error = read(&store, digest, offset, length).await.unwrap_err();
        assert!(
            matches!(error, BlobError::OutOfRange { size: 5000, .. }),
            "{error}"
        );
    }
    let absent = self::digest(b"absent");
    assert!(matches!(
        read(&store, absent, 0, None).await,
        Err(BlobError::NotFound { .. })
    ));
    assert!(matches!(
        store.scrub(absent).await,
        Err(BlobError::NotFound { .. })
    ));
    assert!(matches!(
        store.stat(absent).await,
        Err(BlobError::NotFound { .. })
    ));
}

#[tokio::test]
async fn damage_is_found_on_reading_and_by_a_scrub_and_can_be_mended() {
    let (folder, store) = local().await;
    let bytes = content((3 << 20) + 5);
    let digest = digest(&bytes);
    store
        .put(digest, bytes.len() as u64, body(&bytes))
        .await
        .unwrap();
    let path = blob_file(folder.path(), digest);

    let mut damaged = bytes.clone();
    damaged[(1 << 20) + 9] ^= 0x40;
    fs::write(&path, &damaged).unwrap();
    let first = read(&store, digest, 0, Some(1 << 20)).await.unwrap();
    assert_eq!(first, bytes[..1 << 20], "an intact chunk is still given");
    let error = read(&store, digest, 1 << 20, Some(1)).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::Damaged {
                problem: Problem::Chunk(1),
                ..
            }
        ),
        "{error}"
    );
    let report = store.scrub(digest).await.unwrap();
    assert!(matches!(report.problem, Some(Problem::Digest { .. })));
    assert!(!store.rebuild_index(digest).await.unwrap());

    fs::write(&path, &bytes[..2 << 20]).unwrap();
    let error = store.stat(digest).await.unwrap_err();
    assert!(
        matches!(
            error,
            BlobError::Damaged {
                problem: Problem::Size { .. },
                ..
            }
        ),
        "{error}"
    );

    store.set_aside(digest).await.unwrap();
    assert!(matches!(
        store.stat(digest).await,
        Err(BlobError::NotFound { .. })
    ));
    store
        .put(digest, bytes.len() as u64, body(&bytes))
        .await
        .unwrap();
    assert_eq!(store.scrub(digest).await.unwrap().problem, None);

    let index = files(&folder.path().join("chunks")).remove(0);
    let good = fs::read(&index).unwrap();
    for len in [0, 39, 40, 71, 72, 136] {
        fs::write(&index, &good[..len]).unwrap();
        let report = store.scrub(digest).await.unwrap();
        assert_eq!(report.problem, Some(Problem::Index), "{len}");
        let error = read(&store, digest, 3 << 20, None).await.unwrap_err();
        assert!(
            matches!(
                error,
                BlobError::Damaged {
                    problem: Problem::Index,
                    ..
                }
            ),
            "{len}: {error}"
        );
    }
    fs::remove_file(&index).unwrap();
    assert!(matches!(
        store.stat(digest).await,
        Err(BlobError::Damaged {
            problem: Problem::Index,
            ..
        })
    ));
    assert!(store.rebuild_index(digest).await.unwrap());
    assert_eq!(fs::read(&index).unwrap(), good);
}

#[tokio::test]
async fn ranges_are_proved_against_the_chunk_root() {
    let (_folder, store) = local().await;
    let bytes = content((5 << 20) + 123);
    let digest = digest(&bytes);
    let root = store
        .put(digest, bytes.len() as u64, body(&bytes))
        .await
        .unwrap()
        .info
        .chunk_root;
    for (offset, length) in [
        (0, 1),
        (1 << 20, 2 << 20),
        ((5 << 20) + 1, 100),
        (0, bytes.len()),
    ] {
        let proof = store
            .range_proof(digest, offset as u64, Some(length as u64))
            .await
            .unwrap();
        assert_eq!(proof.chunks, 6);
        let leaves: Vec<_> = bytes
            .chunks(PIECE_BYTES)
            .skip(proof.first as usize)
            .take((proof.end - proof.first) as usize)
            .map(chunk_leaf)
            .collect();
        verify_chunks(&leaves, proof.first, proof.chunks, &proof.path, &root).unwrap();
        let mut wrong = leaves.clone();
        wrong[0] = chunk_leaf(b"other");
        assert!(verify_chunks(&wrong, proof.first, proof.chunks, &proof.path, &root).is_err());
    }
    assert!(store.range_proof(digest, 0, Some(0)).await.is_err());
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_read() {
    let (_folder, store) = local().await;
    let bytes = content(20 << 20);
    let digest = digest(&bytes);
    store
        .put(digest, bytes.len() as u64, body(&bytes))
        .await
        .unwrap();
    let mut range = store.get(digest, 0, None).await.unwrap();
    assert_eq!(range.size, 20 << 20);
    range.pieces.next().await.unwrap().unwrap();
    drop(range);
}

#[tokio::test]
async fn a_full_disk_is_told_apart_and_leaves_nothing() {
    let full = Arc::new(FullDisk::default());
    let store = BlobStore::new(Arc::clone(&full) as _, options());
    for size in [1000usize, 9 << 20] {
        let bytes = content(size);
        let digest = digest(&bytes);
        full.full.store(true, Ordering::SeqCst);
        let error = store
            .put(digest, size as u64, body(&bytes))
            .await
            .unwrap_err();
        assert!(matches!(error, BlobError::NoSpace { .. }), "{error:?}");
        assert!(matches!(
            store.stat(digest).await,
            Err(BlobError::NotFound { .. })
        ));
        full.full.store(false, Ordering::SeqCst);
        store.put(digest, size as u64, body(&bytes)).await.unwrap();
        assert_eq!(read(&store, digest, 0, None).await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn an_upload_that_would_not_leave_the_reserve_is_refused_before_it_starts() {
    let folder = tempfile::tempdir().unwrap();
    let reserve = u64::MAX;
    let store = BlobStore::local(
        folder.path(),
        Options {
            reserve,
            ..options()
        },
    )
    .await
    .unwrap();
    assert_eq!(store.free_bytes().await.unwrap(), Some(0));
    let error = store.put(digest(b"x"), 1, body(b"x")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{}: no space left for 1 bytes", digest(b"x"))
    );
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

/// A store in memory whose writes fail as a full disk does while `full` is set.
#[derive(Debug, Default)]
struct FullDisk {
    inner: InMemory,
    full: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Wrapped(io::Error);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unable to copy data to file")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

fn no_space() -> object_store::Error {
    object_store::Error::Generic {
        store: "FullDisk",
        source: Box::new(Wrapped(io::ErrorKind::StorageFull.into())),
    }
}

impl fmt::Display for FullDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FullDisk")
    }
}

#[async_trait]
impl ObjectStore for FullDisk {
    async fn put_opts(
        &self,
        key: &Key,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        if self.full.load(Ordering::SeqCst) {
            return Err(no_space());
        }
        self.inner.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(key, options).await?;
        Ok(Box::new(FullUpload {
            inner,
            full: Arc::clone(&self.full),
        }))
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> object_store::Result<GetResult> {
        self.inner.get_opts(key, options).await
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, object_store::Result<Key>>,
    ) -> BoxStream<'static, object_store::Result<Key>> {
        self.inner.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Key,
        to: &Key,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FullUpload {
    inner: Box<dyn MultipartUpload>,
    full: Arc<AtomicBool>,
}

#[async_trait]
impl MultipartUpload for FullUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        if self.full.load(Ordering::SeqCst) {
            return Box::pin(async { Err(no_space()) });
        }
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> object_store::Result<PutResult> {
        self.inner.complete().await
    }

    async fn abort(&mut self) -> object_store::Result<()> {
        self.inner.abort().await
    }
}
