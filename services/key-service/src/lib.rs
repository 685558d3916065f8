//! The key service: holds model keys, gives out derived subkeys only.
//!
//! A model key is in clear only inside the vault's calls. Sealers get subkeys under a grant,
//! inference nodes get unit keys with a capability; both wrapped to an ephemeral key of theirs.
//! Every decision leaves its receipt in the log before the caller has its answer.

mod app;
mod config;
mod error;
mod grants;
mod keys;
mod messages;
mod receipts;
mod rpc;
pub mod scope;
mod unlocks;
mod vault;

pub use app::{App, KeyService};
pub use config::{BuildError, Config, KeyFiles};
pub use error::KeyError;
