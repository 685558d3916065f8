//! The services that a sealer works with, in one process.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::client::Client;
use api::v1;
use custody::{CustodyLog, Trust};
use database::{Database, DatabaseUrl, Options, PgJobs, Schema, provision};
use ed25519_dalek::SigningKey;
use identifiers::{RequestId, Role, SpiffeId};
use local_postgres::LocalPostgres;
use registry_domain::{DurableFile, JobRepository as _};
use service_runtime::trust::{PublicKey, Signer};
use service_runtime::{
    CancellationToken, Clock as _, DatabaseSettings, Identity, IdentityFiles, LogSettings,
    PeerSettings, Running, ServerSettings, SystemClock, TrustFile,
};
use storage_node::StorageSettings;
use tlog::NoteSigner;
use workload_identity::dev_ca::{self, DevCa};

const DOMAIN: &str = "chancery.test";
const HOUR: Duration = Duration::from_secs(3600);
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data");

/// A service that runs, and how it is stopped.
struct Service {
    running: Running,
    shutdown: CancellationToken,
}

impl Service {
    async fn stop(self) {
        self.shutdown.cancel();
        self.running.finished().await.unwrap();
    }
}

pub struct World {
    registry: Option<Service>,
    key_service: Option<Service>,
    storage: Option<Service>,
    sealer: Option<Service>,
    storage_address: SocketAddr,
    jobs: PgJobs,
    postgres: LocalPostgres,
    ca: DevCa,
    trust: TrustFile,
    folder: tempfile::TempDir,
}

fn now() -> u64 {
    SystemClock.unix_seconds().try_into().unwrap()
}

fn key(role: Role) -> SigningKey {
    SigningKey::from_bytes(&[role as u8 + 1; 32])
}

impl World {
    /// Everything, with `tests/data` copied beneath the source root.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let postgres = LocalPostgres::start(&local_postgres::Options {
            folder: folder.path().join("postgres"),
            binaries: None,
            durable: false,
        })
        .unwrap();
        provision(&DatabaseUrl::new(&postgres.admin_url()), "chancery")
            .await
            .unwrap();
        let ca = dev_ca::create(&folder.path().join("ca"), DOMAIN, now()).unwrap();
        let log = NoteSigner::new("chancery.test/log", SigningKey::from_bytes(&[99; 32])).unwrap();
        let signers = [Role::Registry, Role::Sealer, Role::KeyService].map(|role| Signer {
            spiffe: SpiffeId::new(DOMAIN, role, "one").unwrap(),
            public_key: PublicKey(key(role).verifying_key().to_bytes()),
        });
        let trust = TrustFile {
            log: log.verifier().to_string(),
            signers: signers.to_vec(),
            capability_keys: Vec::new(),
        };
        let url = DatabaseUrl::new(&postgres.url("chancery_jobs", "chancery"));
        let database = Database::open(Schema::Jobs, &Options::new(url, 2)).await;
        let mut world = Self {
            registry: None,
            key_service: None,
            storage: None,
            sealer: None,
            storage_address: ServerSettings::loopback().listen,
            jobs: PgJobs::new(database.unwrap()),
            postgres,
            ca,
            trust,
            folder,
        };
        world.write("trust.toml", world.trust.to_toml().as_bytes());
        world.write("policy.toml", b"version = 1\n");
        for (name, seed) in [
            ("log", 99),
            ("root", 7),
            ("import", 8),
            ("capability", 9),
            ("model-signing", 10),
        ] {
            world.write(&format!("{name}.key"), &[seed; 32]);
        }
        for role in [Role::Registry, Role::Sealer, Role::KeyService] {
            let seed = key(role).to_bytes();
            world.write(&format!("{role}.receipts.key"), &seed);
        }
        copy(
            &Path::new(DATA).join("tiny-qwen3"),
            &world.source("tiny-qwen3"),
        );
        world.start_registry().await;
        world.start_key_service().await;
        world.start_storage().await;
        world.start_sealer().await;
        world
    }

    pub async fn stop(mut self) {
        for service in [
            &mut self.sealer,
            &mut self.storage,
            &mut self.key_service,
            &mut self.registry,
        ] {
            if let Some(service) = service.take() {
                service.stop().await;
            }
        }
    }

    pub async fn stop_storage(&mut self) {
        self.storage.take().unwrap().stop().await;
    }

    pub async fn stop_sealer(&mut self) {
        self.sealer.take().unwrap().stop().await;
    }

    async fn start_registry(&mut self) {
        let config = registry::Config {
            server: ServerSettings::loopback(),
            identity: self.files(Role::Registry).into(),
            log: LogSettings::default(),
            database: self.database("chancery_registry"),
            trust: self.path("trust.toml"),
            keys: registry::KeyFiles {
                log: self.path("log.key"),
                receipts: self.path("registry.receipts.key"),
            },
            state_dir: self.state("registry"),
            max_waiting: 100,
        };
        let shutdown = CancellationToken::new();
        let app = config.build().await.unwrap();
        let running = app.serve(shutdown.clone()).await.unwrap();
        self.registry = Some(Service { running, shutdown });
    }

    async fn start_key_service(&mut self) {
        let config = key_service::Config {
            server: ServerSettings::loopback(),
            identity: self.files(Role::KeyService).into(),
            log: LogSettings::default(),
            database: self.database("chancery_keys"),
            registry: peer(&self.registry),
            trust: self.path("trust.toml"),
            keys: key_service::KeyFiles {
                root: self.path("root.key"),
                import: self.path("import.key"),
                capability: self.path("capability.key"),
                receipts: self.path("key-service.receipts.key"),
            },
            policy: self.path("policy.toml"),
            state_dir: self.state("key-service"),
            grant_lifetime_seconds: 3600,
        };
        let shutdown = CancellationToken::new();
        let app = config.build().await.unwrap();
        let running = app.serve(shutdown.clone()).await.unwrap();
        self.key_service = Some(Service { running, shutdown });
    }

    /// Starts the storage node, again where it was before.
    pub async fn start_storage(&mut self) {
        let mut storage = StorageSettings::in_folder(self.path("blobs"));
        storage.reserve_bytes = 0;
        let config = storage_node::Config {
            server: ServerSettings {
                listen: self.storage_address,
                ..ServerSettings::loopback()
            },
            identity: self.files(Role::Storage).into(),
            log: LogSettings::default(),
            storage,
            trust: self.path("trust.toml"),
            capability_issuer: SpiffeId::new(DOMAIN, Role::KeyService, "one").unwrap(),
        };
        let shutdown = CancellationToken::new();
        let app = config.build().await.unwrap();
        let running = app.serve(shutdown.clone()).await.unwrap();
        self.storage_address = running.addr;
        self.storage = Some(Service { running, shutdown });
    }

    pub async fn start_sealer(&mut self) {
        let config = sealer::Config {
            server: ServerSettings::loopback(),
            identity: self.files(Role::Sealer).into(),
            log: LogSettings::default(),
            database: self.database("chancery_jobs"),
            key_service: peer(&self.key_service),
            registry: peer(&self.registry),
            storage: PeerSettings {
                endpoint: format!("https://{}", self.storage_address),
            },
            trust: self.path("trust.toml"),
            keys: sealer::KeyFiles {
                receipts: self.path("sealer.receipts.key"),
                model_signing: self.path("model-signing.key"),
            },
            source_roots: vec![self.path("sources")],
            work_dir: self.path("work"),
            state_dir: self.state("sealer"),
            workers: 1,
            max_jobs: 100,
            lease_seconds: 10,
            heartbeat_millis: 100,
            max_attempts: 3,
            poll_millis: 50,
            max_pause_seconds: 1,
        };
        let shutdown = CancellationToken::new();
        let app = config.build().await.unwrap();
        let running = app.serve(shutdown.clone()).await.unwrap();
        self.sealer = Some(Service { running, shutdown });
    }

    /// A client of a service, speaking as a role.
    pub fn client(&self, of: Role, role: Role) -> Client {
        let service = match of {
            Role::Registry => &self.registry,
            Role::KeyService => &self.key_service,
            Role::Storage => &self.storage,
            _ => &self.sealer,
        };
        let identity = Identity::load(self.files(role)).unwrap();
        Client::connect(&peer(service).endpoint, &identity, of).unwrap()
    }

    pub fn trusted(&self) -> Trust {
        Trust::try_from(&self.trust).unwrap()
    }

    /// A way to the log for the test itself.
    pub fn custody(&self, role: Role) -> CustodyLog {
        let replica = SpiffeId::new(DOMAIN, role, "one").unwrap();
        let client = self.client(Role::Registry, role);
        let pin = self.path("test.checkpoint");
        CustodyLog::open(client, key(role), replica, self.trusted(), pin).unwrap()
    }

    pub async fn create_key(&self, name: &str, number: u8) -> v1::Key {
        let mut service = self.client(Role::KeyService, Role::Operator).key_service();
        let request = v1::CreateKeyRequest {
            request_id: RequestId::from_parts(2, &[number; 10]).to_string(),
            name: name.to_owned(),
        };
        service.create_key(request).await.unwrap().into_inner()
    }

    pub async fn disable_key(&self, name: &str) {
        let mut service = self.client(Role::KeyService, Role::Operator).key_service();
        let request = v1::DisableKeyRequest {
            request_id: RequestId::from_parts(3, &[1; 10]).to_string(),
            key: name.to_owned(),
            reason: "test".to_owned(),
        };
        service.disable_key(request).await.unwrap();
    }

    /// Whether an attempt at the job settled its source.
    pub async fn is_resumable(&self, job: &str) -> bool {
        let job = self.jobs.job(job.parse().unwrap()).await.unwrap();
        job.resume.is_some()
    }

    pub async fn durable_files(&self, job: &str) -> Vec<DurableFile> {
        self.jobs.durable_files(job.parse().unwrap()).await.unwrap()
    }

    /// The sealer's folder goes.
    pub fn lose_work(&self) {
        fs::remove_dir_all(self.path("work")).unwrap();
    }

    pub fn source(&self, name: &str) -> PathBuf {
        self.path("sources").join(name)
    }

    /// A copy of a source with another byte in its weights.
    pub fn change_source(&self, from: &str, to: &str) {
        copy(&self.source(from), &self.source(to));
        self.flip_byte(to);
    }

    pub fn flip_byte(&self, source: &str) {
        let shard = self.source(source).join("model-00002-of-00002.safetensors");
        let mut bytes = fs::read(&shard).unwrap();
        // The sign of one weight: a value that every lock can code.
        *bytes.last_mut().unwrap() ^= 0x80;
        fs::write(shard, bytes).unwrap();
    }

    /// Names of the folders in the sealer's work folder.
    pub fn work_folders(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("work")).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn state(&self, name: &str) -> PathBuf {
        let path = self.path(&format!("state-{name}"));
        fs::create_dir_all(&path).unwrap();
        path
    }

    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn files(&self, role: Role) -> IdentityFiles {
        self.ca.write(role, "one", now(), HOUR).unwrap()
    }

    fn database(&self, role: &str) -> DatabaseSettings {
        DatabaseSettings {
            url: self.postgres.url(role, "chancery"),
            max_connections: 4,
        }
    }
}

fn peer(service: &Option<Service>) -> PeerSettings {
    PeerSettings {
        endpoint: service.as_ref().unwrap().running.endpoint(),
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
