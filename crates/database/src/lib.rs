//! Every SQL statement and the migrations: the repositories of `registry-domain` over Postgres.
//!
//! Each service has a schema and a role of its own. A statement that writes checks how many rows
//! it wrote, and every constraint has a name that is mapped to a typed conflict.

mod artifacts;
mod error;
mod grants;
mod jobs;
mod keys;
mod leases;
mod log;
mod open;
mod provision;
mod row;
mod unlocks;

pub use artifacts::PgArtifacts;
pub use jobs::PgJobs;
pub use keys::PgKeys;
pub use log::{LogOptions, PgLog};
pub use open::{Database, DatabaseUrl, Options, Schema, SetupError};
pub use provision::provision;
