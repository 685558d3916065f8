//! Unlock capabilities: compact JWS tokens that say what one node may page, and until when.
//!
//! A token is `base64url(header).base64url(claims).base64url(signature)` (RFC 7515), signed with
//! Ed25519 (RFC 8037) and bound to the bearer's certificate by `cnf.x5t#S256` (RFC 8705). The
//! key service mints, storage and inference nodes verify with public keys only. Time, the peer's
//! certificate and the keys are arguments; a token has one accepted spelling.

mod claims;
mod token;

pub use claims::{
    CertificateThumbprint, Claims, ClaimsError, Confirmation, MAX_BLOBS, MAX_LIFETIME_SECONDS,
    MAX_UNIT_RANGES, UnitRange,
};
pub use token::{MAX_TOKEN_BYTES, Refusal, TOKEN_TYPE, Verified, Verifier, key_thumbprint, mint};
