use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ParseIdError;

/// A SHA-256 digest; printed and parsed as `sha256:` and 64 lowercase hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256Digest([u8; 32]);

impl Sha256Digest {
    /// A digest from its 32 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 lowercase hex digits, without the prefix.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// From 64 lowercase hex digits, without the prefix.
    pub fn from_hex(text: &str) -> Result<Self, ParseIdError> {
        let reason = "expected 64 lowercase hex digits";
        let error = ParseIdError {
            kind: "SHA-256 digest",
            reason,
        };
        if text.len() != 64 || text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(error);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| error)?;
        Ok(Self(bytes))
    }
}

impl FromStr for Sha256Digest {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let hex = text.strip_prefix("sha256:").ok_or(ParseIdError {
            kind: "SHA-256 digest",
            reason: "expected the prefix sha256:",
        })?;
        Self::from_hex(hex)
    }
}

impl fmt::Display for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.to_hex())
    }
}

impl fmt::Debug for Sha256Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Sha256Digest {
    type Error = ParseIdError;

    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<Sha256Digest> for String {
    fn from(digest: Sha256Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_text_parses() {
        let digest = Sha256Digest::new([0xab; 32]);
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for bad in [
            digest.to_hex(),
            digest.to_string().to_uppercase(),
            digest.to_string()[..70].to_owned(),
            format!("{digest}0"),
            format!("sha256:{}", "AB".repeat(32)),
            format!("sha256:{}", "zz".repeat(32)),
        ] {
            assert!(bad.parse::<Sha256Digest>().is_err(), "{bad}");
        }
    }
}
