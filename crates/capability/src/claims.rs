use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use identifiers::{CapabilityId, Fingerprint, KeyId, Sha256Digest, SpiffeId};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What an unlock capability says. Times are seconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Id of this capability.
    pub jti: CapabilityId,
    /// The key service that minted it.
    pub iss: SpiffeId,
    /// The node it was minted for.
    pub sub: SpiffeId,
    /// When it was minted.
    pub iat: u64,
    /// Not valid before this time.
    pub nbf: u64,
    /// Not valid at or after this time.
    pub exp: u64,
    /// The certificate its bearer must present.
    pub cnf: Confirmation,
    /// Digest of the artifact's signed manifest.
    pub artifact: Sha256Digest,
    /// The model key.
    pub key_id: KeyId,
    /// Public fingerprint of the model key.
    pub fingerprint: Fingerprint,
    /// The revocation epoch at which it was minted.
    pub epoch: u64,
    /// Blobs that storage may serve under it: 1 to [`MAX_BLOBS`], sorted, none twice.
    pub blobs: Vec<Sha256Digest>,
    /// Units whose subkeys were handed out with it: at most [`MAX_UNIT_RANGES`], sorted, disjoint.
    pub units: Vec<UnitRange>,
}

/// The certificate a token is bound to (RFC 8705, section 3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// SHA-256 of the certificate's DER bytes.
    #[serde(rename = "x5t#S256")]
    pub x5t_s256: CertificateThumbprint,
}

/// SHA-256 of a certificate's DER bytes; base64url without padding in a token.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CertificateThumbprint([u8; 32]);

/// Units `start..end` of one region of a sealed container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitRange {
    /// Region id, 1 to 6.
    pub region: u8,
    /// First unit.
    pub start: u64,
    /// One past the last unit.
    pub end: u64,
}

/// Why claims cannot be minted or accepted: a rule that their values break.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("claim {claim}: {rule}")]
pub struct ClaimsError {
    /// The claim.
    pub claim: &'static str,
    /// The rule it breaks.
    pub rule: &'static str,
}

impl Claims {
    /// Whether storage may serve the blob.
    #[must_use]
    pub fn allows_blob(&self, blob: &Sha256Digest) -> bool {
        self.blobs.binary_search(blob).is_ok()
    }

    /// Whether the unit's subkey belongs to this capability.
    #[must_use]
    pub fn allows_unit(&self, region: u8, unit: u64) -> bool {
        let held =
            |range: &UnitRange| range.region == region && (range.start..range.end).contains(&unit);
        self.units.iter().any(held)
    }

    pub(crate) fn check(&self) -> Result<(), ClaimsError> {
        let rule = |holds, claim, rule| {
            if holds {
                Ok(())
            } else {
                Err(ClaimsError { claim, rule })
            }
        };
        rule(self.nbf < self.exp, "exp", "is not after nbf")?;
        let lifetime = self.exp.saturating_sub(self.iat.min(self.nbf));
        rule(
            lifetime <= MAX_LIFETIME_SECONDS,
            "exp",
            "is more than one hour after iat",
        )?;
        let blobs = self.blobs.len();
        rule(
            (1..=MAX_BLOBS).contains(&blobs),
            "blobs",
            "has no entry, or more than 256",
        )?;
        let rising = self.blobs.windows(2).all(|pair| pair[0] < pair[1]);
        rule(rising, "blobs", "is not sorted, or repeats an entry")?;
        let units = self.units.len();
        rule(
            units <= MAX_UNIT_RANGES,
            "units",
            "has more than 256 ranges",
        )?;
        let shaped = |range: &UnitRange| (1..=6).contains(&range.region) && range.start < range.end;
        rule(
            self.units.iter().all(shaped),
            "units",
            "has an empty range or an unknown region",
        )?;
        let apart =
            |pair: &[UnitRange]| (pair[0].region, pair[0].end) <= (pair[1].region, pair[1].start);
        rule(
            self.units.windows(2).all(apart),
            "units",
            "is not sorted, or overlaps",
        )
    }
}

impl CertificateThumbprint {
    /// A thumbprint from its 32 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The thumbprint of a certificate's DER bytes.
    #[must_use]
    pub fn of_der(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for CertificateThumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for CertificateThumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for CertificateThumbprint {
    type Error = ClaimsError;

    fn try_from(text: String) -> Result<Self, ClaimsError> {
        let error = ClaimsError {
            claim: "x5t#S256",
            rule: "is not 32 bytes in base64url without padding",
        };
        let bytes = BASE64_URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|_| error.clone())?;
        bytes.try_into().map(Self).map_err(|_| error)
    }
}

impl From<CertificateThumbprint> for String {
    fn from(thumbprint: CertificateThumbprint) -> Self {
        thumbprint.to_string()
    }
}

/// The longest time from `iat` (or `nbf`, if earlier) to `exp`.
pub const MAX_LIFETIME_SECONDS: u64 = 3600;
/// The most blobs one capability names.
pub const MAX_BLOBS: usize = 256;
/// The most unit ranges one capability names.
pub const MAX_UNIT_RANGES: usize = 256;
