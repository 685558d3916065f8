use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ParseIdError;

macro_rules! record_id {
    ($(#[$doc:meta] $name:ident, $kind:literal;)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A version 7 id from a time in milliseconds since the Unix epoch and 10 random bytes.
            #[must_use]
            pub fn from_parts(unix_millis: u64, random: &[u8; 10]) -> Self {
                Self(uuid::Builder::from_unix_timestamp_millis(unix_millis, random).into_uuid())
            }

            /// Wraps an id that was read from a store or a message.
            #[must_use]
            pub const fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// The underlying id.
            #[must_use]
            pub const fn as_uuid(&self) -> Uuid {
                self.0
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let error = ParseIdError {
                    kind: $kind,
                    reason: "expected a hyphenated lowercase UUID",
                };
                let id = Uuid::try_parse(text).map_err(|_| error.clone())?;
                if id.hyphenated().to_string() != text {
                    return Err(error);
                }
                Ok(Self(id))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0.hyphenated(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

record_id! {
    /// A model key held by the key service.
    KeyId, "key id";
    /// A seal job.
    JobId, "job id";
    /// The right of one seal job to subkeys.
    GrantId, "grant id";
    /// A registered artifact.
    ArtifactId, "artifact id";
    /// An unlock capability (the token's `jti`).
    CapabilityId, "capability id";
    /// A receipt.
    ReceiptId, "receipt id";
    /// A caller's idempotency id: repeating a request with it has one effect.
    RequestId, "request id";
    /// A generation session on an inference node.
    SessionId, "session id";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_version_7_and_only_canonical_text_parses() {
        let id = KeyId::from_parts(1_700_000_000_000, &[0xff; 10]);
        assert_eq!(id.as_uuid().get_version_num(), 7);
        assert_eq!(id.to_string().parse(), Ok(id));
        let upper = id.to_string().to_uppercase();
        assert!(upper.parse::<KeyId>().is_err());
        assert!(format!("{{{id}}}").parse::<KeyId>().is_err());
    }
}
