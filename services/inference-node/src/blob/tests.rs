use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use api::v1::storage_service_server::{StorageService, StorageServiceServer};
use bytes::Bytes;
use futures::Stream;
use identifiers::Role;
use service_runtime::{Clock as _, Running};
use service_runtime::{Identity, Server, ServerSettings, SystemClock};
use tlog::{ChunkHasher, ChunkTree};
use tonic::{Request, Response, Streaming};
use workload_identity::dev_ca;

use super::*;

/// How a stream of the scripted storage node ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// After this many bytes, without a word.
    Short(usize),
    /// After this many bytes, with a status.
    Status(usize, Code),
    /// With the token's end, unless the token is this one.
    Unless(&'static str),
}

/// How the scripted storage node proves ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    /// As the registered bytes are.
    Right,
    /// Of the range a chunk further.
    Other,
    /// With a hash too many.
    Long,
    /// With a hash that is cut off.
    Cut,
    /// Not at all, for good.
    Refused,
}

/// A storage node whose streams end as a script says, and are whole when it is over.
struct Scripted {
    blob: Vec<u8>,
    proof: Proof,
    tree: ChunkTree,
    busy: AtomicBool,
    script: Mutex<VecDeque<End>>,
    /// Offsets asked for.
    asked: Arc<Mutex<Vec<u64>>>,
    renew: Token,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl StorageService for Scripted {
    type GetBlobStream = Answers<v1::GetBlobResponse>;
    type ScrubStream = Answers<v1::ScrubReport>;

    async fn get_blob(
        &self,
        request: Request<v1::GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        let request = request.into_inner();
        self.asked.lock().unwrap().push(request.offset);
        let (start, length) = (request.offset as usize, request.length as usize);
        let (count, end) = match self.script.lock().unwrap().pop_front() {
            None => (length, None),
            Some(End::Short(count)) => (count, None),
            Some(End::Status(count, code)) => (count, Some(Status::new(code, "scripted"))),
            Some(End::Unless(token)) if request.capability == token => (length, None),
            Some(End::Unless(token)) => {
                self.renew.replace(token);
                (0, Some(Status::unauthenticated("expired")))
            }
        };
        let data = &self.blob[start..][..count.min(length)];
        let mut answers: Vec<_> = data
            .chunks(1000)
            .map(|data| {
                Ok(v1::GetBlobResponse {
                    data: Bytes::copy_from_slice(data),
                })
            })
            .collect();
        answers.extend(end.map(Err));
        Ok(Response::new(Box::pin(futures::stream::iter(answers))))
    }

    async fn put_blob(
        &self,
        _request: Request<Streaming<v1::PutBlobRequest>>,
    ) -> Result<Response<v1::BlobInfo>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn prove_range(
        &self,
        request: Request<v1::ProveRangeRequest>,
    ) -> Result<Response<v1::RangeProof>, Status> {
        // The first request of each proof meets a busy node.
        if self.busy.swap(false, Ordering::SeqCst) {
            return Err(Status::resource_exhausted("busy"));
        }
        if self.proof == Proof::Refused {
            return Err(Status::permission_denied("no"));
        }
        let request = request.into_inner();
        let chunk = CHUNK_BYTES as u64;
        let first = request.offset / chunk + u64::from(self.proof == Proof::Other);
        let end = (request.offset + request.length).div_ceil(chunk)
            + u64::from(self.proof == Proof::Other);
        let path = self.tree.range_proof(first, end).unwrap();
        let mut path: Vec<_> = path.iter().map(|hash| hash.as_bytes().to_vec()).collect();
        match self.proof {
            Proof::Long => path.push(vec![0; 32]),
            Proof::Cut => drop(path[0].pop()),
            _ => {}
        }
        Ok(Response::new(v1::RangeProof {
            first_chunk: first,
            chunks: self.tree.leaves().len() as u64,
            path,
        }))
    }

    async fn stat_blob(
        &self,
        _request: Request<v1::StatBlobRequest>,
    ) -> Result<Response<v1::BlobInfo>, Status> {
        Err(Status::unimplemented("not scripted"))
    }

    async fn scrub(
        &self,
        _request: Request<v1::ScrubRequest>,
    ) -> Result<Response<Self::ScrubStream>, Status> {
        Err(Status::unimplemented("not scripted"))
    }
}

/// A blob of a scripted node.
struct World {
    bytes: Vec<u8>,
    blob: Arc<Blob>,
    asked: Arc<Mutex<Vec<u64>>>,
    _running: Running,
    _folder: tempfile::TempDir,
}

impl World {
    async fn new(script: &[End]) -> Self {
        Self::serving(script, Proof::Right, |_| ()).await
    }

    /// A node that serves the registered bytes after a change, and proves ranges of them somehow.
    async fn serving(script: &[End], proof: Proof, change: impl FnOnce(&mut [u8])) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemClock.unix_seconds().try_into().unwrap();
        let ca = dev_ca::create(folder.path(), "chancery.test", now).unwrap();
        let identity = |role| {
            let files = ca.write(role, "one", now, Duration::from_secs(3600));
            Identity::load(files.unwrap()).unwrap()
        };
        let bytes: Vec<u8> = (0..5 * MIN_PART + 123).map(|at| (at % 251) as u8).collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let token = Token::new("first");
        let mut hasher = ChunkHasher::new();
        hasher.update(&bytes);
        let tree = hasher.finish();
        let chunk_root = tree.root();
        let mut served = bytes.clone();
        change(&mut served);
        let storage = Scripted {
            blob: served,
            proof,
            tree,
            busy: AtomicBool::new(true),
            script: Mutex::new(script.iter().copied().collect()),
            asked: asked.clone(),
            renew: token.clone(),
        };
        let running = Server::builder(ServerSettings::loopback(), identity(Role::Storage))
            .service(StorageServiceServer::new(storage))
            .serve(CancellationToken::new())
            .await
            .unwrap();
        let own = identity(Role::Inference);
        let blob = Blob {
            client: Client::connect(&running.endpoint(), &own, Role::Storage).unwrap(),
            digest: Sha256Digest::new([1; 32]),
            size: bytes.len() as u64,
            chunk_root,
            token,
            runtime: Handle::current(),
            stop: CancellationToken::new(),
            streams: 4,
            retry: Retry::new(1),
        };
        Self {
            bytes,
            blob: Arc::new(blob),
            asked,
            _running: running,
            _folder: folder,
        }
    }

    async fn read(&self, offset: usize, length: usize) -> Result<Vec<u8>, ReadError> {
        let blob = self.blob.clone();
        let reading = tokio::task::spawn_blocking(move || {
            let mut out = vec![0; length];
            blob.read(offset as u64, &mut out).map(|()| out)
        });
        reading.await.unwrap()
    }

    async fn read_proven(&self, range: Range<usize>) -> Result<Vec<u8>, ReadError> {
        let blob = self.blob.clone();
        let range = range.start as u64..range.end as u64;
        let reading = tokio::task::spawn_blocking(move || blob.read_proven(range));
        reading.await.unwrap()
    }

    fn asked(&self) -> Vec<u64> {
        self.asked.lock().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_read_in_parts_at_the_same_time() {
    let world = World::new(&[]).await;
    let read = world.read(7, 4 * MIN_PART).await.unwrap();
    assert!(read == world.bytes[7..][..4 * MIN_PART]);
    let mut asked = world.asked();
    asked.sort_unstable();
    assert_eq!(asked, [0, 1, 2, 3].map(|part| 7 + part * MIN_PART as u64));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_stream_is_read_on_from_where_it_broke() {
    let script = [
        End::Short(2500),
        End::Status(1000, Code::Unavailable),
        End::Status(0, Code::ResourceExhausted),
    ];
    let world = World::new(&script).await;
    let read = world.read(100, 9000).await.unwrap();
    assert_eq!(read, world.bytes[100..9100]);
    assert_eq!(world.asked(), [100, 2600, 3600, 3600]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_ends_the_read_at_once() {
    let world = World::new(&[End::Status(500, Code::PermissionDenied)]).await;
    let refused = world.read(0, 9000).await.unwrap_err();
    assert!(matches!(&refused, ReadError::Status(s) if s.code() == Code::PermissionDenied));
    assert_eq!(world.asked(), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_renewed_meanwhile_is_tried() {
    let world = World::new(&[End::Unless("second")]).await;
    assert_eq!(world.read(0, 10).await.unwrap(), world.bytes[..10]);
    let expired = World::new(&[End::Status(0, Code::Unauthenticated)]).await;
    assert!(expired.read(0, 10).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stays_away_is_given_up() {
    let world = World::new(&[End::Short(0); 20]).await;
    let error = world.read(0, 10).await.unwrap_err();
    assert!(matches!(error, ReadError::Short { missing: 10 }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_the_model_ends_a_read() {
    let world = World::new(&[]).await;
    world.blob.stop.cancel();
    assert!(matches!(world.read(0, 10).await, Err(ReadError::Stopped)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proven_range_is_what_the_manifest_names() {
    let world = World::new(&[End::Short(2500)]).await;
    let all = world.bytes.len();
    for range in [
        0..1,
        0..all,
        5..MIN_PART,
        MIN_PART - 1..MIN_PART + 1,
        all - 1..all,
        all - MIN_PART - 124..all,
        7..7,
    ] {
        let read = world.read_proven(range.clone()).await.unwrap();
        assert!(read == world.bytes[range.clone()], "{range:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_than_the_manifests_are_never_given_out() {
    // Beside the range, but in a chunk that the range touches.
    for at in [0, MIN_PART - 1, MIN_PART, 2 * MIN_PART - 1] {
        let world = World::serving(&[], Proof::Right, |bytes| bytes[at] ^= 0x40).await;
        let refused = world.read_proven(100..MIN_PART + 100).await.unwrap_err();
        assert!(matches!(refused, ReadError::NotProven(_)), "{refused}");
        let beside = world.read_proven(3 * MIN_PART..3 * MIN_PART + 9).await;
        assert!(beside.is_ok(), "chunks that the change is not in");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_of_something_else_is_refused() {
    for proof in [Proof::Other, Proof::Long, Proof::Cut, Proof::Refused] {
        let world = World::serving(&[], proof, |_| ()).await;
        let refused = world.read_proven(0..10).await.unwrap_err();
        let expected = match proof {
            Proof::Cut => matches!(refused, ReadError::NoHash(31)),
            Proof::Refused => matches!(refused, ReadError::Status(_)),
            _ => matches!(refused, ReadError::NotProven(_)),
        };
        assert!(expected, "{proof:?}: {refused}");
    }
}

fn part(out: &mut [u8]) -> Part<'_> {
    Part {
        offset: 0,
        base: 100,
        out,
        got: 0,
        handed: 0,
    }
}

#[test]
fn pieces_are_handed_on_once_they_are_whole() {
    let mut seen = Vec::new();
    let mut out = [0; 10];
    let mut arrived = |at: usize, bytes: &mut [u8]| {
        seen.push((at, bytes.to_vec()));
        ControlFlow::Continue(())
    };
    let taker: Taker<'_, '_> = RefCell::new(&mut arrived);
    let mut part = part(&mut out);
    for data in [&[1, 2, 3][..], &[4, 5, 6, 7, 8], &[], &[9, 10]] {
        assert!(part.take(data, 4, &taker).unwrap().is_continue());
    }
    assert_eq!(part.missing(), 0);
    let expected = [
        (100, vec![1, 2, 3, 4]),
        (104, vec![5, 6, 7, 8]),
        (108, vec![9, 10]),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn more_than_was_asked_for_is_refused() {
    let mut out = [0; 4];
    let mut arrived = |_: usize, _: &mut [u8]| ControlFlow::Continue(());
    let taker: Taker<'_, '_> = RefCell::new(&mut arrived);
    let mut part = part(&mut out);
    assert!(part.take(&[1, 2, 3], 4, &taker).is_ok());
    let refused = part.take(&[4, 5], 4, &taker);
    assert!(matches!(refused, Err(ReadError::TooMuch)));
}

#[test]
fn a_break_stops_the_part() {
    let mut out = [0; 8];
    let mut calls = 0;
    let mut arrived = |_: usize, _: &mut [u8]| {
        calls += 1;
        ControlFlow::Break(())
    };
    let taker: Taker<'_, '_> = RefCell::new(&mut arrived);
    assert!(part(&mut out).take(&[1; 8], 4, &taker).unwrap().is_break());
    assert_eq!(calls, 1);
}

#[test]
fn refusals_are_final_and_absence_is_not() {
    for (code, transient) in [
        (Code::Unavailable, true),
        (Code::ResourceExhausted, true),
        (Code::PermissionDenied, false),
        (Code::Unauthenticated, false),
        (Code::NotFound, false),
        (Code::DataLoss, false),
    ] {
        let error = ReadError::from(Status::new(code, "no"));
        assert_eq!(error.is_transient(), transient, "{code:?}");
    }
    assert!(ReadError::Short { missing: 1 }.is_transient());
    assert!(!ReadError::Stopped.is_transient());
}
