use std::convert::Infallible;
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde_json::{Map, Value};
use telemetry::{MeasureLayer, Metrics};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tower::Layer;
use workload_identity::{Authorisation, Identity, allowed_roles};

use crate::admin::{self, Details};
use crate::clock::{Clock, SystemClock};
use crate::config::ServerSettings;
use crate::guard::{Guard, Rules};
use crate::health::Health;
use crate::listener::Accepting;
use crate::randomness::{Randomness, SystemRandomness};

/// A server that is being put together.
pub struct Server {
    settings: ServerSettings,
    identity: Arc<Identity>,
    authorisation: Authorisation,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
    metrics: Metrics,
    routes: RoutesBuilder,
    names: Vec<&'static str>,
    admin: Router,
    details: Details,
}

/// A server cannot start or failed.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The descriptor set is not one.
    #[error("reflection cannot be set up")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The listener failed.
    #[error("the server failed")]
    Serve(#[from] tonic::transport::Error),
    /// The server's task panicked.
    #[error("the server's task failed")]
    Task(#[from] tokio::task::JoinError),
}

/// A server that runs.
pub struct Running {
    /// Where RPCs are answered.
    pub addr: SocketAddr,
    /// Where `/health` and `/metrics` are answered.
    pub admin_addr: SocketAddr,
    /// Says whether the process serves.
    pub health: Health,
    join: JoinHandle<Result<(), RuntimeError>>,
}

impl Running {
    /// Waits until the server has drained and stopped.
    pub async fn finished(self) -> Result<(), RuntimeError> {
        self.join.await?
    }

    /// `https://<address>`, for clients in the same process or host.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("https://{}", self.addr)
    }
}

impl Server {
    /// A server that speaks as `identity`.
    #[must_use]
    pub fn builder(settings: ServerSettings, identity: Arc<Identity>) -> Self {
        Self {
            settings,
            identity,
            authorisation: Authorisation::default(),
            clock: Arc::new(SystemClock),
            randomness: Arc::new(SystemRandomness),
            metrics: Metrics::new(),
            routes: Routes::builder(),
            names: Vec::new(),
            admin: Router::new(),
            details: Arc::new(Map::new),
        }
    }

    /// With this installation's restrictions.
    #[must_use]
    pub fn authorisation(mut self, authorisation: Authorisation) -> Self {
        self.authorisation = authorisation;
        self
    }

    /// With another clock.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// With other randomness.
    #[must_use]
    pub fn randomness(mut self, randomness: Arc<dyn Randomness>) -> Self {
        self.randomness = randomness;
        self
    }

    /// With metrics that the service adds to.
    #[must_use]
    pub fn metrics(mut self, metrics: Metrics) -> Self {
        self.metrics = metrics;
        self
    }

    /// Answers a gRPC service's RPCs. Set its message limits before.
    #[must_use]
    pub fn service<S>(mut self, service: S) -> Self
    where
        S: tower::Service<http::Request<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Response: axum::response::IntoResponse,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes.add_service(service);
        self
    }

    /// Adds routes to the admin port.
    #[must_use]
    pub fn admin(mut self, routes: Router) -> Self {
        self.admin = self.admin.merge(routes);
        self
    }

    /// Adds fields to the answer of `/health`.
    #[must_use]
    pub fn details(
        mut self,
        details: impl Fn() -> Map<String, Value> + Send + Sync + 'static,
    ) -> Self {
        self.details = Arc::new(details);
        self
    }

    /// Binds both listeners and serves until `shutdown`: then health says `NOT_SERVING`, nothing
    /// new is accepted, and running RPCs have `drain_seconds` to end.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<Running, RuntimeError> {
        let listener = bind(self.settings.listen).await?;
        let admin_listener = bind(self.settings.admin).await?;
        let addr = local(&listener, self.settings.listen)?;
        let admin_addr = local(&admin_listener, self.settings.admin)?;
        let mut routes = self.routes;
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        routes.add_service(health_service).add_service(reflection);
        let health = Health::new(reporter, self.names);
        let rules = Arc::new(Rules {
            identity: self.identity.clone(),
            authorisation: self.authorisation,
            clock: self.clock,
            randomness: self.randomness,
        });
        let guard = Guard {
            inner: routes.routes(),
            rules: rules.clone(),
        };
        let known = |path: &str| allowed_roles(path).is_some();
        let service = MeasureLayer::new(self.metrics.clone(), known).layer(guard);

        let stop = CancellationToken::new();
        let cut = CancellationToken::new();
        let (accepted, connections) = mpsc::channel(16);
        let accepting = Accepting {
            rules,
            settings: self.settings.clone(),
            metrics: self.metrics.clone(),
            stop: stop.clone(),
            cut: cut.clone(),
        };
        tokio::spawn(accepting.run(listener, accepted));
        tokio::spawn(self.identity.watch(stop.clone()));
        let serving = tonic::transport::Server::builder()
            .concurrency_limit_per_connection(self.settings.max_streams as usize)
            .load_shed(true)
            .max_concurrent_streams(self.settings.max_streams)
            .http2_max_header_list_size(MAX_METADATA)
            .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .serve_with_incoming_shutdown(
                service,
                ReceiverStream::new(connections),
                stop.clone().cancelled_owned(),
            );
        let admin = admin::router(self.admin, health.clone(), self.metrics, self.details);
        let admin_server = axum::serve(admin_listener, admin)
            .with_graceful_shutdown(cut.clone().cancelled_owned())
            .into_future();
        tokio::spawn(admin_server);

        health.serving().await;
        tracing::info!(%addr, %admin_addr, "serving");
        let drain = Drain {
            shutdown,
            stop,
            cut,
            limit: self.settings.drain(),
            health: health.clone(),
        };
        let join = tokio::spawn(drain.run(serving));
        Ok(Running {
            addr,
            admin_addr,
            health,
            join,
        })
    }
}

/// Ends a server in order.
struct Drain {
    shutdown: CancellationToken,
    stop: CancellationToken,
    cut: CancellationToken,
    limit: Duration,
    health: Health,
}

impl Drain {
    async fn run(
        self,
        serving: impl Future<Output = Result<(), tonic::transport::Error>>,
    ) -> Result<(), RuntimeError> {
        // Whatever way this ends, no connection stays.
        let _stop = self.stop.clone().drop_guard();
        let _cut = self.cut.clone().drop_guard();
        tokio::pin!(serving);
        tokio::select! {
            ended = &mut serving => return Ok(ended?),
            () = self.shutdown.cancelled() => {}
        }
        self.health.not_serving("draining").await;
        self.stop.cancel();
        match timeout(self.limit, &mut serving).await {
            Ok(ended) => ended?,
            Err(_) => {
                tracing::warn!("running calls are cut: the drain time is over");
                self.cut.cancel();
                timeout(CUT_TIME, serving).await.unwrap_or(Ok(()))?;
            }
        }
        tracing::info!("stopped");
        Ok(())
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, RuntimeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| RuntimeError::Bind { address, source })
}

fn local(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, RuntimeError> {
    listener
        .local_addr()
        .map_err(|source| RuntimeError::Bind { address, source })
}

/// Bytes of metadata that a call may carry.
const MAX_METADATA: u32 = 64 * 1024;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
const CUT_TIME: Duration = Duration::from_secs(2);
