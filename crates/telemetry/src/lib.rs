//! Tracing and metrics.
