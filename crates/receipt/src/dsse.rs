//! DSSE envelopes with Ed25519 signatures.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use identifiers::SpiffeId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A DSSE envelope with one signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    payload_type: String,
    payload: Vec<u8>,
    key_id: String,
    signature: [u8; 64],
}

/// The keys whose signatures count, and who holds each.
#[derive(Debug, Clone, Default)]
pub struct TrustedSigners {
    keys: BTreeMap<String, (SpiffeId, VerifyingKey)>,
}

/// A payload whose signature was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPayload<'a> {
    /// Who signed it.
    pub signer: &'a SpiffeId,
    /// The signed bytes.
    pub payload: &'a [u8],
}

/// Why an envelope is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// Larger than any envelope may be.
    #[error("the envelope has {0} bytes, at most {MAX_ENVELOPE} are accepted")]
    TooLarge(usize),
    /// Not the JSON of an envelope.
    #[error("the envelope is malformed: {0}")]
    Malformed(String),
    /// Not exactly one signature.
    #[error("the envelope has {0} signatures, expected one")]
    Signatures(usize),
    /// The payload is of another type than the caller expects.
    #[error("the payload type is {found:?}, expected {expected:?}")]
    PayloadType {
        /// As in the envelope.
        found: String,
        /// What the caller handles.
        expected: String,
    },
    /// No trusted key has this id.
    #[error("no trusted key has the id {0:?}")]
    UnknownKey(String),
    /// The signature is not the key's over the payload.
    #[error("the signature does not match")]
    BadSignature,
}

/// A public key's id: lowercase hex SHA-256 of its 32 bytes.
#[must_use]
pub fn key_id(key: &VerifyingKey) -> String {
    hex::encode(Sha256::digest(key.as_bytes()))
}

impl Envelope {
    /// Signs a payload.
    #[must_use]
    pub fn sign(payload_type: &str, payload: Vec<u8>, key: &SigningKey) -> Self {
        let signature = key.sign(&pre_authentication_encoding(payload_type, &payload));
        Self {
            payload_type: payload_type.to_owned(),
            payload,
            key_id: key_id(&key.verifying_key()),
            signature: signature.to_bytes(),
        }
    }

    /// Parses the JSON form; unknown fields, other than one signature and loose base64 are errors.
    pub fn from_json(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        if bytes.len() > MAX_ENVELOPE {
            return Err(EnvelopeError::TooLarge(bytes.len()));
        }
        let malformed = |reason: String| EnvelopeError::Malformed(reason);
        let wire: Wire =
            serde_json::from_slice(bytes).map_err(|error| malformed(error.to_string()))?;
        let [signature] = &wire.signatures[..] else {
            return Err(EnvelopeError::Signatures(wire.signatures.len()));
        };
        let payload = BASE64_STANDARD
            .decode(&wire.payload)
            .map_err(|_| malformed("payload is not base64".to_owned()))?;
        let signature_bytes = BASE64_STANDARD
            .decode(&signature.sig)
            .ok()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| malformed("sig is not the base64 of 64 bytes".to_owned()))?;
        Ok(Self {
            payload_type: wire.payload_type,
            payload,
            key_id: signature.keyid.clone(),
            signature: signature_bytes,
        })
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let wire = Wire {
            payload_type: self.payload_type.clone(),
            payload: BASE64_STANDARD.encode(&self.payload),
            signatures: vec![WireSignature {
                keyid: self.key_id.clone(),
                sig: BASE64_STANDARD.encode(self.signature),
            }],
        };
        serde_json::to_vec(&wire).expect("an envelope has text keys only")
    }

    /// The payload's type.
    #[must_use]
    pub fn payload_type(&self) -> &str {
        &self.payload_type
    }

    /// Checks the signature; only then can the payload be read.
    pub fn verify<'a>(
        &'a self,
        payload_type: &str,
        signers: &'a TrustedSigners,
    ) -> Result<VerifiedPayload<'a>, EnvelopeError> {
        if self.payload_type != payload_type {
            return Err(EnvelopeError::PayloadType {
                found: self.payload_type.clone(),
                expected: payload_type.to_owned(),
            });
        }
        let (signer, key) = signers
            .keys
            .get(&self.key_id)
            .ok_or_else(|| EnvelopeError::UnknownKey(self.key_id.clone()))?;
        let signed = pre_authentication_encoding(&self.payload_type, &self.payload);
        key.verify_strict(&signed, &Signature::from_bytes(&self.signature))
            .map_err(|_| EnvelopeError::BadSignature)?;
        Ok(VerifiedPayload {
            signer,
            payload: &self.payload,
        })
    }
}

impl TrustedSigners {
    /// Trusts nobody yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts a key as held by `signer`.
    pub fn insert(&mut self, signer: SpiffeId, key: VerifyingKey) {
        self.keys.insert(key_id(&key), (signer, key));
    }

    /// Every trusted key: id, holder, key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SpiffeId, &VerifyingKey)> {
        self.keys
            .iter()
            .map(|(id, (signer, key))| (id.as_str(), signer, key))
    }
}

/// DSSE version 1's PAE: what is signed.
pub(crate) fn pre_authentication_encoding(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut out = format!(
        "DSSEv1 {} {payload_type} {} ",
        payload_type.len(),
        payload.len()
    )
    .into_bytes();
    out.extend_from_slice(payload);
    out
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Wire {
    payload_type: String,
    payload: String,
    signatures: Vec<WireSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    keyid: String,
    sig: String,
}

/// Large enough for a manifest of 4,096 shards.
const MAX_ENVELOPE: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_are_those_of_the_dsse_specification() {
        let encoded = pre_authentication_encoding("http://example.com/HelloWorld", b"hello world");
        assert_eq!(
            encoded,
            b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
        );
    }
}
