use std::sync::{Arc, Mutex, PoisonError};

use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Whether the process serves. Cheap to clone; what it says is seen by `grpc.health.v1` and by
/// `/health`.
#[derive(Clone)]
pub struct Health {
    reporter: HealthReporter,
    services: Arc<[&'static str]>,
    reason: Arc<Mutex<Option<String>>>,
}

impl Health {
    pub(crate) fn new(reporter: HealthReporter, services: Vec<&'static str>) -> Self {
        Self {
            reporter,
            services: services.into(),
            reason: Arc::new(Mutex::new(Some("starting".to_owned()))),
        }
    }

    /// Says that the process serves.
    pub async fn serving(&self) {
        self.set(None, ServingStatus::Serving).await;
    }

    /// Says that it does not, and why.
    pub async fn not_serving(&self, reason: impl Into<String>) {
        let reason = reason.into();
        tracing::warn!(reason, "not serving");
        self.set(Some(reason), ServingStatus::NotServing).await;
    }

    /// Why the process does not serve; `None` while it serves.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        self.reason
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn set(&self, reason: Option<String>, status: ServingStatus) {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        // The empty name is the process as a whole (grpc.health.v1).
        for name in self.services.iter().copied().chain([""]) {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
