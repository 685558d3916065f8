use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use serde_json::{Map, Value};

use crate::health::Health;
use std::sync::Arc;
use telemetry::Metrics;

/// What a service adds to `/health`.
pub(crate) type Details = Arc<dyn Fn() -> Map<String, Value> + Send + Sync>;

#[derive(Clone)]
struct Admin {
    health: Health,
    metrics: Metrics,
    details: Details,
}

/// `/health` and `/metrics`, and the service's own routes.
pub(crate) fn router(own: Router, health: Health, metrics: Metrics, details: Details) -> Router {
    Router::new()
        .route("/health", get(health_of))
        .route("/v1/health", get(health_of))
        .route("/metrics", get(metrics_of))
        .with_state(Admin {
            health,
            metrics,
            details,
        })
        .merge(own)
}

async fn health_of(State(admin): State<Admin>) -> Response {
    let reason = admin.health.reason();
    let (code, status) = match reason {
        None => (StatusCode::OK, "SERVING"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "NOT_SERVING"),
    };
    let mut body = Map::new();
    body.insert("status".to_owned(), status.into());
    if let Some(reason) = reason {
        body.insert("reason".to_owned(), reason.into());
    }
    body.extend((admin.details)());
    (code, Json(body)).into_response()
}

async fn metrics_of(State(admin): State<Admin>) -> Response {
    let text = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    (text, admin.metrics.render()).into_response()
}
