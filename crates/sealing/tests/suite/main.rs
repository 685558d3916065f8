//! Sealing against the reference's fixtures.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod bad;
mod cases;
mod fixtures;
mod other;
