use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::v1::storage_service_server::StorageServiceServer;
use blob_store::{BlobError, BlobStore, Options};
use identifiers::SpiffeId;
use serde::Deserialize;
use service_runtime::process::ProcessConfig;
use service_runtime::{
    CancellationToken, Clock, ConfigError, IdentitySettings, LogSettings, Metrics, Running,
    RuntimeError, Server, ServerSettings, SystemClock,
};
use tokio::sync::Semaphore;

use crate::access::{Access, TrustRefusal};
use crate::counts::Counts;
use crate::service::Storage;

/// A storage node's config file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Listeners and their bounds.
    pub server: ServerSettings,
    /// Who this node is.
    pub identity: IdentitySettings,
    /// What is logged.
    #[serde(default)]
    pub log: LogSettings,
    /// Where the blobs are, and bounds.
    pub storage: StorageSettings,
    /// `trust.toml`: the public keys that capabilities are checked with. Read again when a token
    /// names a key that is not in it.
    pub trust: PathBuf,
    /// The key service whose capabilities count.
    pub capability_issuer: SpiffeId,
}

/// The `[storage]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageSettings {
    /// The folder that the blobs are in; made when absent.
    pub folder: PathBuf,
    /// Most bytes of a blob.
    #[serde(default = "default_max_blob")]
    pub max_blob_bytes: u64,
    /// Bytes that an upload must leave free on the disk.
    #[serde(default = "default_reserve")]
    pub reserve_bytes: u64,
    /// Most uploads at a time; further ones are refused.
    #[serde(default = "default_uploads")]
    pub max_uploads: usize,
    /// Most reads at a time; further ones are refused.
    #[serde(default = "default_reads")]
    pub max_reads: usize,
    /// Seconds that an upload may pause between two messages.
    #[serde(default = "default_pause")]
    pub upload_pause_seconds: u64,
    /// Seconds that this node's clock and the key service's may differ.
    #[serde(default = "default_skew")]
    pub clock_skew_seconds: u64,
}

impl StorageSettings {
    /// Blobs in a folder, with the default bounds.
    #[must_use]
    pub fn in_folder(folder: PathBuf) -> Self {
        Self {
            folder,
            max_blob_bytes: default_max_blob(),
            reserve_bytes: default_reserve(),
            max_uploads: default_uploads(),
            max_reads: default_reads(),
            upload_pause_seconds: default_pause(),
            clock_skew_seconds: default_skew(),
        }
    }
}

impl ProcessConfig for Config {
    fn log(&self) -> &LogSettings {
        &self.log
    }
}

/// A storage node that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The identity files.
    #[error("identity")]
    Identity(#[source] ConfigError),
    /// The trust file.
    #[error("trust")]
    Trust(#[from] TrustRefusal),
    /// The blob folder.
    #[error("storage.folder {}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why.
        source: BlobError,
    },
}

/// A storage node that is ready to serve.
pub struct App {
    server: Server,
    storage: Storage,
    clock: Arc<dyn Clock>,
}

impl Config {
    /// Opens everything that the node needs; what an interrupted upload left is removed.
    ///
    /// # Errors
    /// When the identity, the trust file or the folder cannot be used.
    pub async fn build(self) -> Result<App, StartError> {
        let Self {
            server,
            identity,
            log: _,
            storage,
            trust,
            capability_issuer,
        } = self;
        let StorageSettings {
            folder,
            max_blob_bytes,
            reserve_bytes,
            max_uploads,
            max_reads,
            upload_pause_seconds,
            clock_skew_seconds,
        } = storage;
        let (identity, authorisation) = identity.load().map_err(StartError::Identity)?;
        let access = Access::load(trust, capability_issuer, clock_skew_seconds)?;
        let options = Options {
            max_blob: max_blob_bytes,
            reserve: reserve_bytes,
        };
        let blobs = BlobStore::local(&folder, options)
            .await
            .map_err(|source| StartError::Folder { folder, source })?;
        let metrics = Metrics::new();
        let counts = Counts::register(&metrics);
        let details = counts.clone();
        let server = Server::builder(server, identity)
            .authorisation(authorisation)
            .metrics(metrics)
            .details(move || details.to_json());
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(App {
            server,
            clock: clock.clone(),
            storage: Storage {
                blobs,
                access: Arc::new(access),
                clock,
                counts,
                uploads: Arc::new(Semaphore::new(max_uploads)),
                reads: Arc::new(Semaphore::new(max_reads)),
                scrubs: Arc::new(Semaphore::new(1)),
                pause: Duration::from_secs(upload_pause_seconds),
            },
        })
    }
}

impl App {
    /// With another clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.storage.clock = clock.clone();
        self.clock = clock;
        self
    }

    /// Serves until `shutdown`, then drains.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<Running, RuntimeError> {
        let service =
            StorageServiceServer::new(self.storage).max_decoding_message_size(MAX_MESSAGE);
        self.server
            .clock(self.clock)
            .service(service)
            .serve(shutdown)
            .await
    }
}

fn default_max_blob() -> u64 {
    Options::default().max_blob
}

fn default_reserve() -> u64 {
    Options::default().reserve
}

fn default_uploads() -> usize {
    16
}

fn default_reads() -> usize {
    128
}

fn default_pause() -> u64 {
    30
}

fn default_skew() -> u64 {
    5
}

/// Largest message taken: 1 MiB of data and its framing.
const MAX_MESSAGE: usize = (1 << 20) + (16 << 10);
