//! The key service's client: derivation labels as messages and back, the subkeys of a seal grant,
//! and the unit keys of an unlock.

mod error;
mod grant;
mod spec;
mod unlock;

pub use error::KeyClientError;
pub use grant::{GrantClient, SealGrant};
pub use spec::{Salts, sealed_from_proto, sealed_to_proto, subkey_from_proto, subkey_to_proto};
pub use unlock::{UnitKeys, Unlocked, issue_unlock, unit_ids};
