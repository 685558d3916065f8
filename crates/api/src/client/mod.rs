//! Connections to services: mutual TLS to a server of an expected role, deadlines, bounded retry.

mod blob;
mod deadline;
mod retry;

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use identifiers::Role;
use proto::v1::inference_service_client::InferenceServiceClient;
use proto::v1::key_service_client::KeyServiceClient;
use proto::v1::registry_service_client::RegistryServiceClient;
use proto::v1::seal_service_client::SealServiceClient;
use proto::v1::storage_service_client::StorageServiceClient;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::Status;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use workload_identity::{Identity, tls_refusal};

pub use blob::ReadBlobError;
pub use deadline::Deadline;
pub use retry::{Retry, is_transient};

/// What generated clients run over.
pub type Transport = InterceptedService<Channel, Deadline>;

/// A connection to one service, made when first used and again when it broke. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    channel: Channel,
    endpoint: Arc<str>,
    retry: Arc<Retry>,
}

/// An endpoint that is not `https://host:port`.
#[derive(Debug, thiserror::Error)]
#[error("endpoint {endpoint}: expected https://<host>:<port>")]
pub struct EndpointError {
    /// The endpoint.
    pub endpoint: String,
}

impl Client {
    /// A client of the `expected` role's service at `endpoint` (`https://host:port`), speaking as
    /// `identity`. Connects when first used; a reloaded identity is used by the next connection.
    pub fn connect(
        endpoint: &str,
        identity: &Arc<Identity>,
        expected: Role,
    ) -> Result<Self, EndpointError> {
        let error = || EndpointError {
            endpoint: endpoint.to_owned(),
        };
        let uri: Uri = endpoint.parse().map_err(|_| error())?;
        let host = uri.host().ok_or_else(error)?.to_owned();
        let port = uri.port_u16().ok_or_else(error)?;
        if uri.scheme_str() != Some("https") {
            return Err(error());
        }
        let seed = identity.own().cert_sha256;
        let identity = identity.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (identity, host) = (identity.clone(), host.clone());
            async move {
                let tcp = TcpStream::connect((host.trim_matches(['[', ']']), port)).await?;
                tcp.set_nodelay(true)?;
                let server_name = tokio_rustls::rustls::pki_types::ServerName::try_from(
                    // Never compared: the server is known by its SPIFFE id.
                    "service.invalid",
                )
                .map_err(std::io::Error::other)?;
                let mut tls = TlsConnector::from(identity.client_config(expected))
                    .connect(server_name, tcp)
                    .await?;
                // In TLS 1.3 the server judges our certificate after our side is done. Its first
                // words are HTTP/2 settings or the alert: written to before, a server that
                // refused is a broken pipe that does not say why.
                tls.fill_buf().await?;
                Ok::<_, std::io::Error>(TokioIo::new(tls))
            }
        });
        let channel = Endpoint::from(uri)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_with_connector_lazy(connector);
        Ok(Self {
            channel,
            endpoint: endpoint.into(),
            retry: Arc::new(Retry::new(u64::from_be_bytes(
                seed[..8].try_into().expect("8 of 32 bytes"),
            ))),
        })
    }

    /// The endpoint that the client was made for.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The key service's methods.
    #[must_use]
    pub fn key_service(&self) -> KeyServiceClient<Transport> {
        KeyServiceClient::new(self.transport()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The sealer's methods.
    #[must_use]
    pub fn seal_service(&self) -> SealServiceClient<Transport> {
        SealServiceClient::new(self.transport()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The registry's methods.
    #[must_use]
    pub fn registry_service(&self) -> RegistryServiceClient<Transport> {
        RegistryServiceClient::new(self.transport()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// A storage node's methods.
    #[must_use]
    pub fn storage_service(&self) -> StorageServiceClient<Transport> {
        StorageServiceClient::new(self.transport()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// An inference node's methods.
    #[must_use]
    pub fn inference_service(&self) -> InferenceServiceClient<Transport> {
        InferenceServiceClient::new(self.transport()).max_decoding_message_size(MAX_MESSAGE)
    }

    /// The channel, for services that are not of this project (health, reflection).
    #[must_use]
    pub fn transport(&self) -> Transport {
        InterceptedService::new(self.channel.clone(), Deadline)
    }

    /// Runs an idempotent call, and again while the service is away or the connection breaks: at
    /// most four times, with growing, jittered waits in between. A refused certificate is not tried again.
    ///
    /// A call is idempotent when it only reads or carries a request id.
    pub async fn call<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let outcome = self.retry.run(attempt).await;
        outcome.map_err(|status| self.unreachable(status))
    }

    /// A broken or refused connection as `UNAVAILABLE` with the endpoint's name; any other status
    /// as it is. For calls that do not go through [`Client::call`].
    pub fn unreachable(&self, status: Status) -> Status {
        let broken = is_transient(&status) || tls_refusal(&status).is_some();
        if !broken || std::error::Error::source(&status).is_none() {
            return status;
        }
        let message = format!("{}: {}", self.endpoint, explain(&status));
        let mut named = Status::unavailable(message);
        named.set_source(Arc::new(status));
        named
    }
}

/// A sentence for a person: what the service said or, where the connection was not made or broke,
/// why.
#[must_use]
pub fn explain(status: &Status) -> String {
    let mut deepest: Option<&dyn std::error::Error> = std::error::Error::source(status);
    if deepest.is_some_and(|source| source.is::<Status>()) {
        // Told already by `Client::call`.
        return status.message().to_owned();
    }
    if let Some(refusal) = tls_refusal(status) {
        return refusal.to_string();
    }
    while let Some(next) = deepest.and_then(std::error::Error::source) {
        deepest = Some(next);
    }
    match deepest {
        None => status.message().to_owned(),
        Some(cause) => format!("cannot be reached: {cause}"),
    }
}

/// Largest message that a client takes.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const STREAM_WINDOW: u32 = 4 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;
