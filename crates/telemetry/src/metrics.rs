use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Encoder, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// A process's metrics: those of every RPC, and what its service adds. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    rpcs: IntCounterVec,
    seconds: HistogramVec,
    in_flight: IntGaugeVec,
    connections: IntGauge,
}

impl Metrics {
    /// Fresh metrics of one service.
    #[must_use]
    pub fn new() -> Self {
        let rpcs = IntCounterVec::new(
            Opts::new("chancery_rpc_total", "Answered RPCs by method and code."),
            &["method", "code"],
        )
        .expect("the name and the labels are valid");
        let seconds = HistogramVec::new(
            HistogramOpts::new(
                "chancery_rpc_seconds",
                "Seconds until an RPC's answer started, by method.",
            )
            .buckets(BUCKETS.to_vec()),
            &["method"],
        )
        .expect("the name and the labels are valid");
        let in_flight = IntGaugeVec::new(
            Opts::new("chancery_rpc_in_flight", "RPCs without an answer yet."),
            &["method"],
        )
        .expect("the name and the labels are valid");
        let connections =
            IntGauge::new("chancery_connections", "Open connections.").expect("the name is valid");
        let metrics = Self(Arc::new(Inner {
            registry: Registry::new(),
            rpcs,
            seconds,
            in_flight,
            connections,
        }));
        metrics.register(metrics.0.rpcs.clone());
        metrics.register(metrics.0.seconds.clone());
        metrics.register(metrics.0.in_flight.clone());
        metrics.register(metrics.0.connections.clone());
        metrics
    }

    /// Adds a collector; one that is there already stays.
    pub fn register(&self, collector: impl Collector + 'static) {
        if let Err(error) = self.0.registry.register(Box::new(collector)) {
            tracing::warn!(%error, "a metric is registered twice");
        }
    }

    /// Everything in the Prometheus text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.0.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics cannot be rendered");
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> &IntGauge {
        &self.0.connections
    }

    pub(crate) fn started(&self, method: &str) {
        self.0.in_flight.with_label_values(&[method]).inc();
    }

    pub(crate) fn finished(&self, method: &str, code: &str, seconds: f64) {
        self.0.in_flight.with_label_values(&[method]).dec();
        self.0.rpcs.with_label_values(&[method, code]).inc();
        self.0.seconds.with_label_values(&[method]).observe(seconds);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

const BUCKETS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0,
];
