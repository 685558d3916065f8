//! The node put together.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::client::Client;
use api::v1::inference_service_server::InferenceServiceServer;
use axum::Router;
use axum::response::Json;
use axum::routing::get;
use custody::{CustodyLog, Trust};
use identifiers::Role;
use service_runtime::{
    Authorisation, CancellationToken, Clock, Health, Identity, Metrics, PeerSettings, Randomness,
    RuntimeError, Server, ServerSettings, SystemClock, SystemRandomness, TrustFile,
    read_signing_key,
};
use tokio::task::JoinHandle;

use crate::compute::Compute;
use crate::config::{BuildError, Config, ModelSettings};
use crate::counts::Counts;
use crate::node::{Models, Node};
use crate::receipts::Receipts;
use crate::rpc::InferenceRpc;

/// An inference node that is ready to serve.
pub struct App {
    node: Arc<Node>,
    settings: ServerSettings,
    identity: Arc<Identity>,
    authorisation: Authorisation,
    metrics: Metrics,
    clock: Arc<dyn Clock>,
    debug_state: bool,
}

/// An inference node that runs.
pub struct Running {
    /// Where RPCs are answered.
    pub addr: SocketAddr,
    /// Where `/health` and `/metrics` are answered.
    pub admin_addr: SocketAddr,
    /// Says whether the process serves.
    pub health: Health,
    server: service_runtime::Running,
    drained: JoinHandle<()>,
}

impl Running {
    /// Waits until the server has stopped and every model is gone.
    pub async fn finished(self) -> Result<(), RuntimeError> {
        let served = self.server.finished().await;
        self.drained.await?;
        served
    }

    /// `https://<address>`, for clients in the same process or host.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.server.endpoint()
    }
}

impl Config {
    /// Reads the keys, checks the pinned log, starts the threads: a node ready to serve.
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
            key_service,
            registry,
            storage,
            trust,
            keys,
            state_dir,
            models,
            debug_state,
        } = self;
        let (identity, authorisation) = identity.load()?;
        let replica = identity.own().spiffe;
        let key = read_signing_key(&keys.receipts)?;
        let trust = Trust::try_from(&TrustFile::load(&trust)?)?;
        std::fs::create_dir_all(&state_dir).map_err(|source| BuildError::StateDir {
            path: state_dir.clone(),
            source,
        })?;
        let registry = connect("registry", &registry, &identity, Role::Registry)?;
        let pin = state_dir.join("log.checkpoint");
        let log = Arc::new(CustodyLog::open(registry, key, replica, trust, pin)?);
        let receipts = Receipts {
            log: log.clone(),
            clock: clock.clone(),
            randomness: randomness.clone(),
        };
        let metrics = Metrics::new();
        let counts = Counts::register(&metrics);
        let node = Node {
            log,
            receipts,
            key_service: connect("key_service", &key_service, &identity, Role::KeyService)?,
            storage: connect("storage", &storage, &identity, Role::Storage)?,
            clock: clock.clone(),
            randomness,
            compute: Compute::start(&models, counts.clone())?,
            settings: ModelSettings {
                max_loaded: models.max_loaded.max(1),
                ..models
            },
            counts,
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
            models: Models::default(),
            changing: tokio::sync::Mutex::new(()),
        };
        Ok(App {
            node: Arc::new(node),
            settings: server,
            identity,
            authorisation,
            metrics,
            clock,
            debug_state,
        })
    }
}

impl App {
    /// Serves until `shutdown`, then drains.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<Running, BuildError> {
        let node = self.node;
        let rpc = InferenceServiceServer::new(InferenceRpc(node.clone()))
            .max_decoding_message_size(MAX_REQUEST);
        let details = node.clone();
        let mut admin = Router::new();
        if self.debug_state {
            let node = node.clone();
            let state = move || std::future::ready(Json(node.debug_state()));
            admin = admin.route("/v1/debug/model-state", get(state));
        }
        // Sessions end before the server cuts them.
        let grace = Duration::from_secs(self.settings.drain_seconds) * 3 / 4;
        let server = Server::builder(self.settings, self.identity)
            .authorisation(self.authorisation)
            .metrics(self.metrics)
            .clock(self.clock)
            .service(rpc)
            .admin(admin)
            .details(move || details.details())
            .serve(shutdown.clone())
            .await?;
        tokio::spawn(watch(
            node.log.clone(),
            server.health.clone(),
            shutdown.clone(),
        ));
        let drained = tokio::spawn(async move {
            shutdown.cancelled().await;
            node.drain(grace).await;
            let finished = tokio::task::spawn_blocking(move || node.compute.finish());
            if finished.await.is_err() {
                tracing::error!("the thread that runs sessions cannot be joined");
            }
        });
        Ok(Running {
            addr: server.addr,
            admin_addr: server.admin_addr,
            health: server.health.clone(),
            server,
            drained,
        })
    }
}

fn connect(
    peer: &'static str,
    settings: &PeerSettings,
    identity: &Arc<Identity>,
    role: Role,
) -> Result<Client, BuildError> {
    Client::connect(&settings.endpoint, identity, role)
        .map_err(|source| BuildError::Endpoint { peer, source })
}

/// Keeps health in step with the log: it can be reached, and only grows.
async fn watch(log: Arc<CustodyLog>, health: Health, shutdown: CancellationToken) {
    loop {
        match log.check_log().await {
            _ if shutdown.is_cancelled() => return,
            Ok(()) => health.serving().await,
            Err(error) => health.not_serving(error.to_string()).await,
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(WATCH_PERIOD) => {}
        }
    }
}

/// A prompt of the longest text that is taken, and its message.
const MAX_REQUEST: usize = 16 * 1024 * 1024;
const WATCH_PERIOD: Duration = Duration::from_secs(5);
