//! The key service put together, and its domain as one value.

use std::path::Path;
use std::sync::Arc;

use api::client::Client;
use api::v1::key_service_server::KeyServiceServer;
use custody::{CustodyLog, Trust};
use database::{Database, DatabaseUrl, Options, PgKeys, Schema};
use ed25519_dalek::SigningKey;
use identifiers::Role;
use key_wrap::{RecipientKey, RootKey};
use registry_domain::KeyRepository;
use release_policy::Policy;
use secret::Secret;
use service_runtime::{
    Authorisation, CancellationToken, Clock, Identity, KeyFileError, Randomness, Running, Server,
    ServerSettings, SystemClock, SystemRandomness, TrustFile, read_key, read_signing_key,
};

use crate::config::{BuildError, Config};
use crate::receipts::Receipts;
use crate::rpc::KeyRpc;
use crate::vault::Vault;

/// The key service's domain: every operation of the gRPC service is one method here.
pub struct KeyService {
    pub(crate) keys: Arc<dyn KeyRepository>,
    pub(crate) vault: Vault,
    pub(crate) receipts: Receipts,
    pub(crate) log: Arc<CustodyLog>,
    pub(crate) policy: Policy,
    pub(crate) capability_key: SigningKey,
    pub(crate) capability_kid: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) randomness: Arc<dyn Randomness>,
    pub(crate) grant_lifetime_millis: i64,
}

/// A key service that is ready to serve.
pub struct App {
    service: Arc<KeyService>,
    database: Database,
    settings: ServerSettings,
    identity: Arc<Identity>,
    authorisation: Authorisation,
    clock: Arc<dyn Clock>,
}

impl Config {
    /// Opens the database, reads the keys, checks the log: a key service ready to serve.
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
            registry,
            trust,
            keys,
            policy,
            state_dir,
            grant_lifetime_seconds,
        } = self;
        let (identity, authorisation) = identity.load()?;
        let replica = identity.own().spiffe;
        let policy_text = std::fs::read_to_string(&policy).map_err(|source| BuildError::Read {
            path: policy,
            source,
        })?;
        let policy = Policy::from_toml(&policy_text)?;

        let root = RootKey::new(&read_seed(&keys.root)?);
        let import = RecipientKey::from_seed(&read_seed(&keys.import)?);
        let capability_key = read_signing_key(&keys.capability)?;
        let receipt_key = read_signing_key(&keys.receipts)?;

        let trust = Trust::try_from(&TrustFile::load(&trust)?)?;
        let registry = Client::connect(&registry.endpoint, &identity, Role::Registry)?;
        let pin = state_dir.join("log.checkpoint");
        let log = Arc::new(CustodyLog::open(
            registry,
            receipt_key,
            replica,
            trust,
            pin,
        )?);

        let options = Options::new(DatabaseUrl::new(&database.url), database.max_connections);
        let database = Database::open(Schema::Keys, &options).await?;
        let receipts = Receipts {
            log: log.clone(),
            clock: clock.clone(),
            randomness: randomness.clone(),
        };
        let service = KeyService {
            keys: Arc::new(PgKeys::new(database.clone())),
            vault: Vault::new(root, import, randomness.clone()),
            receipts,
            log,
            policy,
            capability_kid: capability::key_thumbprint(&capability_key.verifying_key()),
            capability_key,
            clock: clock.clone(),
            randomness,
            grant_lifetime_millis: i64::from(grant_lifetime_seconds) * 1000,
        };
        Ok(App {
            service: Arc::new(service),
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
        let rpc = KeyServiceServer::new(KeyRpc::new(self.service.clone()))
            .max_decoding_message_size(MAX_REQUEST);
        let running = Server::builder(self.settings, self.identity)
            .authorisation(self.authorisation)
            .clock(self.clock)
            .service(rpc)
            .serve(shutdown.clone())
            .await?;
        tokio::spawn(watch(
            self.service.log.clone(),
            self.database,
            running.health.clone(),
            shutdown,
        ));
        Ok(running)
    }
}

/// Keeps health in step with what the service needs: the database, and a log that only grows.
async fn watch(
    log: Arc<CustodyLog>,
    database: Database,
    health: service_runtime::Health,
    shutdown: CancellationToken,
) {
    loop {
        match (database.is_alive().await, log.check_log().await) {
            (true, Ok(())) => health.serving().await,
            (false, _) => health.not_serving("the database is unavailable").await,
            (true, Err(error)) => {
                tracing::warn!(%error, "the log cannot be used");
                health.not_serving(&error.to_string()).await;
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
    }
}

fn read_seed(path: &Path) -> Result<Secret<32>, KeyFileError> {
    Secret::try_fill_with(|seed| read_key(path, seed))
}

/// A batch of 4,096 subkeys with long tensor names.
const MAX_REQUEST: usize = 4 * 1024 * 1024;
const WATCH_PERIOD: std::time::Duration = std::time::Duration::from_secs(5);
