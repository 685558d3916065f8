use service_runtime::Metrics;
use telemetry::prometheus::{IntCounter, IntGauge};

/// What a node did, for `/metrics` and `/health`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Counts {
    pub models: IntGauge,
    pub sessions: IntGauge,
    pub tokens: IntCounter,
    pub refused_sessions: IntCounter,
    pub revocations: IntCounter,
}

impl Counts {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help).expect("the name is valid");
            metrics.register(counter.clone());
            counter
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help).expect("the name is valid");
            metrics.register(gauge.clone());
            gauge
        };
        Self {
            models: gauge("chancery_inference_models", "Models that are ready."),
            sessions: gauge(
                "chancery_inference_sessions",
                "Sessions that run or wait for their turn.",
            ),
            tokens: counter(
                "chancery_inference_tokens_total",
                "Tokens that were generated.",
            ),
            refused_sessions: counter(
                "chancery_inference_refused_sessions_total",
                "Sessions refused because too many waited.",
            ),
            revocations: counter(
                "chancery_inference_revocations_total",
                "Models whose capability was not renewed.",
            ),
        }
    }
}
