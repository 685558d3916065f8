use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ParseIdError;

/// The public 64-bit fingerprint of a model key: four groups of four lowercase hex digits.
///
/// It identifies a key among honest ones; someone who generates keys can collide it, so
/// records that decide anything also carry the key's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint([u8; 8]);

impl Fingerprint {
    /// A fingerprint from its 8 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The 8 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl FromStr for Fingerprint {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let error = ParseIdError {
            kind: "key fingerprint",
            reason: "expected four groups of four lowercase hex digits, like 3f9a-0c41-d27e-88b5",
        };
        let groups: Vec<&str> = text.split('-').collect();
        let shaped = groups.len() == 4 && groups.iter().all(|group| group.len() == 4);
        if !shaped || text.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(error);
        }
        let mut bytes = [0; 8];
        hex::decode_to_slice(groups.concat(), &mut bytes).map_err(|_| error)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = hex::encode(self.0);
        write!(
            f,
            "{}-{}-{}-{}",
            &text[..4],
            &text[4..8],
            &text[8..12],
            &text[12..]
        )
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = ParseIdError;

    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> Self {
        fingerprint.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_canonical_text_parses() {
        let fingerprint: Fingerprint = "3f9a-0c41-d27e-88b5".parse().unwrap();
        assert_eq!(fingerprint.to_string(), "3f9a-0c41-d27e-88b5");
        for bad in [
            "3F9A-0c41-d27e-88b5",
            "3f9a0c41d27e88b5",
            "3f9a-0c41-d27e",
            "3f9a-0c41-d27e-88b5-",
            "3f9-a0c41-d27e-88b5",
            "é9a-0c41-d27e-88b5",
            "",
        ] {
            assert!(bad.parse::<Fingerprint>().is_err(), "{bad}");
        }
    }
}
