//! A private Postgres cluster in a folder, reached by a unix socket only.
//!
//! `chancery up` and the tests use it. It runs the installed Postgres binaries and speaks no SQL.
//! Postgres refuses to run as root: then the cluster belongs to the system's `postgres` user.

mod account;
mod binaries;
mod cluster;

pub use cluster::{LocalPostgres, Options, PostgresError};
