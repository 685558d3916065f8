use std::path::PathBuf;

use serde::Deserialize;
use service_runtime::{DatabaseSettings, IdentitySettings, LogSettings, ServerSettings};

/// `registry.toml`. Unknown keys are refused; secrets are named by path.
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
    /// The database of schema `registry`.
    pub database: DatabaseSettings,
    /// The installation's public keys.
    pub trust: PathBuf,
    /// The service's secret keys.
    pub keys: KeyFiles,
    /// Where the last checkpoint signed is kept.
    pub state_dir: PathBuf,
    /// The most receipts that wait for the log; further ones are refused.
    #[serde(default = "default_queue")]
    pub max_waiting: usize,
}

/// Paths of secret keys, each an Ed25519 key in PKCS#8 PEM, mode 600.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFiles {
    /// Signs checkpoints: the key whose public half is the trust file's `log`.
    pub log: PathBuf,
    /// Signs this replica's receipts.
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
    /// The config, the trust file or an identity file.
    #[error(transparent)]
    Config(#[from] service_runtime::ConfigError),
    /// A secret key's file.
    #[error(transparent)]
    Key(#[from] service_runtime::KeyFileError),
    /// The trust file's keys.
    #[error(transparent)]
    Trust(#[from] custody::TrustKeyError),
    /// The log's name.
    #[error("log key")]
    LogName(#[source] tlog::NoteError),
    /// The log key is not the one of the trust file.
    #[error("the log key is not the one that the trust file names")]
    OtherLogKey,
    /// The trust file does not list this replica's receipt key.
    #[error("the trust file does not list the receipt key of {0}")]
    UntrustedReceiptKey(identifiers::SpiffeId),
    /// The database.
    #[error(transparent)]
    Database(#[from] database::SetupError),
    /// The log cannot be read.
    #[error("the log cannot be read")]
    Log(#[from] registry_domain::RepositoryError),
    /// The log is not the one that was last seen.
    #[error("the log is refused")]
    Pin(#[from] registry_domain::PinError),
    /// The newest checkpoint in the database is not signed by the log's key.
    #[error("the newest stored checkpoint is refused")]
    Checkpoint(#[from] tlog::CheckpointError),
    /// The log's hashes do not lead from the pinned to the newest checkpoint.
    #[error("the log is damaged")]
    Proof(#[from] registry_domain::ProofError),
    /// The listener.
    #[error(transparent)]
    Runtime(#[from] service_runtime::RuntimeError),
}

const fn default_queue() -> usize {
    4096
}
