//! The storage node: immutable blobs by SHA-256 over gRPC, for sealers to put and inference nodes to
//! page.
//!
//! An inference node reads a blob only with a capability that names it, which is checked with the key
//! service's public keys. No message that is accepted here has a field for a key, and no crate that is
//! linked here can hold one.

mod access;
mod config;
mod counts;
mod error;
mod service;

pub use config::{App, Config, StartError, StorageSettings};
pub use error::StorageError;
