use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::Service;
use tracing::Instrument;
use workload_identity::{Authorisation, Denied, Identity, Peer};

use crate::clock::Clock;
use crate::listener::PeerInfo;
use crate::randomness::Randomness;

/// What a handler knows about its call. In every request's extensions.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The caller.
    pub peer: Arc<Peer>,
    /// This call's id, as in the logs and in the answer's `chancery-request-id`.
    pub call: Arc<str>,
}

/// The context of a request that came through a [`crate::Server`].
pub fn context<T>(request: &tonic::Request<T>) -> Result<RequestContext, Status> {
    request
        .extensions()
        .get()
        .cloned()
        .ok_or_else(|| Status::unauthenticated("the call has no authenticated peer"))
}

/// Lets a call through to its handler only if the table allows it.
#[derive(Clone)]
pub(crate) struct Guard {
    pub inner: Routes,
    pub rules: Arc<Rules>,
}

pub(crate) struct Rules {
    pub identity: Arc<Identity>,
    pub authorisation: Authorisation,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}

impl Rules {
    fn check(&self, path: &str, peer: &Peer) -> Result<(), Denied> {
        if self.identity.denies(peer) {
            return Err(Denied::DenyList);
        }
        self.authorisation
            .check(path, peer, self.clock.unix_seconds())
    }
}

impl Service<Request<Body>> for Guard {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        <Routes as Service<Request<Body>>>::poll_ready(&mut self.inner, context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        let Some(PeerInfo(peer)) = request.extensions().get::<PeerInfo>().cloned() else {
            let status = Status::unauthenticated("the call has no authenticated peer");
            return Box::pin(async move { Ok(status.into_http()) });
        };
        let call: Arc<str> = hex(&self.rules.randomness.bytes::<12>()).into();
        let span = tracing::info_span!("rpc", method = path, peer = %peer.spiffe, call = &*call);
        if let Err(denied) = self.rules.check(&path, &peer) {
            let _entered = span.enter();
            tracing::warn!(reason = %denied, "call refused");
            let status = crate::to_status(denied);
            return Box::pin(async move { Ok(status.into_http()) });
        }
        request.extensions_mut().insert(RequestContext {
            peer,
            call: call.clone(),
        });
        let answer = self.inner.call(request);
        let answer = async move {
            let mut response = answer.await?;
            if let Ok(value) = HeaderValue::from_str(&call) {
                response.headers_mut().insert(CALL_HEADER, value);
            }
            Ok(response)
        };
        Box::pin(answer.instrument(span))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const CALL_HEADER: &str = "chancery-request-id";
