//! The inference node: loads sealed containers by capability, pages them from storage under a byte
//! budget, and generates text.
//!
//! Nothing is used before it was checked: the manifest's signature and its place in the log, then the
//! container's header against the manifest, then every chunk's tag. A capability is renewed while a
//! model is loaded; when that is refused, the model's sessions end, and its keys and pages are gone.

mod app;
mod blob;
mod compute;
mod config;
mod counts;
mod error;
mod generation;
mod loaded;
mod node;
mod open;
mod receipts;
mod renewal;
mod rpc;

pub use app::{App, Running};
pub use blob::{Blob, ReadError, Token};
pub use config::{BuildError, Config, KeyFiles, ModelSettings};
pub use error::NodeError;
