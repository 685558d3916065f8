use std::time::Duration;

use tonic::service::Interceptor;
use tonic::{GrpcMethod, Request, Status};

/// Gives every call that has none a deadline. For a call whose answer is a stream it bounds the
/// time until the stream starts.
#[derive(Debug, Clone, Copy)]
pub struct Deadline;

impl Interceptor for Deadline {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !request.metadata().contains_key("grpc-timeout") {
            let method = request.extensions().get::<GrpcMethod<'_>>();
            let limit = method.map_or(DEFAULT, |method| limit_of(method.method()));
            request.set_timeout(limit);
        }
        Ok(request)
    }
}

fn limit_of(method: &str) -> Duration {
    match method {
        // The whole upload is within the call.
        "PutBlob" => Duration::from_secs(6 * 3600),
        // Unlocking, opening and filling the page budget.
        "LoadModel" => Duration::from_secs(600),
        // Queued behind other sessions, then a long prompt before the first token.
        "Generate" => Duration::from_secs(600),
        _ => DEFAULT,
    }
}

const DEFAULT: Duration = Duration::from_secs(30);
