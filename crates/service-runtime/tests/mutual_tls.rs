//! A small service over real mutual-TLS sockets: who gets in, what is refused and how, reload,
//! deny list, expiry, drain.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::client::{Client, explain, is_transient};
use api::v1::storage_service_server::{StorageService, StorageServiceServer};
use api::v1::{
    BlobInfo, GetBlobRequest, GetBlobResponse, ProveRangeRequest, PutBlobRequest, RangeProof,
    ScrubReport, ScrubRequest, StatBlobRequest,
};
use futures::{Stream, StreamExt, stream};
use identifiers::Role;
use service_runtime::{
    CancellationToken, Clock, Identity, IdentityFiles, ManualClock, Running, Server,
    ServerSettings, SystemClock, context,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Request, Response, Status, Streaming};
use workload_identity::dev_ca::{self, DevCa};

struct Echo;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl StorageService for Echo {
    type GetBlobStream = Answers<GetBlobResponse>;
    type ScrubStream = Answers<ScrubReport>;

    async fn put_blob(
        &self,
        _: Request<Streaming<PutBlobRequest>>,
    ) -> Result<Response<BlobInfo>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    /// `length` messages, one each 100 ms.
    async fn get_blob(
        &self,
        request: Request<GetBlobRequest>,
    ) -> Result<Response<Self::GetBlobStream>, Status> {
        let count = request.into_inner().length;
        let ticks = stream::iter(0..count).then(|_| async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok(GetBlobResponse::default())
        });
        Ok(Response::new(Box::pin(ticks)))
    }

    async fn prove_range(
        &self,
        _: Request<ProveRangeRequest>,
    ) -> Result<Response<RangeProof>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    /// The caller's id as the digest.
    async fn stat_blob(
        &self,
        request: Request<StatBlobRequest>,
    ) -> Result<Response<BlobInfo>, Status> {
        Ok(Response::new(BlobInfo {
            digest: context(&request)?.peer.spiffe.to_string(),
            ..Default::default()
        }))
    }

    async fn scrub(&self, _: Request<ScrubRequest>) -> Result<Response<Self::ScrubStream>, Status> {
        Ok(Response::new(Box::pin(stream::empty())))
    }
}

struct World {
    dir: tempfile::TempDir,
    ca: DevCa,
}

const DOMAIN: &str = "chancery.test";
const HOUR: Duration = Duration::from_secs(3600);

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = dev_ca::create(&dir.path().join("ca"), DOMAIN, now()).unwrap();
        Self { dir, ca }
    }

    fn files(&self, role: Role) -> IdentityFiles {
        self.ca.write(role, "one", now(), HOUR).unwrap()
    }

    async fn server(&self, settings: ServerSettings, shutdown: &CancellationToken) -> Running {
        let identity = Identity::load(self.files(Role::Storage)).unwrap();
        Server::builder(settings, identity)
            .service(StorageServiceServer::new(Echo))
            .serve(shutdown.clone())
            .await
            .unwrap()
    }
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap()
}

fn client(running: &Running, files: IdentityFiles) -> Client {
    let identity = Identity::load(files).unwrap();
    Client::connect(&running.endpoint(), &identity, Role::Storage).unwrap()
}

async fn stat(client: &Client) -> Result<String, Status> {
    let answer = client
        .storage_service()
        .stat_blob(StatBlobRequest::default())
        .await?;
    Ok(answer.into_inner().digest)
}

async fn admin(running: &Running, path: &str) -> String {
    let mut stream = TcpStream::connect(running.admin_addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_peer_of_the_right_role_is_known_by_its_id_and_counted() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let running = world.server(ServerSettings::loopback(), &shutdown).await;
    let sealer = client(&running, world.files(Role::Sealer));
    let id = stat(&sealer).await.unwrap();
    assert_eq!(id, "spiffe://chancery.test/sealer/one");
    let health = admin(&running, "/health").await;
    assert!(
        health.starts_with("HTTP/1.1 200") && health.contains("\"SERVING\""),
        "{health}"
    );
    let metrics = admin(&running, "/metrics").await;
    let line = "chancery_rpc_total{code=\"OK\",method=\"/chancery.v1.StorageService/StatBlob\"} 1";
    assert!(metrics.contains(line), "{metrics}");
    shutdown.cancel();
    running.finished().await.unwrap();
}

#[tokio::test]
async fn a_peer_of_another_role_is_refused_with_a_reason() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let running = world.server(ServerSettings::loopback(), &shutdown).await;
    let platform = client(&running, world.files(Role::Platform));
    let status = stat(&platform).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(api::reason(&status), Some("ROLE_NOT_ALLOWED"));
    assert!(status.message().contains("platform"), "{status:?}");
}

#[tokio::test]
async fn certificates_that_prove_nothing_are_refused_and_it_is_said_why() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let running = world.server(ServerSettings::loopback(), &shutdown).await;
    // One CA under another name, one under the trusted one's.
    let stranger = |dir: &str, domain: &str| {
        let ca = dev_ca::create(&world.dir.path().join(dir), domain, now()).unwrap();
        let uri = vec![rcgen_uri("spiffe://chancery.test/sealer/one")];
        let issued = ca.issue_names(uri, now(), HOUR).unwrap();
        let mut files = ca.write_issued("sealer", &issued).unwrap();
        files.ca = world.ca.certificate();
        files.trust_domain = DOMAIN.to_owned();
        files
    };
    let unknown = stranger("unknown", "elsewhere.test");
    let namesake = stranger("namesake", DOMAIN);
    let expired = world
        .ca
        .write(Role::Sealer, "late", now() - 7200, HOUR)
        .unwrap();
    for (files, why) in [
        (unknown, "its issuer is not trusted"),
        (namesake, "its issuer did not sign it"),
        (expired, "it has expired"),
    ] {
        let status = stat(&client(&running, files)).await.unwrap_err();
        assert!(!is_transient(&status), "{status:?}");
        assert_eq!(
            explain(&status),
            format!("the server refused this client's certificate: {why}")
        );
    }
}

#[tokio::test]
async fn a_certificate_of_another_domain_or_with_two_names_is_refused() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let running = world.server(ServerSettings::loopback(), &shutdown).await;
    let uri = |text: &str| rcgen_uri(text);
    let foreign = vec![uri("spiffe://elsewhere.test/sealer/one")];
    let double = vec![
        uri("spiffe://chancery.test/sealer/one"),
        uri("spiffe://chancery.test/operator/one"),
    ];
    for (stem, names, domain) in [
        ("foreign", foreign, "elsewhere.test"),
        ("double", double, DOMAIN),
    ] {
        let issued = world.ca.issue_names(names, now(), HOUR).unwrap();
        let mut files = world.ca.write_issued(stem, &issued).unwrap();
        files.trust_domain = domain.to_owned();
        match Identity::load(files) {
            // The holder itself notices that its certificate has two names.
            Err(error) => assert!(stem == "double", "{error}"),
            Ok(identity) => {
                let client =
                    Client::connect(&running.endpoint(), &identity, Role::Storage).unwrap();
                // It takes the server for a foreigner, as the server would take it.
                let status = stat(&client).await.unwrap_err();
                assert!(explain(&status).contains("trust domain"), "{status:?}");
            }
        }
    }
}

fn rcgen_uri(text: &str) -> rcgen::SanType {
    rcgen::SanType::URI(text.to_owned().try_into().unwrap())
}

#[tokio::test]
async fn a_client_refuses_a_server_of_another_role() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let running = world.server(ServerSettings::loopback(), &shutdown).await;
    let identity = Identity::load(world.files(Role::Sealer)).unwrap();
    let confused = Client::connect(&running.endpoint(), &identity, Role::KeyService).unwrap();
    let status = stat(&confused).await.unwrap_err();
    assert_eq!(
        explain(&status),
        "the server's certificate is refused: it belongs to \
         spiffe://chancery.test/storage/one, expected the role key-service"
    );
}

#[tokio::test]
async fn a_method_outside_the_table_is_refused() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let running = world.server(ServerSettings::loopback(), &shutdown).await;
    let sealer = client(&running, world.files(Role::Sealer));
    let mut raw = tonic::client::Grpc::new(sealer.transport());
    raw.ready().await.unwrap();
    let path = http::uri::PathAndQuery::from_static("/chancery.v1.StorageService/DropBlob");
    let codec = tonic_prost::ProstCodec::<StatBlobRequest, BlobInfo>::default();
    let status = raw
        .unary(Request::new(StatBlobRequest::default()), path, codec)
        .await
        .unwrap_err();
    assert_eq!(api::reason(&status), Some("METHOD_NOT_LISTED"));
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart_and_a_bad_one_is_not() {
    let world = World::new();
    let files = world.files(Role::Storage);
    let identity = Identity::load(files.clone()).unwrap();
    let first = identity.own().serial;
    assert!(!identity.reload_if_changed().unwrap());
    world.files(Role::Storage);
    assert!(identity.reload_if_changed().unwrap());
    let second = identity.own().serial;
    assert_ne!(first, second);
    std::fs::write(&files.certificate, "no certificate").unwrap();
    assert!(identity.reload_if_changed().is_err());
    assert!(!identity.reload_if_changed().unwrap(), "tried once only");
    assert_eq!(identity.own().serial, second);
}

#[tokio::test]
async fn a_denied_peer_loses_its_open_connection() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let deny_list = world.dir.path().join("denied");
    std::fs::write(&deny_list, "# nobody\n").unwrap();
    let mut files = world.files(Role::Storage);
    files.deny_list = Some(deny_list.clone());
    let identity = Identity::load(files).unwrap();
    let running = Server::builder(ServerSettings::loopback(), identity.clone())
        .service(StorageServiceServer::new(Echo))
        .serve(shutdown.clone())
        .await
        .unwrap();
    let sealer = client(&running, world.files(Role::Sealer));
    stat(&sealer).await.unwrap();
    std::fs::write(&deny_list, "spiffe://chancery.test/sealer/one\n").unwrap();
    // The watcher may have been faster.
    identity.reload_if_changed().unwrap();
    let status = stat(&sealer).await.unwrap_err();
    let refused = api::reason(&status) == Some("CALLER_DENIED");
    assert!(refused || status.code() != Code::Ok, "{status:?}");
}

#[tokio::test]
async fn a_stream_is_cut_when_its_certificate_ends() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let clock = Arc::new(ManualClock::at(SystemClock.unix_seconds()));
    let identity = Identity::load(world.files(Role::Storage)).unwrap();
    let running = Server::builder(ServerSettings::loopback(), identity)
        .clock(clock.clone())
        .service(StorageServiceServer::new(Echo))
        .serve(shutdown.clone())
        .await
        .unwrap();
    let sealer = client(&running, world.files(Role::Sealer));
    let request = GetBlobRequest {
        length: 100,
        ..Default::default()
    };
    let mut answers = sealer
        .storage_service()
        .get_blob(request)
        .await
        .unwrap()
        .into_inner();
    assert!(answers.message().await.unwrap().is_some());
    clock.advance(7200);
    let status = stat(&sealer).await.unwrap_err();
    assert_eq!(api::reason(&status), Some("CERTIFICATE_EXPIRED"));
    assert_eq!(status.code(), Code::Unauthenticated);
    let cut = loop {
        match answers.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended as if it were whole"),
            Err(status) => break status,
        }
    };
    assert_ne!(cut.code(), Code::Ok);
}

async fn drain(length: u64, drain_seconds: u64) -> (u64, Option<Status>) {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let settings = ServerSettings {
        drain_seconds,
        ..ServerSettings::loopback()
    };
    let running = world.server(settings, &shutdown).await;
    let sealer = client(&running, world.files(Role::Sealer));
    let request = GetBlobRequest {
        length,
        ..Default::default()
    };
    let mut answers = sealer
        .storage_service()
        .get_blob(request)
        .await
        .unwrap()
        .into_inner();
    answers.message().await.unwrap();
    shutdown.cancel();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let health = admin(&running, "/health").await;
    assert!(
        health.starts_with("HTTP/1.1 503") && health.contains("draining"),
        "{health}"
    );
    let mut received = 1;
    let error = loop {
        match answers.message().await {
            Ok(Some(_)) => received += 1,
            Ok(None) => break None,
            Err(status) => break Some(status),
        }
    };
    drop(sealer);
    tokio::time::timeout(Duration::from_secs(5), running.finished())
        .await
        .expect("the server stops")
        .unwrap();
    (received, error)
}

#[tokio::test]
async fn a_running_call_ends_before_the_server_does() {
    let (received, error) = drain(5, 10).await;
    assert_eq!((received, error.map(|status| status.code())), (5, None));
}

#[tokio::test]
async fn a_call_that_outlasts_the_drain_time_is_cut() {
    let (received, error) = drain(10_000, 1).await;
    assert!(received < 100);
    assert!(error.is_some());
}

#[tokio::test]
async fn a_connection_beyond_the_limit_is_refused() {
    let (world, shutdown) = (World::new(), CancellationToken::new());
    let settings = ServerSettings {
        max_connections: 1,
        ..ServerSettings::loopback()
    };
    let running = world.server(settings, &shutdown).await;
    let first = client(&running, world.files(Role::Sealer));
    stat(&first).await.unwrap();
    let second = client(&running, world.files(Role::Operator));
    assert_eq!(stat(&second).await.unwrap_err().code(), Code::Unavailable);
    stat(&first).await.unwrap();
}

#[test]
fn a_private_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::new();
    let files = world.files(Role::Storage);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&files.private_key, open).unwrap();
    let error = Identity::load(files).unwrap_err().to_string();
    assert!(error.contains("mode 644"), "{error}");
}
