//! The inference-node service.
