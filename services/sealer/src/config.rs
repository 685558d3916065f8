use std::path::PathBuf;

use serde::Deserialize;
use service_runtime::{
    DatabaseSettings, IdentitySettings, LogSettings, PeerSettings, ServerSettings,
};

/// `sealer.toml`. Unknown keys are refused; secrets are named by path.
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
    /// The database of schema `jobs`.
    pub database: DatabaseSettings,
    /// The key service, which gives the subkeys.
    pub key_service: PeerSettings,
    /// The registry, which takes artifacts and receipts.
    pub registry: PeerSettings,
    /// The storage node, which takes the blobs.
    pub storage: PeerSettings,
    /// The installation's public keys.
    pub trust: PathBuf,
    /// The service's secret keys.
    pub keys: KeyFiles,
    /// Folders that sources must lie beneath; a job names its source relative to one of them.
    pub source_roots: Vec<PathBuf>,
    /// Where output is made before it is stored, a folder for each job.
    pub work_dir: PathBuf,
    /// Where the last checkpoint seen is kept.
    pub state_dir: PathBuf,
    /// Jobs worked on at a time.
    #[serde(default = "default_workers")]
    pub workers: usize,
    /// Most jobs that wait or run; further ones are refused.
    #[serde(default = "default_jobs")]
    pub max_jobs: u32,
    /// Seconds that a lease lasts without a heartbeat.
    #[serde(default = "default_lease")]
    pub lease_seconds: u32,
    /// Milliseconds between two heartbeats, each of which reports progress.
    #[serde(default = "default_heartbeat")]
    pub heartbeat_millis: u64,
    /// Leases that may run out on a job before it has failed.
    #[serde(default = "default_attempts")]
    pub max_attempts: u32,
    /// Milliseconds between two looks at the queue, and at a job that is watched.
    #[serde(default = "default_poll")]
    pub poll_millis: u64,
    /// Longest pause, in seconds, before work that failed for a passing reason is tried again.
    #[serde(default = "default_pause")]
    pub max_pause_seconds: u64,
}

/// Paths of secret keys, mode 600.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFiles {
    /// Signs this replica's receipts and artifact manifests: Ed25519, PKCS#8 PEM or the seed.
    pub receipts: PathBuf,
    /// Signs sealed checkpoints for the public `model_signing` tool: a P-256 scalar, 32 bytes or 64
    /// hex digits.
    pub model_signing: PathBuf,
}

impl service_runtime::process::ProcessConfig for Config {
    fn log(&self) -> &LogSettings {
        &self.log
    }
}

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The config, the trust file or an identity file.
    #[error(transparent)]
    Config(#[from] service_runtime::ConfigError),
    /// A number that must not be 0, or a list that must not be empty.
    #[error("{0}: must not be zero or empty")]
    Empty(&'static str),
    /// A lease that ends before its heartbeat.
    #[error("heartbeat_millis: must be at most a third of the lease")]
    Heartbeat,
    /// A folder that cannot be used.
    #[error("{setting} {}", path.display())]
    Folder {
        /// The setting.
        setting: &'static str,
        /// The folder.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A secret key's file.
    #[error(transparent)]
    Key(#[from] service_runtime::KeyFileError),
    /// The trust file's keys.
    #[error(transparent)]
    Trust(#[from] custody::TrustKeyError),
    /// The trust file does not list this replica's receipt key.
    #[error("the trust file does not list the receipt key of {0}")]
    UntrustedReceiptKey(identifiers::SpiffeId),
    /// A scalar that is no key of the curve.
    #[error("{}: not a P-256 key", .0.display())]
    ModelSigningKey(PathBuf),
    /// A service's endpoint.
    #[error(transparent)]
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

const fn default_workers() -> usize {
    1
}

const fn default_jobs() -> u32 {
    1000
}

const fn default_lease() -> u32 {
    30
}

const fn default_heartbeat() -> u64 {
    1000
}

const fn default_attempts() -> u32 {
    5
}

const fn default_poll() -> u64 {
    250
}

const fn default_pause() -> u64 {
    30
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = r#"
        source_roots = ["/srv/models"]
        state_dir = "/var/lib/sealer"
        trust = "trust.toml"
        work_dir = "/var/lib/sealer/work"
        [database]
        url = "postgres:///chancery"
        [identity]
        ca = "ca.pem"
        certificate = "one.pem"
        private_key = "one.key"
        trust_domain = "chancery.test"
        [key_service]
        endpoint = "https://127.0.0.1:1"
        [keys]
        model_signing = "model-signing.key"
        receipts = "receipts.key"
        [registry]
        endpoint = "https://127.0.0.1:2"
        [server]
        admin = "127.0.0.1:0"
        listen = "127.0.0.1:0"
        [storage]
        endpoint = "https://127.0.0.1:3"
    "#;

    #[test]
    fn bounds_have_defaults_and_unknown_keys_are_refused() {
        let config: Config = toml::from_str(MINIMAL).unwrap();
        assert_eq!((config.workers, config.lease_seconds), (1, 30));
        assert!(config.heartbeat_millis * 3 <= u64::from(config.lease_seconds) * 1000);
        let unknown = MINIMAL.replace("trust = ", "wokers = 2\ntrust = ");
        let error = toml::from_str::<Config>(&unknown).unwrap_err();
        assert!(error.to_string().contains("wokers"));
    }
}
