//! The whole suite, as processes over mutual TLS with a Postgres of their own.

mod failure;
mod identity;
mod path;
mod secrecy;
mod tampering;
