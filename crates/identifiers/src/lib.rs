//! Typed identifiers: content digests, key fingerprints, SPIFFE identities and record ids.

mod digest;
mod fingerprint;
mod record;
mod spiffe;

pub use digest::Sha256Digest;
pub use fingerprint::Fingerprint;
pub use record::{
    ArtifactId, CapabilityId, GrantId, JobId, KeyId, ReceiptId, RequestId, SessionId,
};
pub use spiffe::{Role, SpiffeId};

/// Text that is not the identifier it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a {kind}: {reason}")]
pub struct ParseIdError {
    /// The identifier that was expected.
    pub kind: &'static str,
    /// The rule that was broken.
    pub reason: &'static str,
}
