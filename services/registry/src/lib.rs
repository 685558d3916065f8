//! The registry: artifacts, receipts and the log that they stand in.
//!
//! Nothing is believed that is not signed: a manifest by the sealer that presents it, a receipt
//! by the replica that presents it. What is answered is durable, covered by a signed checkpoint, and
//! pinned outside the database; a database that went back is refused.

mod app;
mod config;
mod error;
mod keeper;
mod messages;
mod rpc;
mod service;

pub use app::App;
pub use config::{BuildError, Config, KeyFiles};
pub use error::RegistryError;
