//! Logs and metrics.

mod layer;
mod logs;
mod metrics;

pub use layer::{MeasureLayer, Measured};
pub use logs::{LogFormat, LogSettings, LogsError};
pub use metrics::Metrics;
pub use prometheus;
