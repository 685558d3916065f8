use std::path::PathBuf;

use serde::Deserialize;
use service_runtime::{
    DatabaseSettings, IdentitySettings, LogSettings, PeerSettings, ServerSettings,
};

/// `key-service.toml`. Unknown keys are refused; secrets are named by path.
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
    /// The database of schema `keys`.
    pub database: DatabaseSettings,
    /// The registry, whose log takes the receipts.
    pub registry: PeerSettings,
    /// The installation's public keys.
    pub trust: PathBuf,
    /// The service's secret keys.
    pub keys: KeyFiles,
    /// The release policy (TOML).
    pub policy: PathBuf,
    /// Where the last checkpoint seen is kept.
    pub state_dir: PathBuf,
    /// Seconds that a seal grant lives without being opened again.
    #[serde(default = "default_grant_lifetime")]
    pub grant_lifetime_seconds: u32,
}

/// Paths of secret keys, each mode 600.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFiles {
    /// The root key: 32 bytes, raw or as 64 hex digits.
    pub root: PathBuf,
    /// Seed of the import key: 32 bytes, raw or as 64 hex digits.
    pub import: PathBuf,
    /// The Ed25519 key that signs capabilities: seed or PKCS#8 PEM.
    pub capability: PathBuf,
    /// The Ed25519 key that signs receipts: seed or PKCS#8 PEM.
    pub receipts: PathBuf,
}

impl service_runtime::process::ProcessConfig for Config {
    fn log(&self) -> &LogSettings {
        &self.log
    }
}

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The config, a secret file or an identity file.
    #[error(transparent)]
    Config(#[from] service_runtime::ConfigError),
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A key file.
    #[error(transparent)]
    Key(#[from] service_runtime::KeyFileError),
    /// The policy.
    #[error(transparent)]
    Policy(#[from] release_policy::PolicyError),
    /// The trust file's keys.
    #[error(transparent)]
    Trust(#[from] custody::TrustKeyError),
    /// The registry's endpoint.
    #[error("registry")]
    Endpoint(#[from] api::client::EndpointError),
    /// The pinned checkpoint.
    #[error(transparent)]
    Custody(#[from] custody::CustodyError),
    /// The database.
    #[error(transparent)]
    Database(#[from] database::SetupError),
    /// The listener.
    #[error(transparent)]
    Runtime(#[from] service_runtime::RuntimeError),
}

const fn default_grant_lifetime() -> u32 {
    3600
}
