use serde_json::{Map, Value};
use service_runtime::Metrics;
use telemetry::prometheus::{IntCounter, IntGauge};

/// What a node did, for `/metrics` and `/health`. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Counts {
    pub put_bytes: IntCounter,
    pub put_blobs: IntCounter,
    pub read_bytes: IntCounter,
    pub uploads: IntGauge,
    pub reads: IntGauge,
    pub refused_capabilities: IntCounter,
    pub damaged: IntCounter,
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
            put_bytes: counter("chancery_storage_put_bytes_total", "Bytes of stored blobs."),
            put_blobs: counter(
                "chancery_storage_put_blobs_total",
                "Blobs that were stored.",
            ),
            read_bytes: counter("chancery_storage_read_bytes_total", "Bytes that were read."),
            uploads: gauge("chancery_storage_uploads", "Uploads under way."),
            reads: gauge("chancery_storage_reads", "Reads under way."),
            refused_capabilities: counter(
                "chancery_storage_refused_capabilities_total",
                "Reads refused for want of a good capability.",
            ),
            damaged: counter(
                "chancery_storage_damaged_total",
                "Times that a stored blob was found damaged.",
            ),
        }
    }

    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let fields = [
            ("uploads", Value::from(self.uploads.get())),
            ("reads", Value::from(self.reads.get())),
            ("put_bytes", Value::from(self.put_bytes.get())),
            ("read_bytes", Value::from(self.read_bytes.get())),
            ("damaged", Value::from(self.damaged.get())),
        ];
        fields
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect()
    }
}

/// Adds one to a gauge while it lives.
pub(crate) struct Under(IntGauge);

impl Under {
    pub(crate) fn way(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Under {
    fn drop(&mut self) {
        self.0.dec();
    }
}
