//! What stands between messages and the domain: parsed fields, errors as statuses, and clients.

pub mod client;
mod fault;
pub mod fields;
mod repository;
mod units;

pub use fault::{Fault, REASON, ServiceError, reason, seed_incidents, to_status};
pub use fields::InvalidField;
pub use proto::v1;
pub use units::UnitRange;
