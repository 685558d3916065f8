//! Accepts mutual-TLS connections and cuts them when their certificate ends or is denied.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use workload_identity::Peer;

use crate::config::ServerSettings;
use crate::guard::Rules;
use telemetry::Metrics;

/// The peer of a connection, in the extensions of every request on it.
#[derive(Debug, Clone)]
pub struct PeerInfo(pub Arc<Peer>);

/// What a listener needs besides its socket.
#[derive(Clone)]
pub(crate) struct Accepting {
    pub rules: Arc<Rules>,
    pub settings: ServerSettings,
    pub metrics: Metrics,
    /// Ends accepting.
    pub stop: CancellationToken,
    /// Cuts every open connection.
    pub cut: CancellationToken,
}

impl Accepting {
    /// Accepts until stopped; finished handshakes go to `accepted`.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        accepted: mpsc::Sender<io::Result<PeerStream>>,
    ) {
        let slots = Arc::new(Semaphore::new(self.settings.max_connections));
        loop {
            let connection = tokio::select! {
                () = self.stop.cancelled() => return,
                connection = listener.accept() => connection,
            };
            let (tcp, address) = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    // Out of descriptors, most often: give others time to close some.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(slot) = slots.clone().try_acquire_owned() else {
                tracing::warn!(%address, "connection refused: all slots are taken");
                continue;
            };
            let (this, accepted) = (self.clone(), accepted.clone());
            tokio::spawn(async move {
                let handshake = this.handshake(tcp, slot);
                match timeout(this.settings.handshake(), handshake).await {
                    Ok(Ok(stream)) => {
                        // The receiver is gone only when the server stops.
                        let _ = accepted.send(Ok(stream)).await;
                    }
                    Ok(Err(error)) => {
                        tracing::warn!(%address, %error, "TLS handshake refused");
                    }
                    Err(_) => tracing::warn!(%address, "TLS handshake took too long"),
                }
            });
        }
    }

    async fn handshake(
        &self,
        tcp: TcpStream,
        slot: OwnedSemaphorePermit,
    ) -> io::Result<PeerStream> {
        tcp.set_nodelay(true)?;
        let identity = &self.rules.identity;
        let tls = TlsAcceptor::from(identity.server_config())
            .accept(tcp)
            .await?;
        let leaf = tls
            .get_ref()
            .1
            .peer_certificates()
            .and_then(<[_]>::first)
            .ok_or_else(|| io::Error::other("no client certificate"))?;
        let peer = Peer::from_der(leaf, identity.trust_domain()).map_err(io::Error::other)?;
        if identity.denies(&peer) {
            return Err(io::Error::other("the peer is on the deny list"));
        }
        let peer = Arc::new(peer);
        let ended = ended(self.rules.clone(), peer.clone(), self.cut.clone());
        self.metrics.connections().inc();
        Ok(PeerStream {
            tls,
            peer,
            ended: Some(Box::pin(ended)),
            metrics: self.metrics.clone(),
            _slot: slot,
        })
    }
}

/// Resolves when a connection must be cut, to the reason.
async fn ended(rules: Arc<Rules>, peer: Arc<Peer>, cut: CancellationToken) -> &'static str {
    loop {
        let left = peer.not_after - rules.clock.unix_seconds();
        if left < 0 {
            return "the peer's certificate has expired";
        }
        if rules.identity.denies(&peer) {
            return "the peer is on the deny list";
        }
        tokio::select! {
            () = cut.cancelled() => return "the server stops",
            () = tokio::time::sleep(CHECK_PERIOD) => {}
        }
    }
}

/// A connection of an authenticated peer.
pub(crate) struct PeerStream {
    tls: TlsStream<TcpStream>,
    peer: Arc<Peer>,
    /// `None` once it resolved.
    ended: Option<Pin<Box<dyn Future<Output = &'static str> + Send>>>,
    metrics: Metrics,
    _slot: OwnedSemaphorePermit,
}

impl PeerStream {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(ended) = &mut self.ended {
            let Poll::Ready(reason) = ended.as_mut().poll(context) else {
                return Ok(());
            };
            self.ended = None;
            tracing::info!(peer = %self.peer.spiffe, reason, "connection cut");
        }
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        self.metrics.connections().dec();
    }
}

impl Connected for PeerStream {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        PeerInfo(self.peer.clone())
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.tls).poll_read(context, buffer)
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.tls).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.tls).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tls).poll_shutdown(context)
    }
}

const CHECK_PERIOD: Duration = Duration::from_secs(1);
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
