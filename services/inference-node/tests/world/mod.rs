//! A registry, a key service, a storage node and an inference node in this process, and a sealer by hand.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::client::Client;
use api::v1::put_blob_request::Part;
use api::v1::{
    BlobInfo, CreateKeyRequest, Key, ListReceiptsRequest, Lock, OpenSealGrantRequest,
    PutBlobHeader, PutBlobRequest, RegisterArtifactRequest, RevokeUnlockRequest, Scheme, Transform,
};
use checkpoint::Checkpoint;
use convert::SourceFiles;
use database::{DatabaseUrl, provision};
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::EncodePrivateKey as _;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use futures::stream;
use identifiers::{JobId, RequestId, Role, Sha256Digest, SpiffeId};
use inference_node::{Config, KeyFiles, ModelSettings, Running};
use jlm::Region;
use key_client::GrantClient;
use local_postgres::LocalPostgres;
use model_key::{GrantedSubkeys, SubkeySource as _};
use receipt::Receipt;
use registry_domain::{
    ArtifactKind, ArtifactManifest, ContainerRecord, ManifestFile, RegionUnits, SealRecord,
};
use sealed_jlm::{ChunkSize, SealParameters, SealedJlmError, Sealer};
use serde_json::Value;
use service_runtime::trust::{CapabilityKey, PublicKey, Signer};
use service_runtime::{
    CancellationToken, Clock as _, DatabaseSettings, Identity, IdentityFiles, LogSettings,
    PeerSettings, Randomness, ServerSettings, SystemClock, SystemRandomness, TrustFile,
};
use sha2::{Digest as _, Sha256};
use shard_identity::{Shard, ShardManifest};
use tlog::NoteSigner;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use workload_identity::dev_ca;

const DOMAIN: &str = "chancery.test";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What is stored for an artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The sealed container that the manifest describes.
    Sealed,
    /// The plain container.
    Plain,
    /// A container sealed under another salt than the manifest's.
    OtherSalt,
}

/// Everything that runs.
pub struct World {
    /// To the inference node, as a platform team.
    pub client: Client,
    inference: Running,
    shutdown: CancellationToken,
    operator: Client,
    sealer: Sealing,
    registry: Client,
    trust: custody::Trust,
    _postgres: LocalPostgres,
    _folder: tempfile::TempDir,
}

/// The sealer's way to the other services.
struct Sealing {
    key_service: Client,
    registry: Client,
    storage: Client,
}

/// `tests/data` of the repository.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data")
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap()
}

fn random<const N: usize>() -> [u8; N] {
    let randomness: &dyn Randomness = &SystemRandomness;
    randomness.bytes()
}

fn spiffe(role: Role) -> SpiffeId {
    SpiffeId::new(DOMAIN, role, "one").unwrap()
}

fn key(role: Role) -> SigningKey {
    SigningKey::from_bytes(&[role as u8 + 1; 32])
}

fn write(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn write_key(path: &Path, key: &SigningKey) {
    write(path, key.to_pkcs8_pem(LineEnding::LF).unwrap().as_bytes());
}

fn peer(endpoint: String) -> PeerSettings {
    PeerSettings { endpoint }
}

impl World {
    /// Starts everything; capabilities live for `lifetime` seconds.
    pub async fn start(lifetime: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let at = |name: &str| folder.path().join(name);
        let postgres = LocalPostgres::start(&local_postgres::Options {
            folder: at("postgres"),
            binaries: None,
            durable: false,
        })
        .unwrap();
        provision(&DatabaseUrl::new(&postgres.admin_url()), "chancery")
            .await
            .unwrap();
        let database = |role: &str| DatabaseSettings {
            url: postgres.url(role, "chancery"),
            max_connections: 4,
        };

        let ca = dev_ca::create(&at("ca"), DOMAIN, now()).unwrap();
        let files: HashMap<Role, IdentityFiles> = Role::ALL
            .into_iter()
            .map(|role| (role, ca.write(role, "one", now(), DAY).unwrap()))
            .collect();
        let capability = SigningKey::from_bytes(&[98; 32]);
        let log = NoteSigner::new("chancery.test/log", SigningKey::from_bytes(&[99; 32])).unwrap();
        let signing = [
            Role::Registry,
            Role::Sealer,
            Role::KeyService,
            Role::Inference,
        ];
        let trust = TrustFile {
            log: log.verifier().to_string(),
            signers: signing
                .map(|role| Signer {
                    spiffe: spiffe(role),
                    public_key: PublicKey(key(role).verifying_key().to_bytes()),
                })
                .to_vec(),
            capability_keys: vec![CapabilityKey {
                kid: capability::key_thumbprint(&capability.verifying_key()),
                public_key: PublicKey(capability.verifying_key().to_bytes()),
            }],
        };
        write(&at("trust.toml"), trust.to_toml().as_bytes());
        let policy = format!(
            "version = 1\n[[rules]]\nnodes = [\"*\"]\nmodels = [\"*\"]\nmax_lifetime_seconds = {lifetime}\n"
        );
        write(&at("policy.toml"), policy.as_bytes());
        write(&at("root.key"), &[1; 32]);
        write(&at("import.key"), &[2; 32]);
        write_key(&at("capability.key"), &capability);
        write_key(&at("log.key"), &SigningKey::from_bytes(&[99; 32]));
        for role in signing {
            write_key(&at(&format!("{role}.receipts")), &key(role));
            fs::create_dir(at(&format!("{role}.state"))).unwrap();
        }
        let shutdown = CancellationToken::new();

        let registry = registry::Config {
            server: ServerSettings::loopback(),
            identity: files[&Role::Registry].clone().into(),
            log: LogSettings::default(),
            database: database("chancery_registry"),
            trust: at("trust.toml"),
            keys: registry::KeyFiles {
                log: at("log.key"),
                receipts: at("registry.receipts"),
            },
            state_dir: at("registry.state"),
            max_waiting: 100,
        };
        let registry = registry
            .build()
            .await
            .unwrap()
            .serve(shutdown.clone())
            .await
            .unwrap();
        let mut blobs = storage_node::StorageSettings::in_folder(at("blobs"));
        blobs.reserve_bytes = 0;
        let storage = storage_node::Config {
            server: ServerSettings::loopback(),
            identity: files[&Role::Storage].clone().into(),
            log: LogSettings::default(),
            storage: blobs,
            trust: at("trust.toml"),
            capability_issuer: spiffe(Role::KeyService),
        };
        let storage = storage
            .build()
            .await
            .unwrap()
            .serve(shutdown.clone())
            .await
            .unwrap();
        let key_service = key_service::Config {
            server: ServerSettings::loopback(),
            identity: files[&Role::KeyService].clone().into(),
            log: LogSettings::default(),
            database: database("chancery_keys"),
            registry: peer(registry.endpoint()),
            trust: at("trust.toml"),
            keys: key_service::KeyFiles {
                root: at("root.key"),
                import: at("import.key"),
                capability: at("capability.key"),
                receipts: at("key-service.receipts"),
            },
            policy: at("policy.toml"),
            state_dir: at("key-service.state"),
            grant_lifetime_seconds: 3600,
        };
        let key_service = key_service
            .build()
            .await
            .unwrap()
            .serve(shutdown.clone())
            .await
            .unwrap();
        let config = Config {
            server: ServerSettings::loopback(),
            identity: files[&Role::Inference].clone().into(),
            log: LogSettings::default(),
            key_service: peer(key_service.endpoint()),
            registry: peer(registry.endpoint()),
            storage: peer(storage.endpoint()),
            trust: at("trust.toml"),
            keys: KeyFiles {
                receipts: at("inference.receipts"),
            },
            state_dir: at("inference.state"),
            models: ModelSettings {
                threads: 1,
                ..ModelSettings::default()
            },
            debug_state: true,
        };
        let inference = config
            .build()
            .await
            .unwrap()
            .serve(shutdown.clone())
            .await
            .unwrap();

        let connect = |endpoint: String, own: Role, other: Role| {
            let identity = Identity::load(files[&own].clone()).unwrap();
            Client::connect(&endpoint, &identity, other).unwrap()
        };
        Self {
            client: connect(inference.endpoint(), Role::Platform, Role::Inference),
            operator: connect(key_service.endpoint(), Role::Operator, Role::KeyService),
            registry: connect(registry.endpoint(), Role::Auditor, Role::Registry),
            sealer: Sealing {
                key_service: connect(key_service.endpoint(), Role::Sealer, Role::KeyService),
                registry: connect(registry.endpoint(), Role::Sealer, Role::Registry),
                storage: connect(storage.endpoint(), Role::Sealer, Role::Storage),
            },
            trust: custody::Trust::try_from(&trust).unwrap(),
            inference,
            shutdown,
            _postgres: postgres,
            _folder: folder,
        }
    }

    /// Converts `tiny-qwen3`, seals it under a new key, stores and registers it; the digest.
    pub async fn publish(&self, model: &str, form: Form) -> String {
        let request = CreateKeyRequest {
            name: model.to_owned(),
            request_id: request_id(),
        };
        let key = self.operator.key_service().create_key(request).await;
        let key = key.unwrap().into_inner();
        self.sealer.publish(model, form, &key).await
    }

    /// Withdraws an artifact from every node.
    pub async fn revoke(&self, artifact: &str) {
        let request = RevokeUnlockRequest {
            artifact_digest: artifact.to_owned(),
            node: String::new(),
            reason: "a test".to_owned(),
            request_id: request_id(),
        };
        self.operator
            .key_service()
            .revoke_unlock(request)
            .await
            .unwrap();
    }

    /// The events of all receipts, in the log's order.
    pub async fn events(&self) -> Vec<String> {
        let request = ListReceiptsRequest {
            page_size: 1000,
            ..ListReceiptsRequest::default()
        };
        let answer = self
            .registry
            .registry_service()
            .list_receipts(request)
            .await;
        let receipts = answer.unwrap().into_inner().receipts;
        receipts
            .iter()
            .map(|logged| {
                let receipt = Receipt::verify(&logged.envelope, &self.trust.signers).unwrap();
                receipt.receipt().event.as_str().to_owned()
            })
            .collect()
    }

    /// What the inference node's admin port answers.
    pub async fn health(&self, path: &str) -> Value {
        let mut stream = TcpStream::connect(self.inference.admin_addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }

    /// Stops everything; the inference node drains.
    pub async fn stop(self) {
        drop(self.client);
        self.shutdown.cancel();
        let stopped = tokio::time::timeout(Duration::from_secs(20), self.inference.finished());
        stopped.await.unwrap().unwrap();
    }
}

fn request_id() -> String {
    RequestId::from_parts(now() * 1000, &random()).to_string()
}

fn digest(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest::new(Sha256::digest(bytes).into())
}

/// The base weights of `tests/data/tiny-qwen3`.
fn source() -> ShardManifest {
    let folder = data().join("tiny-qwen3");
    let shards = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let shards = shards.map(|name| {
        let bytes = fs::read(folder.join(name)).unwrap();
        Shard {
            filename: name.to_owned(),
            size_bytes: bytes.len() as u64,
            sha256: digest(&bytes),
        }
    });
    ShardManifest::new(shards.to_vec()).unwrap()
}

impl Sealing {
    async fn publish(&self, model: &str, form: Form, key: &Key) -> String {
        let folder = data().join("tiny-qwen3");
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let files = SourceFiles::collect(|name| match fs::read(folder.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        });
        let options = convert::Options::default();
        let plan = convert::plan(&checkpoint, &files.unwrap(), &options).unwrap();
        let container = plan.container();
        let units = Region::ALL
            .into_iter()
            .map(|region| RegionUnits {
                region: region.id(),
                count: container.unit_count(region),
            })
            .filter(|units| units.count > 0)
            .collect();

        let salt = random();
        let recorded = match form {
            Form::OtherSalt => random(),
            Form::Sealed | Form::Plain => salt,
        };
        let fingerprint = key.fingerprint.parse().unwrap();
        let parameters = SealParameters {
            salt,
            chunk: ChunkSize::new(4096).unwrap(),
            aggregate: source().aggregate(),
            fingerprint,
        };
        let subkeys = self.subkeys(key, &parameters, container).await;
        let mut meta = plan.meta().to_vec();
        let mut sealer = Sealer::new(&meta, &parameters).unwrap();
        if form != Form::Plain {
            let get = |id: &_| Ok::<_, SealedJlmError>(subkeys.subkey(id).unwrap());
            sealer.seal_meta(&mut meta, get).unwrap();
        }
        let mut bytes = meta;
        for unit in plan.units() {
            let span = container.unit(unit).unwrap();
            assert_eq!(bytes.len() as u64, span.offset);
            let mut data = vec![0; usize::try_from(span.length).unwrap()];
            plan.write_unit(unit, &mut data).unwrap();
            if form != Form::Plain {
                let subkey = subkeys.subkey(&sealer.subkey_id(unit)).unwrap();
                sealer.seal_unit(unit, &subkey, &mut data).unwrap();
            }
            bytes.extend_from_slice(&data);
        }
        if form != Form::Plain {
            bytes.extend_from_slice(&sealer.finish().unwrap());
        }

        let stored = self.put(&bytes).await;
        let manifest = ArtifactManifest {
            version: 1,
            model: model.to_owned(),
            kind: ArtifactKind::Container,
            key_id: key.id.parse().unwrap(),
            key_version: key.version,
            fingerprint,
            seal: SealRecord {
                scheme: "l1".to_owned(),
                transform: "perm".to_owned(),
                lock: "none".to_owned(),
                lock_table_digest: None,
                architecture: "Qwen3ForCausalLM".to_owned(),
            },
            source: source(),
            sealed: None,
            files: vec![ManifestFile {
                path: format!("{model}.jlm"),
                size: bytes.len() as u64,
                sha256: digest(&bytes),
                chunk_root: stored.chunk_root.parse().unwrap(),
            }],
            container: Some(ContainerRecord {
                salt: recorded
                    .iter()
                    .map(|byte: &u8| format!("{byte:02x}"))
                    .collect(),
                units,
            }),
            sealed_at: 1,
            sealer: spiffe(Role::Sealer),
        };
        let request = RegisterArtifactRequest {
            request_id: request_id(),
            manifest_envelope: manifest.sign(&self::key(Role::Sealer)).unwrap(),
        };
        let registered = self
            .registry
            .registry_service()
            .register_artifact(request)
            .await;
        registered.unwrap().into_inner().digest
    }

    /// The unit keys, by a seal grant.
    async fn subkeys(
        &self,
        key: &Key,
        parameters: &SealParameters,
        container: &jlm::Container,
    ) -> GrantedSubkeys {
        let grants = GrantClient::new(self.key_service.clone());
        let request = OpenSealGrantRequest {
            job_id: JobId::from_parts(now() * 1000, &random()).to_string(),
            fence: 1,
            key_id: key.id.clone(),
            source_aggregate: parameters.aggregate.to_string(),
            scheme: Scheme::L1.into(),
            transform: Transform::Perm.into(),
            lock: Lock::None.into(),
            blob_salt: Vec::new(),
            container_salt: parameters.salt.to_vec(),
            unlock: Lock::Unspecified.into(),
        };
        let grant = grants.open(request).await.unwrap();
        let ids = container
            .units()
            .flat_map(|unit| {
                let (region, unit) = (unit.region.id(), unit.index);
                let range = api::UnitRange {
                    region,
                    start: unit,
                    end: unit + 1,
                };
                key_client::unit_ids(parameters.salt, &[range])
            })
            .collect();
        let randomness: Arc<dyn Randomness> = Arc::new(SystemRandomness);
        grants
            .fetch(&grant, ids, &mut randomness.rng())
            .await
            .unwrap()
    }

    async fn put(&self, bytes: &[u8]) -> BlobInfo {
        let header = Part::Header(PutBlobHeader {
            digest: digest(bytes).to_string(),
            size: bytes.len() as u64,
        });
        let data = bytes
            .chunks(1 << 20)
            .map(|data| Part::Data(data.to_vec().into()));
        let messages: Vec<PutBlobRequest> = std::iter::once(header)
            .chain(data)
            .map(|part| PutBlobRequest { part: Some(part) })
            .collect();
        let stored = self
            .storage
            .storage_service()
            .put_blob(stream::iter(messages))
            .await;
        stored.unwrap().into_inner()
    }
}
