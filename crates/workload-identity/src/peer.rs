use std::fmt;

use identifiers::{Role, SpiffeId};
use sha2::{Digest, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::error::PeerError;

/// Who a certificate speaks for.
#[derive(Clone, PartialEq, Eq)]
pub struct Peer {
    /// The workload's id.
    pub spiffe: SpiffeId,
    /// SHA-256 of the certificate's DER form: `x5t#S256` of RFC 8705.
    pub cert_sha256: [u8; 32],
    /// End of validity, unix seconds.
    pub not_after: i64,
    /// The certificate's serial number in lowercase hex.
    pub serial: String,
}

impl Peer {
    /// Reads a leaf certificate (SPIFFE X.509-SVID, section 2: exactly one URI name).
    ///
    /// Whether the certificate is trusted and valid now is the handshake's matter.
    pub fn from_der(certificate: &[u8], trust_domain: &str) -> Result<Self, PeerError> {
        let (rest, parsed) =
            X509Certificate::from_der(certificate).map_err(|_| PeerError::NotX509)?;
        if !rest.is_empty() {
            return Err(PeerError::NotX509);
        }
        let names = parsed
            .subject_alternative_name()
            .map_err(|_| PeerError::NotX509)?;
        let uris: Vec<&str> = names
            .iter()
            .flat_map(|extension| &extension.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        let [uri] = uris[..] else {
            return Err(PeerError::UriNames(uris.len()));
        };
        let spiffe: SpiffeId = uri.parse()?;
        if spiffe.trust_domain() != trust_domain {
            return Err(PeerError::TrustDomain {
                expected: trust_domain.to_owned(),
                found: spiffe.trust_domain().to_owned(),
            });
        }
        Ok(Self {
            spiffe,
            cert_sha256: Sha256::digest(certificate).into(),
            not_after: parsed.validity().not_after.timestamp(),
            serial: hex::encode(parsed.raw_serial()),
        })
    }

    /// The peer's role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.spiffe.role()
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peer")
            .field("spiffe", &self.spiffe)
            .field("serial", &self.serial)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
