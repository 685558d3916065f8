//! The state folder.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::context::Workload;

/// The paths in a state folder. All are absolute.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Makes what is missing of a state folder.
    pub fn create(state: &Path) -> Result<Self> {
        let context = || format!("cannot make {}", state.display());
        fs::create_dir_all(state).with_context(context)?;
        let layout = Self::open(state)?;
        // Postgres may run as another user: it has to pass, and sees nothing private.
        fs::set_permissions(&layout.root, Permissions::from_mode(0o755)).with_context(context)?;
        let mut folders = vec![layout.keys(), layout.ca(), layout.folder("config")];
        folders.extend([layout.folder("log"), layout.folder("run")]);
        folders.extend(Workload::ALL.map(|service| layout.data(service)));
        for folder in folders {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .with_context(context)?;
        }
        Ok(layout)
    }

    /// A state folder that is there.
    pub fn open(state: &Path) -> Result<Self> {
        let root = fs::canonicalize(state)
            .with_context(|| format!("no state folder {}", state.display()))?;
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Secret keys.
    pub fn keys(&self) -> PathBuf {
        self.folder("keys")
    }

    /// The CA and the certificates.
    pub fn ca(&self) -> PathBuf {
        self.folder("ca")
    }

    /// The private Postgres.
    pub fn postgres(&self) -> PathBuf {
        self.folder("postgres")
    }

    /// A service's own folder.
    pub fn data(&self, service: Workload) -> PathBuf {
        self.folder("data").join(service.binary())
    }

    /// A service's config.
    pub fn config(&self, service: Workload) -> PathBuf {
        self.folder("config")
            .join(format!("{}.toml", service.binary()))
    }

    /// The public key that verifies the `model.sig` of sealed checkpoints.
    pub fn model_signing(&self) -> PathBuf {
        self.folder("model-signing.pub")
    }

    /// The release policy.
    pub fn policy(&self) -> PathBuf {
        self.folder("config").join("policy.toml")
    }

    /// The installation's public keys.
    pub fn trust(&self) -> PathBuf {
        self.root.join("trust.toml")
    }

    /// A process's log.
    pub fn log(&self, process: &str) -> PathBuf {
        self.folder("log").join(format!("{process}.log"))
    }

    /// A service's process id.
    pub fn service_pid(&self, service: Workload) -> PathBuf {
        self.folder("run").join(format!("{}.pid", service.binary()))
    }

    /// The process id of `up`.
    pub fn pid(&self) -> PathBuf {
        self.folder("run").join("up.pid")
    }

    /// There while everything is healthy.
    pub fn ready(&self) -> PathBuf {
        self.folder("run").join("ready.json")
    }

    /// Locked by `up`.
    pub fn lock(&self) -> PathBuf {
        self.folder("run").join("lock")
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}
