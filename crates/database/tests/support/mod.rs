//! A private cluster for each test, stopped at its end, with as many databases as it asks for.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use database::{Database, DatabaseUrl, Options, Schema, provision};
use identifiers::{Role, Sha256Digest, SpiffeId};
use local_postgres::LocalPostgres;
use tempfile::TempDir;

/// A cluster of its own; the folder goes when it is dropped.
pub struct Cluster {
    /// The server; `None` while it is down.
    pub postgres: Option<LocalPostgres>,
    folder: TempDir,
}

impl Cluster {
    pub fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("pg").tempdir().unwrap();
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let mut cluster = Self {
            postgres: None,
            folder,
        };
        cluster.restart();
        cluster
    }

    /// Starts the server again after it was stopped.
    pub fn restart(&mut self) {
        let folder: PathBuf = self.folder.path().join("state");
        let options = local_postgres::Options {
            folder,
            binaries: None,
            durable: false,
        };
        self.postgres = Some(LocalPostgres::start(&options).unwrap());
    }

    pub async fn options(&self, schema: Schema) -> Options {
        let postgres = self.postgres.as_ref().unwrap();
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("test_{}_{number}", std::process::id());
        provision(&DatabaseUrl::new(&postgres.admin_url()), &name)
            .await
            .unwrap();
        // A second time changes nothing.
        provision(&DatabaseUrl::new(&postgres.admin_url()), &name)
            .await
            .unwrap();
        Options {
            url: DatabaseUrl::new(&postgres.url(schema.role(), &name)),
            max_connections: 4,
            acquire_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(10),
        }
    }

    pub async fn database(&self, schema: Schema) -> Database {
        Database::open(schema, &self.options(schema).await)
            .await
            .unwrap()
    }
}

static DATABASES: AtomicU32 = AtomicU32::new(0);

pub fn spiffe(role: Role, name: &str) -> SpiffeId {
    SpiffeId::new("chancery.test", role, name).unwrap()
}

pub fn digest(byte: u8) -> Sha256Digest {
    Sha256Digest::new([byte; 32])
}
