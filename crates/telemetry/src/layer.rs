use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use tower::{Layer, Service};

use crate::metrics::Metrics;

/// Counts and times RPCs. A path that is not in the list of known methods is counted as `other`,
/// so that a caller cannot make labels.
#[derive(Clone)]
pub struct MeasureLayer {
    metrics: Metrics,
    known: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

impl MeasureLayer {
    /// Measures into `metrics`; `known` says whether a path is a method.
    pub fn new(metrics: Metrics, known: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self {
            metrics,
            known: Arc::new(known),
        }
    }
}

impl<S> Layer<S> for MeasureLayer {
    type Service = Measured<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Measured {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service whose RPCs are measured.
#[derive(Clone)]
pub struct Measured<S> {
    inner: S,
    layer: MeasureLayer,
}

impl<S, B, R> Service<Request<B>> for Measured<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let method = if (self.layer.known)(path) {
            path
        } else {
            "other"
        };
        let measured = InFlight::start(self.layer.metrics.clone(), method);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            measured.finish(match &answer {
                Ok(response) => code_of(response),
                Err(_) => "INTERNAL",
            });
            answer
        })
    }
}

/// An RPC that is counted when its answer starts or, as cancelled, when it is dropped before.
struct InFlight {
    metrics: Metrics,
    method: String,
    started: Instant,
    code: &'static str,
}

impl InFlight {
    #[expect(
        clippy::disallowed_methods,
        reason = "a duration that is only measured and decides nothing"
    )]
    fn start(metrics: Metrics, method: &str) -> Self {
        metrics.started(method);
        Self {
            metrics,
            method: method.to_owned(),
            started: Instant::now(),
            code: "CANCELLED",
        }
    }

    fn finish(mut self, code: &'static str) {
        self.code = code;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let seconds = self.started.elapsed().as_secs_f64();
        self.metrics.finished(&self.method, self.code, seconds);
    }
}

/// The code of an answer that is refused at once; a stream that fails later counts as `OK`.
fn code_of<R>(response: &Response<R>) -> &'static str {
    let code = response
        .headers()
        .get("grpc-status")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<usize>().ok())
        .unwrap_or(0);
    CODES.get(code).copied().unwrap_or("UNKNOWN")
}

/// By number (gRPC status codes).
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_rpc_is_counted_by_method_and_code() {
        let metrics = Metrics::new();
        InFlight::start(metrics.clone(), "/a/B").finish("OK");
        drop(InFlight::start(metrics.clone(), "/a/B"));
        let _open = InFlight::start(metrics.clone(), "/a/C");
        let text = metrics.render();
        for line in [
            "chancery_rpc_total{code=\"OK\",method=\"/a/B\"} 1",
            "chancery_rpc_total{code=\"CANCELLED\",method=\"/a/B\"} 1",
            "chancery_rpc_in_flight{method=\"/a/C\"} 1",
            "chancery_rpc_in_flight{method=\"/a/B\"} 0",
            "chancery_rpc_seconds_count{method=\"/a/B\"} 2",
        ] {
            assert!(text.contains(line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn codes_come_from_the_status_header() {
        let with = |status: &str| {
            let mut response = Response::new(());
            response
                .headers_mut()
                .insert("grpc-status", status.parse().unwrap());
            response
        };
        assert_eq!(code_of(&Response::new(())), "OK");
        assert_eq!(code_of(&with("16")), "UNAUTHENTICATED");
        assert_eq!(code_of(&with("17")), "UNKNOWN");
    }
}
