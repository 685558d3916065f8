use std::collections::BTreeMap;
use std::ops::Deref;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use identifiers::SpiffeId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::claims::{CertificateThumbprint, Claims, ClaimsError};

/// Signs claims; the token names its key by `kid`, at most 128 visible ASCII characters.
pub fn mint(key: &SigningKey, kid: &str, claims: &Claims) -> Result<String, ClaimsError> {
    claims.check()?;
    if !well_formed_kid(kid) {
        return Err(ClaimsError {
            claim: "kid",
            rule: "is empty, too long or not visible ASCII",
        });
    }
    let header = Header {
        alg: ALGORITHM.to_owned(),
        kid: kid.to_owned(),
        typ: TOKEN_TYPE.to_owned(),
    };
    let mut token = format!("{}.{}", encode_json(&header), encode_json(claims));
    let signature = key.sign(token.as_bytes());
    token.push('.');
    token.push_str(&BASE64_URL_SAFE_NO_PAD.encode(signature.to_bytes()));
    if token.len() > MAX_TOKEN_BYTES {
        return Err(ClaimsError {
            claim: "blobs",
            rule: "make the token too long",
        });
    }
    Ok(token)
}

/// The RFC 7638 thumbprint of a public key: the `kid` of a key that has no other name.
#[must_use]
pub fn key_thumbprint(key: &VerifyingKey) -> String {
    let x = BASE64_URL_SAFE_NO_PAD.encode(key.as_bytes());
    let jwk = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(jwk))
}

/// Checks tokens of one issuer with its public keys.
#[derive(Debug, Clone)]
pub struct Verifier {
    keys: BTreeMap<String, VerifyingKey>,
    issuer: SpiffeId,
}

/// A value whose signature, binding and times were checked; only a check makes one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified<T>(T);

/// Why a token is refused. None of the texts repeats the token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Not a token of this kind in its one accepted spelling.
    #[error("the capability is malformed: {part} {reason}")]
    Malformed {
        /// Which part of the token.
        part: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Signed claims that break one of their own rules.
    #[error("the capability's claims are not acceptable")]
    Claims(#[source] ClaimsError),
    /// Signed under a key that is not known here.
    #[error("the capability names an unknown signing key")]
    UnknownKey,
    /// The signature is not the named key's.
    #[error("the capability's signature is wrong")]
    BadSignature,
    /// Minted by another key service.
    #[error("the capability was issued by {0}")]
    WrongIssuer(SpiffeId),
    /// Presented with another certificate than the one it is bound to.
    #[error("the capability is bound to another certificate")]
    WrongCertificate,
    /// Its time has not come.
    #[error("the capability is not valid before {not_before} (it is {now})")]
    NotYetValid {
        /// The `nbf` claim.
        not_before: u64,
        /// The time of the check.
        now: u64,
    },
    /// Its time is over.
    #[error("the capability expired at {expiry} (it is {now})")]
    Expired {
        /// The `exp` claim.
        expiry: u64,
        /// The time of the check.
        now: u64,
    },
}

impl Verifier {
    /// A verifier of `issuer`'s tokens, with its public keys by `kid`.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = (String, VerifyingKey)>, issuer: SpiffeId) -> Self {
        Self {
            keys: keys.into_iter().collect(),
            issuer,
        }
    }

    /// Checks a token at `now` (Unix seconds), presented over a connection whose client
    /// certificate has SHA-256 `peer`. `skew` seconds of clock difference are forgiven on
    /// either side.
    pub fn verify(
        &self,
        token: &str,
        now: u64,
        peer: &CertificateThumbprint,
        skew: u64,
    ) -> Result<Verified<Claims>, Refusal> {
        let (signed, header, payload, signature) = split(token)?;
        let header: Header = decode_json("header", header)?;
        if header.alg != ALGORITHM {
            return Err(malformed("header", "names another algorithm than EdDSA"));
        }
        if header.typ != TOKEN_TYPE {
            return Err(malformed("header", "names another type of token"));
        }
        let key = self.keys.get(&header.kid).ok_or(Refusal::UnknownKey)?;
        let signature = decode("signature", signature)?;
        let signature = Signature::from_slice(&signature)
            .map_err(|_| malformed("signature", "is not 64 bytes"))?;
        key.verify_strict(signed.as_bytes(), &signature)
            .map_err(|_| Refusal::BadSignature)?;
        let claims: Claims = decode_json("claims", payload)?;
        claims.check().map_err(Refusal::Claims)?;
        if claims.iss != self.issuer {
            return Err(Refusal::WrongIssuer(claims.iss));
        }
        if claims.cnf.x5t_s256 != *peer {
            return Err(Refusal::WrongCertificate);
        }
        if now.saturating_add(skew) < claims.nbf {
            let not_before = claims.nbf;
            return Err(Refusal::NotYetValid { not_before, now });
        }
        if now >= claims.exp.saturating_add(skew) {
            let expiry = claims.exp;
            return Err(Refusal::Expired { expiry, now });
        }
        Ok(Verified(claims))
    }
}

impl<T> Verified<T> {
    /// The checked value, no longer marked as checked.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    alg: String,
    kid: String,
    typ: String,
}

fn split(token: &str) -> Result<(&str, &str, &str, &str), Refusal> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err(malformed("token", "is too long"));
    }
    let parts = token.rsplit_once('.').and_then(|(signed, signature)| {
        let (header, payload) = signed.split_once('.')?;
        (!payload.contains('.')).then_some((signed, header, payload, signature))
    });
    parts.ok_or_else(|| malformed("token", "does not have three parts"))
}

fn decode(part: &'static str, text: &str) -> Result<Vec<u8>, Refusal> {
    BASE64_URL_SAFE_NO_PAD
        .decode(text)
        .map_err(|_| malformed(part, "is not base64url without padding"))
}

fn decode_json<T: Serialize + for<'a> Deserialize<'a>>(
    part: &'static str,
    text: &str,
) -> Result<T, Refusal> {
    let bytes = decode(part, text)?;
    let value: T = serde_json::from_slice(&bytes)
        .map_err(|_| malformed(part, "does not have exactly the expected fields"))?;
    if encode_json(&value) != text {
        return Err(malformed(part, "is not in its canonical spelling"));
    }
    Ok(value)
}

fn encode_json(value: &impl Serialize) -> String {
    let bytes = serde_json::to_vec(value).expect("a struct of strings, numbers and lists is JSON");
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn well_formed_kid(kid: &str) -> bool {
    (1..=MAX_KID_BYTES).contains(&kid.len()) && kid.bytes().all(|b| b.is_ascii_graphic())
}

const fn malformed(part: &'static str, reason: &'static str) -> Refusal {
    Refusal::Malformed { part, reason }
}

/// The `typ` of an unlock capability.
pub const TOKEN_TYPE: &str = "chancery-unlock+jwt";
/// The longest token: the largest claims, with some room.
pub const MAX_TOKEN_BYTES: usize = 48 * 1024;
const ALGORITHM: &str = "EdDSA";
const MAX_KID_BYTES: usize = 128;
