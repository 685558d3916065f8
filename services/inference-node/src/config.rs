use std::path::PathBuf;

use serde::Deserialize;
use service_runtime::{IdentitySettings, LogSettings, PeerSettings, ServerSettings};

/// `inference-node.toml`. Unknown keys are refused; secrets are named by path.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Addresses and bounds.
    pub server: ServerSettings,
    /// Certificate, key, CA.
    pub identity: IdentitySettings,
    /// How to log.
    #[serde(default)]
    pub log: LogSettings,
    /// The key service, which unlocks.
    pub key_service: PeerSettings,
    /// The registry, which has the artifacts and the log.
    pub registry: PeerSettings,
    /// The storage node, which has the containers.
    pub storage: PeerSettings,
    /// The installation's public keys.
    pub trust: PathBuf,
    /// The service's secret key.
    pub keys: KeyFiles,
    /// Where the last checkpoint seen is kept.
    pub state_dir: PathBuf,
    /// Bounds of models and sessions.
    #[serde(default)]
    pub models: ModelSettings,
    /// Answers `/v1/debug/model-state` on the admin port.
    #[serde(default)]
    pub debug_state: bool,
}

/// Paths of secret keys, each mode 600.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFiles {
    /// The Ed25519 key that signs receipts: seed or PKCS#8 PEM.
    pub receipts: PathBuf,
}

/// The `[models]` section.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// Bytes of pages kept resident of a model that is loaded without a budget.
    pub default_budget_bytes: u64,
    /// Most bytes of keys and values (of attention) a model.
    pub kv_bytes: u64,
    /// Most models at a time.
    pub max_loaded: usize,
    /// Most sessions that wait for the one that runs; further ones are refused.
    pub max_waiting: usize,
    /// Threads that compute; 0 means one a processor.
    pub threads: usize,
    /// Ranges of one page that are fetched at the same time.
    pub streams: usize,
    /// Seconds that a client may leave tokens unread before its session is ended.
    pub unread_seconds: u64,
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self {
            default_budget_bytes: 1 << 30,
            kv_bytes: 512 << 20,
            max_loaded: 8,
            max_waiting: 32,
            threads: 0,
            streams: 4,
            unread_seconds: 30,
        }
    }
}

impl service_runtime::process::ProcessConfig for Config {
    fn log(&self) -> &LogSettings {
        &self.log
    }
}

/// Why the node cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The config or an identity file.
    #[error(transparent)]
    Config(#[from] service_runtime::ConfigError),
    /// The receipt key's file.
    #[error(transparent)]
    Key(#[from] service_runtime::KeyFileError),
    /// The trust file's keys.
    #[error(transparent)]
    Trust(#[from] custody::TrustKeyError),
    /// A peer's endpoint.
    #[error("{peer}")]
    Endpoint {
        /// The config section.
        peer: &'static str,
        /// Why.
        source: api::client::EndpointError,
    },
    /// The pinned checkpoint.
    #[error(transparent)]
    Custody(#[from] custody::CustodyError),
    /// The state folder.
    #[error("state_dir {}", path.display())]
    StateDir {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The threads that compute.
    #[error("the threads that compute cannot be started")]
    Compute(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The listener.
    #[error(transparent)]
    Runtime(#[from] service_runtime::RuntimeError),
}
