//! The public keys of an installation, as one file that every process and auditor has.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use identifiers::SpiffeId;
use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, load};

/// `trust.toml`: what verifies receipts, checkpoints and capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustFile {
    /// The log's key (C2SP signed-note vkey).
    pub log: String,
    /// Who signs receipts and artifact manifests, with which key.
    #[serde(default)]
    pub signers: Vec<Signer>,
    /// The keys that sign capabilities.
    #[serde(default)]
    pub capability_keys: Vec<CapabilityKey>,
}

/// A replica's receipt key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signer {
    /// The replica.
    pub spiffe: SpiffeId,
    /// Its Ed25519 key, base64 of 32 bytes.
    pub public_key: PublicKey,
}

/// A key that signs capabilities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapabilityKey {
    /// The key's id in a token's header.
    pub kid: String,
    /// The Ed25519 key, base64 of 32 bytes.
    pub public_key: PublicKey,
}

/// 32 bytes of an Ed25519 public key; base64 in text. Whether they are a point on the curve is
/// checked by whoever verifies with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey(pub [u8; 32]);

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD
            .decode(text)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .map(Self)
            .ok_or("expected base64 of 32 bytes")
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        STANDARD.encode(key.0)
    }
}

/// A trust file that cannot be used.
pub type TrustError = ConfigError;

impl TrustFile {
    /// Reads the file.
    pub fn load(path: &Path) -> Result<Self, TrustError> {
        load(path)
    }

    /// The file's text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("plain strings and tables serialise")
    }

    /// The receipt keys of one replica.
    pub fn signer_keys<'a>(&'a self, spiffe: &'a SpiffeId) -> impl Iterator<Item = PublicKey> + 'a {
        self.signers
            .iter()
            .filter(move |signer| signer.spiffe == *spiffe)
            .map(|signer| signer.public_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trust_file_is_read_as_it_was_written() {
        let trust = TrustFile {
            log: "chancery.test/log+00000000+AQ==".to_owned(),
            signers: vec![Signer {
                spiffe: "spiffe://test/sealer/one".parse().unwrap(),
                public_key: PublicKey([7; 32]),
            }],
            capability_keys: vec![CapabilityKey {
                kid: "a".to_owned(),
                public_key: PublicKey([8; 32]),
            }],
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trust.toml");
        std::fs::write(&path, trust.to_toml()).unwrap();
        assert_eq!(TrustFile::load(&path).unwrap(), trust);
        let known = trust.signers[0].spiffe.clone();
        assert_eq!(trust.signer_keys(&known).count(), 1);
        std::fs::write(&path, trust.to_toml().replace("BwcHBwcH", "")).unwrap();
        assert!(TrustFile::load(&path).is_err());
    }
}
