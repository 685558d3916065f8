//! The registry put together.

use std::sync::Arc;
use std::time::Duration;

use api::v1::registry_service_server::RegistryServiceServer;
use custody::Trust;
use database::{Database, DatabaseUrl, LogOptions, Options, PgArtifacts, PgLog, Schema};
use registry_domain::CheckpointPin;
use service_runtime::{
    Authorisation, CancellationToken, Clock, Health, Identity, Randomness, Running, Server,
    ServerSettings, SystemClock, SystemRandomness, TrustFile, read_signing_key,
};
use tlog::NoteSigner;

use crate::config::{BuildError, Config};
use crate::keeper::Keeper;
use crate::rpc::RegistryRpc;
use crate::service::Registry;

/// A registry that is ready to serve.
pub struct App {
    registry: Arc<Registry>,
    database: Database,
    settings: ServerSettings,
    identity: Arc<Identity>,
    authorisation: Authorisation,
    clock: Arc<dyn Clock>,
}

impl Config {
    /// Opens the database, reads the keys, compares the log with the one last seen: a registry
    /// ready to serve.
    pub async fn build(self) -> Result<App, BuildError> {
        self.build_with(Arc::new(SystemClock), Arc::new(SystemRandomness))
            .await
    }

    /// As [`Config::build`], with a clock and randomness of the caller's.
    pub async fn build_with(
        self,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Result<App, BuildError> {
        let Self {
            server,
            identity,
            log: _,
            database,
            trust,
            keys,
            state_dir,
            max_waiting,
        } = self;
        let (identity, authorisation) = identity.load()?;
        let replica = identity.own().spiffe;
        let trust = Trust::try_from(&TrustFile::load(&trust)?)?;
        let receipt_key = read_signing_key(&keys.receipts)?;
        let own_key = receipt_key.verifying_key();
        let is_listed = trust
            .signers
            .iter()
            .any(|(_, signer, key)| *signer == replica && *key == own_key);
        if !is_listed {
            return Err(BuildError::UntrustedReceiptKey(replica));
        }
        let log_key = read_signing_key(&keys.log)?;
        let signer = NoteSigner::new(trust.log.name(), log_key).map_err(BuildError::LogName)?;
        if *signer.verifier() != trust.log {
            return Err(BuildError::OtherLogKey);
        }
        let pin = CheckpointPin::new(state_dir.join("log.checkpoint"));
        let keeper = Arc::new(Keeper::new(signer, pin));

        let options = Options::new(DatabaseUrl::new(&database.url), database.max_connections);
        let database = Database::open(Schema::Registry, &options).await?;
        let options = LogOptions {
            queue: max_waiting,
            ..LogOptions::default()
        };
        let log = PgLog::start(database.clone(), keeper.clone(), options);
        keeper.admit(&log).await?;
        let registry = Registry {
            log: Arc::new(log),
            artifacts: Arc::new(PgArtifacts::new(database.clone())),
            keeper,
            signers: Arc::new(trust.signers),
            receipt_key,
            replica,
            clock: clock.clone(),
            randomness,
        };
        Ok(App {
            registry: Arc::new(registry),
            database,
            settings: server,
            identity,
            authorisation,
            clock,
        })
    }
}

impl App {
    /// Serves until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<Running, BuildError> {
        let rpc = RegistryServiceServer::new(RegistryRpc::new(self.registry))
            .max_decoding_message_size(MAX_MESSAGE);
        let running = Server::builder(self.settings, self.identity)
            .authorisation(self.authorisation)
            .clock(self.clock)
            .service(rpc)
            .serve(shutdown.clone())
            .await?;
        tokio::spawn(watch(self.database, running.health.clone(), shutdown));
        Ok(running)
    }
}

/// Keeps health in step with the database.
async fn watch(database: Database, health: Health, shutdown: CancellationToken) {
    loop {
        if database.is_alive().await {
            health.serving().await;
        } else {
            health.not_serving("the database is unavailable").await;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
    }
}

/// The largest manifest envelope, and a little more.
const MAX_MESSAGE: usize = 5 * 1024 * 1024;
const WATCH_PERIOD: Duration = Duration::from_secs(5);
