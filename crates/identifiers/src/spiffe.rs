use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ParseIdError;

/// What a workload or person may act as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Runs the installation: creates, imports and disables keys.
    Operator,
    /// Submits seal jobs and uses models.
    Platform,
    /// Reads receipts.
    Auditor,
    /// The key service.
    KeyService,
    /// A sealer.
    Sealer,
    /// The registry.
    Registry,
    /// A storage node.
    Storage,
    /// An inference node.
    Inference,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 8] = [
        Self::Operator,
        Self::Platform,
        Self::Auditor,
        Self::KeyService,
        Self::Sealer,
        Self::Registry,
        Self::Storage,
        Self::Inference,
    ];

    /// The role's path segment in a SPIFFE id.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Platform => "platform",
            Self::Auditor => "auditor",
            Self::KeyService => "key-service",
            Self::Sealer => "sealer",
            Self::Registry => "registry",
            Self::Storage => "storage",
            Self::Inference => "inference",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `spiffe://<trust domain>/<role>/<name>`: who a certificate speaks for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpiffeId {
    trust_domain: String,
    role: Role,
    name: String,
}

impl SpiffeId {
    /// An id from its parts; the trust domain and the name are checked.
    pub fn new(trust_domain: &str, role: Role, name: &str) -> Result<Self, ParseIdError> {
        let domain_byte =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
        let name_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if !within(trust_domain, MAX_TRUST_DOMAIN) || !trust_domain.bytes().all(domain_byte) {
            return Err(error(
                "the trust domain is empty, too long or has a character outside a-z 0-9 . - _",
            ));
        }
        if !within(name, MAX_NAME) || !name.bytes().all(name_byte) || matches!(name, "." | "..") {
            return Err(error(
                "the name is empty, too long or has a character outside A-Z a-z 0-9 . - _",
            ));
        }
        Ok(Self {
            trust_domain: trust_domain.to_owned(),
            role,
            name: name.to_owned(),
        })
    }

    /// The trust domain.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// The role.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// The name within the role.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for SpiffeId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let rest = text
            .strip_prefix("spiffe://")
            .ok_or_else(|| error("expected the scheme spiffe://"))?;
        let parts: Vec<&str> = rest.split('/').collect();
        let [domain, role, name] = parts[..] else {
            return Err(error("expected spiffe://<trust domain>/<role>/<name>"));
        };
        let role = Role::ALL
            .into_iter()
            .find(|known| known.as_str() == role)
            .ok_or_else(|| error("unknown role"))?;
        Self::new(domain, role, name)
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "spiffe://{}/{}/{}",
            self.trust_domain, self.role, self.name
        )
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for SpiffeId {
    type Error = ParseIdError;

    fn try_from(text: String) -> Result<Self, ParseIdError> {
        text.parse()
    }
}

impl From<SpiffeId> for String {
    fn from(id: SpiffeId) -> Self {
        id.to_string()
    }
}

fn within(text: &str, maximum: usize) -> bool {
    !text.is_empty() && text.len() <= maximum
}

fn error(reason: &'static str) -> ParseIdError {
    ParseIdError {
        kind: "SPIFFE id",
        reason,
    }
}

/// The SPIFFE ID specification, section 2.1.
const MAX_TRUST_DOMAIN: usize = 255;
const MAX_NAME: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip_for_every_role() {
        for role in Role::ALL {
            let id = SpiffeId::new("chancery.test", role, "node-1").unwrap();
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn malformed_ids_are_refused() {
        for bad in [
            "https://a/operator/b",
            "spiffe://a/operator",
            "spiffe://a/operator/b/c",
            "spiffe:///operator/b",
            "spiffe://A/operator/b",
            "spiffe://a/root/b",
            "spiffe://a/operator/",
            "spiffe://a/operator/..",
            "spiffe://a/operator/b%2f",
        ] {
            assert!(bad.parse::<SpiffeId>().is_err(), "{bad}");
        }
    }
}
