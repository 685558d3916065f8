//! The whole suite, as processes over mutual TLS with a Postgres of their own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod failure;
mod fetch;
mod identity;
mod operations;
mod path;
mod secrecy;
mod tampering;
