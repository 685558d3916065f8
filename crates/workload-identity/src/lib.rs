//! Who a process is and who may call what: SPIFFE certificates with hot reload, mutual TLS 1.3,
//! and one authorisation table over every RPC.

mod authorisation;
mod deny_list;
#[cfg(feature = "dev-ca")]
pub mod dev_ca;
mod error;
mod identity;
mod peer;
mod tls;

pub use authorisation::{Authorisation, Denied, MethodRestriction, allowed_roles, methods};
pub use deny_list::DenyList;
pub use error::{IdentityError, PeerError};
pub use identity::{Identity, IdentityFiles};
pub use peer::Peer;
pub use tls::{TlsRefusal, tls_refusal};
