//! The registry over real mutual-TLS sockets and a real Postgres.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use api::client::Client;
use api::v1;
use custody::{CustodyLog, Trust};
use database::{DatabaseUrl, provision};
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use identifiers::{KeyId, ReceiptId, Role, Sha256Digest, SpiffeId};
use local_postgres::LocalPostgres;
use receipt::{Event, KeyRef, NewReceipt, Receipt};
use registry::{BuildError, Config, KeyFiles};
use registry_domain::{
    ArtifactKind, ArtifactManifest, ContainerRecord, ManifestFile, PinError, RegionUnits,
    SealRecord,
};
use service_runtime::trust::{PublicKey, Signer};
use service_runtime::{
    CancellationToken, Clock as _, DatabaseSettings, Identity, IdentityFiles, LogSettings, Running,
    ServerSettings, SystemClock, TrustFile,
};
use shard_identity::{Shard, ShardManifest};
use tlog::{Checkpoint, NoteSigner, OfflineProof, TileReader, fsck};
use tonic::Code;
use workload_identity::dev_ca::{self, DevCa};

const DOMAIN: &str = "chancery.test";
const HOUR: Duration = Duration::from_secs(3600);

struct World {
    postgres: LocalPostgres,
    ca: DevCa,
    trust: TrustFile,
    folder: tempfile::TempDir,
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap()
}

fn spiffe(role: Role) -> SpiffeId {
    SpiffeId::new(DOMAIN, role, "one").unwrap()
}

fn key(role: Role) -> SigningKey {
    SigningKey::from_bytes(&[role as u8 + 1; 32])
}

fn log_key() -> NoteSigner {
    NoteSigner::new("chancery.test/log", SigningKey::from_bytes(&[99; 32])).unwrap()
}

impl World {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let options = local_postgres::Options {
            folder: folder.path().join("postgres"),
            binaries: None,
            durable: false,
        };
        let postgres = LocalPostgres::start(&options).unwrap();
        let ca = dev_ca::create(&folder.path().join("ca"), DOMAIN, now()).unwrap();
        let signers = [Role::Registry, Role::Sealer, Role::KeyService].map(|role| Signer {
            spiffe: spiffe(role),
            public_key: PublicKey(key(role).verifying_key().to_bytes()),
        });
        let trust = TrustFile {
            log: log_key().verifier().to_string(),
            signers: signers.to_vec(),
            capability_keys: Vec::new(),
        };
        let world = Self {
            folder,
            ca,
            postgres,
            trust,
        };
        world.write("trust.toml", &world.trust.to_toml());
        fs::create_dir(world.path("state")).unwrap();
        for (name, key) in [
            ("log.key", SigningKey::from_bytes(&[99; 32])),
            ("receipts.key", key(Role::Registry)),
        ] {
            world.write(name, &key.to_pkcs8_pem(LineEnding::LF).unwrap());
        }
        world.database("first").await;
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    async fn database(&self, name: &str) {
        provision(&DatabaseUrl::new(&self.postgres.admin_url()), name)
            .await
            .unwrap();
    }

    fn files(&self, role: Role) -> IdentityFiles {
        self.ca.write(role, "one", now(), HOUR).unwrap()
    }

    fn config(&self, database: &str) -> Config {
        Config {
            server: ServerSettings::loopback(),
            identity: self.files(Role::Registry).into(),
            log: LogSettings::default(),
            database: DatabaseSettings {
                url: self.postgres.url("chancery_registry", database),
                max_connections: 4,
            },
            trust: self.path("trust.toml"),
            keys: KeyFiles {
                log: self.path("log.key"),
                receipts: self.path("receipts.key"),
            },
            state_dir: self.path("state"),
            max_waiting: 100,
        }
    }

    async fn start(&self, shutdown: &CancellationToken) -> Running {
        let app = self.config("first").build().await.unwrap();
        app.serve(shutdown.clone()).await.unwrap()
    }

    fn client(&self, running: &Running, role: Role) -> Client {
        let identity = Identity::load(self.files(role)).unwrap();
        Client::connect(&running.endpoint(), &identity, Role::Registry).unwrap()
    }

    fn custody(&self, running: &Running, role: Role) -> CustodyLog {
        let trust = Trust::try_from(&self.trust).unwrap();
        let pin = self.path(&format!("{role}.checkpoint"));
        CustodyLog::open(
            self.client(running, role),
            key(role),
            spiffe(role),
            trust,
            pin,
        )
        .unwrap()
    }
}

fn receipt(number: u8, role: Role) -> Receipt {
    let new = NewReceipt {
        id: ReceiptId::from_parts(1, &[number; 10]),
        event: Event::KeyCreated,
        actor: SpiffeId::new(DOMAIN, Role::Operator, "ann").unwrap(),
        replica: spiffe(role),
        time: 1,
    };
    Receipt {
        key: Some(KeyRef {
            id: KeyId::from_parts(1, &[number; 10]),
            fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
            version: 1,
        }),
        ..new.into()
    }
}

fn manifest(model: &str, key: u8, source: u8) -> ArtifactManifest {
    let shard = Shard {
        filename: "model.safetensors".to_owned(),
        size_bytes: 3,
        sha256: Sha256Digest::new([source; 32]),
    };
    ArtifactManifest {
        version: 1,
        model: model.to_owned(),
        kind: ArtifactKind::Container,
        key_id: KeyId::from_parts(1, &[key; 10]),
        key_version: 1,
        fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
        seal: SealRecord {
            scheme: "l1".to_owned(),
            transform: "perm".to_owned(),
            lock: "none".to_owned(),
            lock_table_digest: None,
            architecture: "Qwen3ForCausalLM".to_owned(),
        },
        source: ShardManifest::new(vec![shard]).unwrap(),
        sealed: None,
        files: vec![ManifestFile {
            path: "tiny.jlm".to_owned(),
            size: 4096,
            sha256: Sha256Digest::new([2; 32]),
            chunk_root: Sha256Digest::new([3; 32]),
        }],
        container: Some(ContainerRecord {
            salt: "00112233445566778899aabbccddeeff".to_owned(),
            units: vec![RegionUnits {
                region: 4,
                count: 4,
            }],
        }),
        sealed_at: 1,
        sealer: spiffe(Role::Sealer),
    }
}

fn registration(number: u8, manifest: &ArtifactManifest) -> v1::RegisterArtifactRequest {
    v1::RegisterArtifactRequest {
        request_id: identifiers::RequestId::from_parts(1, &[number; 10]).to_string(),
        manifest_envelope: manifest.sign(&key(Role::Sealer)).unwrap(),
    }
}

/// Reads the log's tiles through the service.
struct Tiles {
    client: Client,
    runtime: tokio::runtime::Handle,
}

impl TileReader for Tiles {
    type Error = tonic::Status;

    fn read(&mut self, path: &tlog::TilePath) -> Result<Vec<u8>, tonic::Status> {
        let mut client = self.client.registry_service();
        let path = path.to_string();
        let get = async { client.get_tile(v1::GetTileRequest { path }).await };
        Ok(self.runtime.block_on(get)?.into_inner().data)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_and_receipts_stand_in_a_log_that_anyone_can_check() {
    let (world, shutdown) = (World::new().await, CancellationToken::new());
    let running = world.start(&shutdown).await;
    let custody = world.custody(&running, Role::KeyService);
    custody.check_log().await.unwrap();
    for number in 0..5 {
        let recorded = custody
            .record(&receipt(number, Role::KeyService))
            .await
            .unwrap();
        assert_eq!(recorded.index, u64::from(number));
        assert_eq!(
            custody
                .record(&receipt(number, Role::KeyService))
                .await
                .unwrap(),
            recorded
        );
    }

    let sealer = world.client(&running, Role::Sealer);
    let artifact = manifest("tiny", 1, 1);
    let registered = sealer
        .registry_service()
        .register_artifact(registration(1, &artifact))
        .await
        .unwrap()
        .into_inner();
    let again = sealer
        .registry_service()
        .register_artifact(registration(2, &artifact))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(again.id, registered.id);
    for which in [
        v1::get_artifact_request::Which::Digest(registered.digest.clone()),
        v1::get_artifact_request::Which::Id(registered.id.clone()),
        v1::get_artifact_request::Which::Model(v1::ModelRef {
            model: "tiny".to_owned(),
            kind: v1::ArtifactKind::Container.into(),
        }),
    ] {
        let verified = custody.artifact(which).await.unwrap();
        assert_eq!(*verified.manifest(), artifact);
    }
    let other_source = registration(3, &manifest("tiny", 1, 2));
    let refused = sealer
        .registry_service()
        .register_artifact(other_source)
        .await
        .unwrap_err();
    assert_eq!(
        (refused.code(), api::reason(&refused)),
        (Code::FailedPrecondition, Some("KEY_SERVES_ANOTHER_SOURCE"))
    );

    let auditor = world.client(&running, Role::Auditor);
    let list = |event: &str, page_size, from_index| v1::ListReceiptsRequest {
        event: event.to_owned(),
        page_size,
        from_index,
        ..Default::default()
    };
    let refusals = auditor
        .registry_service()
        .list_receipts(list("refused", 0, 0))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((refusals.receipts.len(), refusals.next_index), (1, 0));
    let first = auditor
        .registry_service()
        .list_receipts(list("", 4, 0))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((first.receipts.len(), first.next_index), (4, 4));
    let last = auditor
        .registry_service()
        .list_receipts(list("", 4, 4))
        .await
        .unwrap()
        .into_inner();
    assert_eq!((last.receipts.len(), last.next_index), (3, 0));
    assert!(
        auditor
            .registry_service()
            .list_receipts(list("nonsense", 0, 0))
            .await
            .is_err()
    );

    // Offline: the receipt, its proof, the whole log.
    let trust = Trust::try_from(&world.trust).unwrap();
    let which = Some(v1::get_receipt_request::Which::Index(2));
    let logged = auditor
        .registry_service()
        .get_receipt(v1::GetReceiptRequest { which })
        .await
        .unwrap()
        .into_inner();
    let proof: OfflineProof = logged.proof.parse().unwrap();
    proof.verify(&logged.envelope, &trust.log).unwrap();
    Receipt::verify(&logged.envelope, &trust.signers).unwrap();
    let checkpoint = auditor
        .registry_service()
        .get_checkpoint(v1::GetCheckpointRequest {})
        .await
        .unwrap()
        .into_inner();
    let checkpoint = Checkpoint::verify(&checkpoint.note, &trust.log).unwrap();
    assert_eq!(checkpoint.size, 7);
    let mut tiles = Tiles {
        client: auditor.clone(),
        runtime: tokio::runtime::Handle::current(),
    };
    let report = tokio::task::spawn_blocking(move || fsck(&checkpoint, &mut tiles))
        .await
        .unwrap();
    assert!(report.is_clean() && report.entries == 7, "{report:?}");
    for bad in ["tile/0/000", "tile/1/000.p/1", "tile/0/000.p/8"] {
        let request = v1::GetTileRequest {
            path: bad.to_owned(),
        };
        let refused = auditor
            .registry_service()
            .get_tile(request)
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "{bad}");
    }
    let beyond = v1::GetConsistencyProofRequest {
        old_size: 1,
        new_size: 8,
    };
    let refused = auditor
        .registry_service()
        .get_consistency_proof(beyond)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let keys = auditor
        .registry_service()
        .get_trusted_keys(v1::GetTrustedKeysRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (keys.log, keys.receipt_keys.len()),
        (world.trust.log.clone(), 3)
    );
    shutdown.cancel();
    running.finished().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_signed_by_its_bearer_is_refused() {
    let (world, shutdown) = (World::new().await, CancellationToken::new());
    let running = world.start(&shutdown).await;
    let append = async |role, envelope| {
        let client = world.client(&running, role);
        let request = v1::AppendReceiptRequest { envelope };
        client
            .registry_service()
            .append_receipt(request)
            .await
            .map(|_| ())
    };
    let genuine = receipt(1, Role::KeyService)
        .sign(&key(Role::KeyService))
        .unwrap();
    let refused = append(Role::Sealer, genuine.clone()).await.unwrap_err();
    assert_eq!(
        (refused.code(), api::reason(&refused)),
        (Code::PermissionDenied, Some("SIGNED_BY_ANOTHER"))
    );
    let forged = receipt(1, Role::KeyService)
        .sign(&key(Role::Sealer))
        .unwrap();
    let refused = append(Role::KeyService, forged).await.unwrap_err();
    assert_eq!(
        (refused.code(), api::reason(&refused)),
        (Code::InvalidArgument, Some("RECEIPT_REFUSED"))
    );
    let untrusted = receipt(1, Role::KeyService)
        .sign(&SigningKey::from_bytes(&[77; 32]))
        .unwrap();
    assert_eq!(
        append(Role::KeyService, untrusted)
            .await
            .unwrap_err()
            .code(),
        Code::InvalidArgument
    );
    assert_eq!(
        append(Role::Auditor, genuine.clone())
            .await
            .unwrap_err()
            .code(),
        Code::PermissionDenied
    );
    append(Role::KeyService, genuine).await.unwrap();
    let mut reused = receipt(1, Role::KeyService);
    reused.time = 2;
    let reused = reused.sign(&key(Role::KeyService)).unwrap();
    let refused = append(Role::KeyService, reused).await.unwrap_err();
    assert_eq!(
        (refused.code(), api::reason(&refused)),
        (Code::AlreadyExists, Some("RECEIPT_ID_REUSED"))
    );
    shutdown.cancel();
    running.finished().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_went_back_or_forked_is_refused_at_the_start() {
    let (world, shutdown) = (World::new().await, CancellationToken::new());
    let running = world.start(&shutdown).await;
    let custody = world.custody(&running, Role::KeyService);
    for number in 0..3 {
        custody
            .record(&receipt(number, Role::KeyService))
            .await
            .unwrap();
    }
    shutdown.cancel();
    running.finished().await.unwrap();

    // The same database is accepted again.
    world.config("first").build().await.unwrap();

    // An older state: here, the empty one.
    world.database("older").await;
    let refused = world.config("older").build().await.err().unwrap();
    assert!(
        matches!(
            refused,
            BuildError::Pin(PinError::WentBack {
                pinned: 3,
                found: 0
            })
        ),
        "{refused}"
    );

    // Another history under the same key.
    let mut elsewhere = world.config("older");
    elsewhere.state_dir = world.path("elsewhere");
    fs::create_dir(&elsewhere.state_dir).unwrap();
    let shutdown = CancellationToken::new();
    let running = elsewhere
        .build()
        .await
        .unwrap()
        .serve(shutdown.clone())
        .await
        .unwrap();
    let sealer = world.custody(&running, Role::Sealer);
    for number in 10..14 {
        sealer.record(&receipt(number, Role::Sealer)).await.unwrap();
    }
    // A service that saw the first history sees the fork.
    let old = world.custody(&running, Role::KeyService);
    assert!(old.check_log().await.is_err());
    shutdown.cancel();
    running.finished().await.unwrap();
    let refused = world.config("older").build().await.err().unwrap();
    assert!(
        matches!(
            refused,
            BuildError::Pin(PinError::Forked {
                pinned: 3,
                found: 4
            })
        ),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_the_trust_file_does_not_name_are_refused_at_the_start() {
    let world = World::new().await;
    let mut swapped = world.config("first");
    std::mem::swap(&mut swapped.keys.log, &mut swapped.keys.receipts);
    let refused = swapped.build().await.err().unwrap();
    assert!(
        matches!(refused, BuildError::UntrustedReceiptKey(_)),
        "{refused}"
    );
    let mut other = world.config("first");
    other.keys.log = other.keys.receipts.clone();
    let refused = other.build().await.err().unwrap();
    assert!(matches!(refused, BuildError::OtherLogKey), "{refused}");
    world.write("log.key", "nonsense");
    let refused = world.config("first").build().await.err().unwrap();
    assert!(matches!(refused, BuildError::Key(_)), "{refused}");
}
