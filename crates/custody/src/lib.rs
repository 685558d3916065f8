//! Receipts into the log before an answer leaves, and artifacts verified on the way in.
//!
//! A service that changes custody calls [`CustodyLog::record`] before it answers. The call returns
//! once the registry showed, with a checkpoint signed by the log's key, that the receipt is in a
//! log that extends the one this service saw last. Anything else fails the request.

mod error;
mod log;
mod trust;

pub use error::CustodyError;
pub use log::{CustodyLog, Recorded};
pub use trust::{Trust, TrustKeyError};
