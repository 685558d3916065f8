//! The sealer put together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::client::Client;
use api::v1::seal_service_server::SealServiceServer;
use custody::{CustodyLog, Trust};
use database::{Database, DatabaseUrl, Options, PgJobs, Schema};
use ed25519_dalek::VerifyingKey;
use identifiers::{JobId, Role, SpiffeId};
use key_client::GrantClient;
use receipt::ModelSigner;
use registry_domain::{JobRepository, LeaseTerms};
use service_runtime::{
    Authorisation, CancellationToken, Clock, Health, Identity, Randomness, Running, Server,
    ServerSettings, SystemClock, SystemRandomness, TrustFile, read_key, read_signing_key,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use crate::config::{BuildError, Config};
use crate::job::Means;
use crate::queue::Queue;
use crate::rpc::SealRpc;
use crate::sources::SourceRoots;
use crate::worker::Worker;

/// A sealer that is ready to serve.
pub struct App {
    queue: Arc<Queue>,
    means: Arc<Means>,
    database: Database,
    settings: ServerSettings,
    identity: Arc<Identity>,
    authorisation: Authorisation,
    clock: Arc<dyn Clock>,
    workers: usize,
    terms: LeaseTerms,
    heartbeat: Duration,
    poll: Duration,
    longest_pause: Duration,
}

impl Config {
    /// Opens the database, reads the keys, prepares the folders: a sealer ready to serve.
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
        self.check()?;
        let Self {
            server,
            identity,
            log: _,
            database,
            key_service,
            registry,
            storage,
            trust,
            keys,
            source_roots,
            work_dir,
            state_dir,
            workers,
            max_jobs,
            lease_seconds,
            heartbeat_millis,
            max_attempts,
            poll_millis,
            max_pause_seconds,
        } = self;
        let (identity, authorisation) = identity.load()?;
        let replica = identity.own().spiffe;
        let trust = Trust::try_from(&TrustFile::load(&trust)?)?;
        let receipt_key = read_signing_key(&keys.receipts)?;
        let own_key = receipt_key.verifying_key();
        let is_own = |signer: &SpiffeId, key: &VerifyingKey| *signer == replica && *key == own_key;
        let is_listed = trust
            .signers
            .iter()
            .any(|(_, signer, key)| is_own(signer, key));
        if !is_listed {
            return Err(BuildError::UntrustedReceiptKey(replica));
        }
        let model_signer = model_signer(&keys.model_signing)?;
        make_folder("work_dir", &work_dir)?;
        make_folder("state_dir", &state_dir)?;

        let key_service = Client::connect(&key_service.endpoint, &identity, Role::KeyService)?;
        let registry = Client::connect(&registry.endpoint, &identity, Role::Registry)?;
        let storage = Client::connect(&storage.endpoint, &identity, Role::Storage)?;
        let pin = state_dir.join("log.checkpoint");
        let log = CustodyLog::open(registry.clone(), receipt_key, replica, trust, pin)?;

        let options = Options::new(DatabaseUrl::new(&database.url), database.max_connections);
        let database = Database::open(Schema::Jobs, &options).await?;
        let jobs: Arc<dyn JobRepository> = Arc::new(PgJobs::new(database.clone()));
        let sources = SourceRoots::new(source_roots);
        let queue = Queue {
            jobs: jobs.clone(),
            key_service: key_service.clone(),
            sources: sources.clone(),
            clock: clock.clone(),
            randomness: randomness.clone(),
            max_waiting: max_jobs,
            submitted: Arc::new(Notify::new()),
        };
        let means = Means {
            jobs,
            grants: GrantClient::new(key_service.clone()),
            key_service,
            storage,
            registry,
            log: Arc::new(log),
            model_signer,
            sources,
            work_dir,
            clock: clock.clone(),
            randomness,
        };
        remove_leftovers(&means).await?;
        Ok(App {
            queue: Arc::new(queue),
            means: Arc::new(means),
            database,
            settings: server,
            identity,
            authorisation,
            clock,
            workers,
            terms: LeaseTerms {
                duration: i64::from(lease_seconds) * 1000,
                max_attempts,
            },
            heartbeat: Duration::from_millis(heartbeat_millis),
            poll: Duration::from_millis(poll_millis),
            longest_pause: Duration::from_secs(max_pause_seconds),
        })
    }

    fn check(&self) -> Result<(), BuildError> {
        let set = [
            ("source_roots", !self.source_roots.is_empty()),
            ("workers", self.workers > 0),
            ("max_jobs", self.max_jobs > 0),
            ("lease_seconds", self.lease_seconds > 0),
            ("heartbeat_millis", self.heartbeat_millis > 0),
            ("max_attempts", self.max_attempts > 0),
            ("poll_millis", self.poll_millis > 0),
        ];
        if let Some((name, _)) = set.into_iter().find(|(_, is_set)| !is_set) {
            return Err(BuildError::Empty(name));
        }
        if self.heartbeat_millis.saturating_mul(3) > u64::from(self.lease_seconds) * 1000 {
            return Err(BuildError::Heartbeat);
        }
        for root in &self.source_roots {
            let read = std::fs::read_dir(root);
            read.map_err(|source| folder_error("source_roots", root, source))?;
        }
        Ok(())
    }
}

impl App {
    /// Serves and works until `shutdown`: jobs under way are then given back, and the server drains.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<Running, BuildError> {
        let rpc = SealRpc {
            queue: self.queue.clone(),
            poll: self.poll,
            shutdown: shutdown.clone(),
        };
        let server_stop = CancellationToken::new();
        let running = Server::builder(self.settings, self.identity)
            .authorisation(self.authorisation)
            .clock(self.clock)
            .service(SealServiceServer::new(rpc).max_decoding_message_size(MAX_MESSAGE))
            .serve(server_stop.clone())
            .await?;
        let mut workers = JoinSet::new();
        for _ in 0..self.workers {
            let worker = Worker {
                means: self.means.clone(),
                terms: self.terms,
                heartbeat: self.heartbeat,
                poll: self.poll,
                longest_pause: self.longest_pause,
                submitted: self.queue.submitted.clone(),
                shutdown: shutdown.clone(),
            };
            workers.spawn(worker.run());
        }
        let health = running.health.clone();
        tokio::spawn(watch(self.means, self.database, health, shutdown.clone()));
        tokio::spawn(async move {
            shutdown.cancelled().await;
            while let Some(ended) = workers.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(%error, "a worker failed");
                }
            }
            server_stop.cancel();
        });
        Ok(running)
    }
}

/// Keeps health in step with what the service needs: the database, and a log that only grows.
async fn watch(means: Arc<Means>, database: Database, health: Health, shutdown: CancellationToken) {
    loop {
        match (database.is_alive().await, means.log.check_log().await) {
            (true, Ok(())) => health.serving().await,
            (false, _) => health.not_serving("the database is unavailable").await,
            (true, Err(error)) => {
                tracing::warn!(%error, "the log cannot be used");
                health.not_serving(error.to_string()).await;
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => {
                health.not_serving("stopping").await;
                return;
            }
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
    }
}

/// Removes the folders of jobs that ended while this replica was down.
async fn remove_leftovers(means: &Means) -> Result<(), BuildError> {
    let error = |source| folder_error("work_dir", &means.work_dir, source);
    for entry in std::fs::read_dir(&means.work_dir).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(id) = name.and_then(|name| name.parse::<JobId>().ok()) else {
            continue;
        };
        let is_over = match means.jobs.job(id).await {
            Ok(job) => job.state.is_final(),
            Err(error) => matches!(error, registry_domain::RepositoryError::NotFound(_)),
        };
        if is_over {
            tracing::info!(job = %id, "removing the work folder of a job that ended");
            std::fs::remove_dir_all(&path).map_err(error)?;
        }
    }
    Ok(())
}

fn model_signer(path: &Path) -> Result<ModelSigner, BuildError> {
    let mut scalar = Zeroizing::new([0; 32]);
    read_key(path, &mut scalar)?;
    ModelSigner::from_bytes(&scalar).ok_or_else(|| BuildError::ModelSigningKey(path.to_owned()))
}

fn make_folder(setting: &'static str, path: &Path) -> Result<(), BuildError> {
    std::fs::create_dir_all(path).map_err(|source| folder_error(setting, path, source))
}

fn folder_error(setting: &'static str, path: &Path, source: std::io::Error) -> BuildError {
    BuildError::Folder {
        setting,
        path: PathBuf::from(path),
        source,
    }
}

const MAX_MESSAGE: usize = 64 * 1024;
const WATCH_PERIOD: Duration = Duration::from_secs(5);
