//! A storage node over real mutual-TLS sockets: what it stores and serves, to whom, and what it refuses.

#![allow(missing_docs, clippy::unwrap_used, reason = "a test fails loudly")]

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::client::Client;
use api::v1::put_blob_request::Part;
use api::v1::{
    BlobInfo, GetBlobRequest, ProveRangeRequest, PutBlobHeader, PutBlobRequest, RangeProof,
    ScrubReport, ScrubRequest, StatBlobRequest,
};
use bytes::Bytes;
use capability::{CertificateThumbprint, Claims, Confirmation, mint};
use ed25519_dalek::SigningKey;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use identifiers::{CapabilityId, Fingerprint, KeyId, Role, Sha256Digest, SpiffeId};
use service_runtime::trust::{CapabilityKey, PublicKey};
use service_runtime::{
    CancellationToken, Clock, Identity, IdentityFiles, ManualClock, Running, ServerSettings,
    SystemClock, TrustFile,
};
use sha2::{Digest as _, Sha256};
use storage_node::{Config, StorageSettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::{Code, Status};
use workload_identity::dev_ca::{self, DevCa};

const DOMAIN: &str = "chancery.test";
const HOUR: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;

/// A running node, the CA that everyone's certificates come from, and the key service's key.
struct World {
    dir: tempfile::TempDir,
    ca: DevCa,
    clock: Arc<ManualClock>,
    running: Running,
}

impl World {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut StorageSettings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = dev_ca::create(&dir.path().join("ca"), DOMAIN, now()).unwrap();
        let files = ca.write(Role::Storage, "one", now(), HOUR).unwrap();
        let trust = dir.path().join("trust.toml");
        write_trust(&trust, &[("first", &signing_key(1))]);
        let mut storage = StorageSettings::in_folder(dir.path().join("blobs"));
        storage.reserve_bytes = 0;
        change(&mut storage);
        let config = Config {
            server: ServerSettings::loopback(),
            identity: files.into(),
            log: Default::default(),
            storage,
            trust,
            capability_issuer: key_service(),
        };
        let clock = Arc::new(ManualClock::at(SystemClock.unix_seconds()));
        let app = config.build().await.unwrap().clock(clock.clone());
        let running = app.serve(CancellationToken::new()).await.unwrap();
        Self {
            dir,
            ca,
            clock,
            running,
        }
    }

    fn files(&self, role: Role, name: &str) -> IdentityFiles {
        self.ca.write(role, name, now(), HOUR).unwrap()
    }

    fn caller(&self, role: Role, name: &str) -> Caller {
        let identity = Identity::load(self.files(role, name)).unwrap();
        let client = Client::connect(&self.running.endpoint(), &identity, Role::Storage).unwrap();
        Caller { client, identity }
    }

    /// Waits until `/health` says something.
    async fn eventually(&self, said: &str) {
        for _ in 0..500 {
            let mut stream = TcpStream::connect(self.running.admin_addr).await.unwrap();
            let request = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            if answer.contains(said) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("/health does not say {said}");
    }

    fn blob_file(&self, digest: Sha256Digest) -> PathBuf {
        let hex = digest.to_hex();
        self.dir
            .path()
            .join("blobs/blobs")
            .join(&hex[..2])
            .join(hex)
    }
}

struct Caller {
    client: Client,
    identity: Arc<Identity>,
}

impl Caller {
    async fn put(&self, bytes: &[u8]) -> Result<BlobInfo, Status> {
        self.put_messages(stream::iter(upload(
            digest(bytes),
            bytes.len() as u64,
            bytes,
        )))
        .await
    }

    async fn put_messages(
        &self,
        messages: impl Stream<Item = PutBlobRequest> + Send + 'static,
    ) -> Result<BlobInfo, Status> {
        Ok(self
            .client
            .storage_service()
            .put_blob(messages)
            .await?
            .into_inner())
    }

    async fn get(
        &self,
        blob: Sha256Digest,
        offset: u64,
        length: u64,
        capability: &str,
    ) -> Result<Vec<u8>, Status> {
        let request = GetBlobRequest {
            digest: blob.to_string(),
            offset,
            length,
            capability: capability.to_owned(),
        };
        let answers = self
            .client
            .storage_service()
            .get_blob(request)
            .await?
            .into_inner();
        let pieces: Vec<Bytes> = answers.map_ok(|answer| answer.data).try_collect().await?;
        assert!(pieces.iter().all(|piece| piece.len() <= MIB));
        Ok(pieces.concat())
    }

    async fn stat(&self, blob: Sha256Digest, capability: &str) -> Result<BlobInfo, Status> {
        let request = StatBlobRequest {
            digest: blob.to_string(),
            capability: capability.to_owned(),
        };
        Ok(self
            .client
            .storage_service()
            .stat_blob(request)
            .await?
            .into_inner())
    }

    async fn prove(
        &self,
        blob: Sha256Digest,
        offset: u64,
        length: u64,
        capability: &str,
    ) -> Result<RangeProof, Status> {
        let request = ProveRangeRequest {
            digest: blob.to_string(),
            offset,
            length,
            capability: capability.to_owned(),
        };
        let mut storage = self.client.storage_service();
        Ok(storage.prove_range(request).await?.into_inner())
    }

    async fn scrub(&self, blob: Option<Sha256Digest>) -> Result<Vec<ScrubReport>, Status> {
        let digest = blob.map(|blob| blob.to_string()).unwrap_or_default();
        let reports = self
            .client
            .storage_service()
            .scrub(ScrubRequest { digest })
            .await?;
        reports.into_inner().try_collect().await
    }

    /// Claims that are good for this caller and one blob for five minutes.
    fn claims(&self, blob: Sha256Digest) -> Claims {
        let own = self.identity.own();
        Claims {
            jti: CapabilityId::from_parts(now() * 1000, &[1; 10]),
            iss: key_service(),
            sub: own.spiffe,
            iat: now(),
            nbf: now(),
            exp: now() + 300,
            cnf: Confirmation {
                x5t_s256: CertificateThumbprint::new(own.cert_sha256),
            },
            artifact: Sha256Digest::new([1; 32]),
            key_id: KeyId::from_parts(0, &[2; 10]),
            fingerprint: Fingerprint::new([3; 8]),
            epoch: 0,
            blobs: vec![blob],
            units: vec![],
        }
    }
}

fn upload(blob: Sha256Digest, size: u64, bytes: &[u8]) -> Vec<PutBlobRequest> {
    let header = Part::Header(PutBlobHeader {
        digest: blob.to_string(),
        size,
    });
    let data = bytes
        .chunks(300_000)
        .map(|part| Part::Data(Bytes::copy_from_slice(part)));
    let parts = std::iter::once(header).chain(data);
    parts
        .map(|part| PutBlobRequest { part: Some(part) })
        .collect()
}

fn write_trust(path: &std::path::Path, keys: &[(&str, &SigningKey)]) {
    let key = |(kid, key): &(&str, &SigningKey)| CapabilityKey {
        kid: (*kid).to_owned(),
        public_key: PublicKey(key.verifying_key().to_bytes()),
    };
    let trust = TrustFile {
        log: "chancery.test/log+00000000+AQ==".to_owned(),
        signers: vec![],
        capability_keys: keys.iter().map(key).collect(),
    };
    fs::write(path, trust.to_toml()).unwrap();
}

fn signing_key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn key_service() -> SpiffeId {
    SpiffeId::new(DOMAIN, Role::KeyService, "one").unwrap()
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap()
}

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096) as u8).collect()
}

fn hash32(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest::new(bytes.try_into().unwrap())
}

fn digest(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest::new(Sha256::digest(bytes).into())
}

fn refused(status: &Status) -> (Code, &str) {
    (status.code(), api::reason(status).unwrap_or_default())
}

#[tokio::test]
async fn a_sealer_puts_and_reads_and_an_operator_scrubs() {
    let world = World::new().await;
    let sealer = world.caller(Role::Sealer, "one");
    let operator = world.caller(Role::Operator, "one");
    let bytes = content(2 * MIB + 17);
    let blob = digest(&bytes);
    let info = sealer.put(&bytes).await.unwrap();
    assert_eq!(info.digest, blob.to_string());
    assert_eq!(info.chunk_root, tlog::chunk_root(&bytes).to_string());
    assert_eq!(sealer.put(&bytes).await.unwrap(), info);
    assert_eq!(sealer.stat(blob, "").await.unwrap(), info);
    assert_eq!(sealer.get(blob, 0, 0, "").await.unwrap(), bytes);
    let proof = sealer.prove(blob, MIB as u64 + 5, 10, "").await.unwrap();
    let path: Vec<_> = proof.path.iter().map(|hash| hash32(hash)).collect();
    let leaves = [tlog::chunk_leaf(&bytes[MIB..2 * MIB])];
    let root = info.chunk_root.parse().unwrap();
    tlog::verify_chunks(&leaves, proof.first_chunk, proof.chunks, &path, &root).unwrap();
    let outside = sealer.prove(blob, 0, 3 * MIB as u64, "").await.unwrap_err();
    assert_eq!(
        refused(&outside),
        (Code::InvalidArgument, "RANGE_OUTSIDE_BLOB")
    );
    let part = sealer.get(blob, MIB as u64 - 5, 10, "").await.unwrap();
    assert_eq!(part, bytes[MIB - 5..MIB + 5]);
    let reports = operator.scrub(None).await.unwrap();
    assert_eq!(reports.len(), 1);
    assert!(reports[0].intact && reports[0].problem.is_empty());

    let mut damaged = bytes.clone();
    damaged[MIB + 1] ^= 1;
    fs::write(world.blob_file(blob), damaged).unwrap();
    let status = sealer.get(blob, 0, 0, "").await.unwrap_err();
    assert_eq!(refused(&status), (Code::DataLoss, "BLOB_DAMAGED"));
    let reports = operator.scrub(Some(blob)).await.unwrap();
    assert!(
        !reports[0].intact && reports[0].problem.contains("hash to"),
        "{reports:?}"
    );
}

#[tokio::test]
async fn an_inference_node_reads_only_what_its_capability_names() {
    let world = World::new().await;
    let sealer = world.caller(Role::Sealer, "one");
    let node = world.caller(Role::Inference, "one");
    let bytes = content(50_000);
    let blob = digest(&bytes);
    sealer.put(&bytes).await.unwrap();
    let other = digest(&content(7));
    sealer.put(&content(7)).await.unwrap();

    let good = mint(&signing_key(1), "first", &node.claims(blob)).unwrap();
    assert_eq!(
        node.get(blob, 100, 5000, &good).await.unwrap(),
        bytes[100..5100]
    );
    assert_eq!(node.stat(blob, &good).await.unwrap().size, 50_000);
    assert_eq!(node.prove(blob, 100, 5000, &good).await.unwrap().chunks, 1);

    let changed = |change: &dyn Fn(&mut Claims)| {
        let mut claims = node.claims(blob);
        change(&mut claims);
        mint(&signing_key(1), "first", &claims).unwrap()
    };
    let stranger = world.caller(Role::Inference, "two");
    let of_stranger = mint(&signing_key(1), "first", &stranger.claims(blob)).unwrap();
    let mut flipped = good.clone().into_bytes();
    let middle = flipped.len() / 2;
    flipped[middle] = if flipped[middle] == b'A' { b'B' } else { b'A' };
    let cases = [
        (String::new(), Code::Unauthenticated, "CAPABILITY_REQUIRED"),
        (
            "a.b.c".to_owned(),
            Code::Unauthenticated,
            "CAPABILITY_MALFORMED",
        ),
        (
            String::from_utf8(flipped).unwrap(),
            Code::Unauthenticated,
            "CAPABILITY_SIGNATURE_WRONG",
        ),
        (
            mint(&signing_key(9), "first", &node.claims(blob)).unwrap(),
            Code::Unauthenticated,
            "CAPABILITY_SIGNATURE_WRONG",
        ),
        (
            mint(&signing_key(9), "ninth", &node.claims(blob)).unwrap(),
            Code::Unauthenticated,
            "CAPABILITY_KEY_UNKNOWN",
        ),
        (
            of_stranger,
            Code::PermissionDenied,
            "CAPABILITY_OF_OTHER_CERTIFICATE",
        ),
        (
            changed(&|claims| claims.sub = SpiffeId::new(DOMAIN, Role::Inference, "two").unwrap()),
            Code::PermissionDenied,
            "CAPABILITY_OF_OTHER_NODE",
        ),
        (
            changed(&|claims| {
                claims.iss = SpiffeId::new(DOMAIN, Role::KeyService, "evil").unwrap()
            }),
            Code::PermissionDenied,
            "CAPABILITY_OF_OTHER_ISSUER",
        ),
        (
            changed(&|claims| claims.blobs = vec![other]),
            Code::PermissionDenied,
            "CAPABILITY_OF_OTHER_BLOB",
        ),
        (
            changed(&|claims| {
                claims.iat = now() - 600;
                claims.nbf = now() - 600;
                claims.exp = now() - 300;
            }),
            Code::Unauthenticated,
            "CAPABILITY_EXPIRED",
        ),
        (
            changed(&|claims| {
                claims.nbf = now() + 100;
            }),
            Code::Unauthenticated,
            "CAPABILITY_NOT_YET_VALID",
        ),
    ];
    for (token, code, reason) in cases {
        let read = node.get(blob, 0, 0, &token).await.unwrap_err();
        assert_eq!(refused(&read), (code, reason));
        let stat = node.stat(blob, &token).await.unwrap_err();
        assert_eq!(refused(&stat), (code, reason));
        let proof = node.prove(blob, 0, 0, &token).await.unwrap_err();
        assert_eq!(refused(&proof), (code, reason));
        for status in [read, stat, proof] {
            assert!(
                token.len() < 20 || !status.message().contains(&token),
                "{status:?}"
            );
        }
    }
    // A node without a capability cannot even learn what is stored.
    let absent = node.get(digest(b"absent"), 0, 0, &good).await.unwrap_err();
    assert_eq!(
        refused(&absent),
        (Code::PermissionDenied, "CAPABILITY_OF_OTHER_BLOB")
    );
}

#[tokio::test]
async fn a_new_capability_key_is_found_without_a_restart() {
    let world = World::new().await;
    let sealer = world.caller(Role::Sealer, "one");
    let node = world.caller(Role::Inference, "one");
    let bytes = content(100);
    sealer.put(&bytes).await.unwrap();
    let token = mint(&signing_key(2), "second", &node.claims(digest(&bytes))).unwrap();
    let status = node.get(digest(&bytes), 0, 0, &token).await.unwrap_err();
    assert_eq!(refused(&status).1, "CAPABILITY_KEY_UNKNOWN");
    let trust = world.dir.path().join("trust.toml");
    write_trust(
        &trust,
        &[("first", &signing_key(1)), ("second", &signing_key(2))],
    );
    assert_eq!(node.get(digest(&bytes), 0, 0, &token).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_capability_that_expires_ends_the_read_under_way() {
    let world = World::new().await;
    let sealer = world.caller(Role::Sealer, "one");
    let node = world.caller(Role::Inference, "one");
    let bytes = content(40 * MIB);
    let blob = digest(&bytes);
    sealer.put(&bytes).await.unwrap();
    let token = mint(&signing_key(1), "first", &node.claims(blob)).unwrap();
    let request = GetBlobRequest {
        digest: blob.to_string(),
        capability: token.clone(),
        ..Default::default()
    };
    let mut answers = node
        .client
        .storage_service()
        .get_blob(request)
        .await
        .unwrap()
        .into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert_eq!(first.data.len(), MIB);
    world.clock.advance(290);
    let part = node.get(blob, 0, 10, &token).await.unwrap();
    assert_eq!(part, bytes[..10]);
    world.clock.advance(20);
    let mut received = first.data.len();
    let status = loop {
        match answers.message().await {
            Ok(Some(answer)) => received += answer.data.len(),
            Ok(None) => panic!("the whole blob was served"),
            Err(status) => break status,
        }
    };
    assert_eq!(
        refused(&status),
        (Code::Unauthenticated, "CAPABILITY_EXPIRED")
    );
    assert!(received < bytes.len(), "{received}");
}

#[tokio::test]
async fn uploads_that_are_not_what_they_announce_are_refused() {
    let world = World::with(|storage| {
        storage.max_blob_bytes = 1000;
        storage.upload_pause_seconds = 1;
    })
    .await;
    let sealer = world.caller(Role::Sealer, "one");
    let bytes = content(900);
    let blob = digest(&bytes);
    let wrong = digest(b"other");
    let header = upload(blob, 900, &[]).remove(0);
    let cases = [
        (vec![], Code::InvalidArgument, "INVALID_ARGUMENT"),
        (
            upload(blob, 900, &bytes).split_off(1),
            Code::InvalidArgument,
            "INVALID_ARGUMENT",
        ),
        (
            vec![header.clone(), header.clone()],
            Code::InvalidArgument,
            "INVALID_ARGUMENT",
        ),
        (
            vec![header.clone(), PutBlobRequest { part: None }],
            Code::InvalidArgument,
            "INVALID_ARGUMENT",
        ),
        (
            upload(wrong, 900, &bytes),
            Code::InvalidArgument,
            "DIGEST_MISMATCH",
        ),
        (
            upload(blob, 901, &bytes),
            Code::InvalidArgument,
            "LENGTH_MISMATCH",
        ),
        (
            upload(blob, 899, &bytes),
            Code::InvalidArgument,
            "LENGTH_MISMATCH",
        ),
        (
            upload(blob, 1001, &bytes),
            Code::InvalidArgument,
            "BLOB_TOO_LARGE",
        ),
    ];
    for (messages, code, reason) in cases {
        let status = sealer
            .put_messages(stream::iter(messages))
            .await
            .unwrap_err();
        assert_eq!(refused(&status), (code, reason), "{status:?}");
    }
    let stalled = stream::iter([header]).chain(stream::pending());
    let status = sealer.put_messages(stalled).await.unwrap_err();
    assert_eq!(
        refused(&status),
        (Code::DeadlineExceeded, "UPLOAD_STALLED"),
        "{status:?}"
    );
    let status = sealer.stat(blob, "").await.unwrap_err();
    assert_eq!(refused(&status), (Code::NotFound, "BLOB_NOT_FOUND"));
    sealer.put(&bytes).await.unwrap();
    let status = sealer.get(blob, 10, 891, "").await.unwrap_err();
    assert_eq!(
        refused(&status),
        (Code::InvalidArgument, "RANGE_OUTSIDE_BLOB")
    );
}

#[tokio::test]
async fn a_full_node_says_so() {
    let full = World::with(|storage| storage.reserve_bytes = u64::MAX).await;
    let status = full
        .caller(Role::Sealer, "one")
        .put(b"x")
        .await
        .unwrap_err();
    assert_eq!(refused(&status), (Code::ResourceExhausted, "NO_SPACE"));

    let busy = World::with(|storage| {
        storage.max_uploads = 1;
        storage.max_reads = 1;
    })
    .await;
    let sealer = busy.caller(Role::Sealer, "one");
    let bytes = content(40 * MIB);
    let blob = digest(&bytes);
    sealer.put(&bytes).await.unwrap();

    let (started, wait) = tokio::sync::oneshot::channel::<()>();
    let header = upload(blob, 1, &[]).remove(0);
    let held = stream::iter([header]).chain(stream::once(async move {
        // Ends the upload when the test is done with it.
        let _ = wait.await;
        PutBlobRequest { part: None }
    }));
    let holder = busy.caller(Role::Sealer, "two");
    let holding = tokio::spawn(async move { holder.put_messages(held).await });
    busy.eventually("\"uploads\":1").await;
    let status = sealer.put(b"y").await.unwrap_err();
    assert_eq!(
        refused(&status),
        (Code::ResourceExhausted, "TOO_MANY_TRANSFERS")
    );
    drop(started);
    assert!(holding.await.unwrap().is_err());
    sealer.put(b"y").await.unwrap();

    let request = GetBlobRequest {
        digest: blob.to_string(),
        ..Default::default()
    };
    let mut reading = sealer
        .client
        .storage_service()
        .get_blob(request)
        .await
        .unwrap()
        .into_inner();
    reading.message().await.unwrap();
    let status = sealer.get(blob, 0, 1, "").await.unwrap_err();
    assert_eq!(
        refused(&status),
        (Code::ResourceExhausted, "TOO_MANY_TRANSFERS")
    );
    drop(reading);
    busy.eventually("\"reads\":0").await;
    assert_eq!(sealer.get(blob, 0, 1, "").await.unwrap(), bytes[..1]);
}

#[tokio::test]
async fn roles_are_kept_apart() {
    let world = World::new().await;
    let bytes = content(10);
    let blob = digest(&bytes);
    world.caller(Role::Sealer, "one").put(&bytes).await.unwrap();
    for role in [
        Role::Inference,
        Role::Platform,
        Role::Operator,
        Role::KeyService,
        Role::Storage,
    ] {
        let status = world.caller(role, "one").put(&bytes).await.unwrap_err();
        assert_eq!(
            refused(&status),
            (Code::PermissionDenied, "ROLE_NOT_ALLOWED"),
            "{role}"
        );
    }
    for role in [Role::Platform, Role::Auditor, Role::KeyService] {
        let status = world
            .caller(role, "one")
            .get(blob, 0, 0, "")
            .await
            .unwrap_err();
        assert_eq!(
            refused(&status),
            (Code::PermissionDenied, "ROLE_NOT_ALLOWED"),
            "{role}"
        );
    }
    for role in [Role::Auditor, Role::Registry, Role::Operator] {
        assert_eq!(
            world.caller(role, "one").stat(blob, "").await.unwrap().size,
            10,
            "{role}"
        );
    }
    let status = world
        .caller(Role::Sealer, "one")
        .scrub(None)
        .await
        .unwrap_err();
    assert_eq!(refused(&status).1, "ROLE_NOT_ALLOWED");
}
