//! OpenSSF Model Signing, version 1.0, public-key method: what the `model_signing` tool verifies.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use identifiers::Sha256Digest;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p256::pkcs8::{EncodePublicKey as _, LineEnding};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::dsse::pre_authentication_encoding;

/// One signed file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// Path relative to the model's directory, `/` separated.
    pub name: String,
    /// Digest of the file.
    pub sha256: Sha256Digest,
}

/// Why a bundle is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Not the JSON of a bundle of this kind.
    #[error("the bundle is malformed: {0}")]
    Malformed(String),
    /// Signed by another key than the one given.
    #[error("the bundle names another public key")]
    OtherKey,
    /// The signature is not the key's over the statement.
    #[error("the bundle's signature does not match")]
    BadSignature,
    /// A file that is not signed, not there, or differs.
    #[error("{path}: {what}")]
    File {
        /// The path.
        path: String,
        /// `not signed`, `missing` or `differs`.
        what: &'static str,
    },
    /// A path that no model's file can have.
    #[error("resource {0:?}: not a relative path inside the model")]
    Path(String),
}

/// The key that signs models: ECDSA on P-256, the one kind that the public tool verifies.
pub struct ModelSigner(SigningKey);

impl ModelSigner {
    /// A key from its scalar; `None` for the few values that are none.
    #[must_use]
    pub fn from_bytes(scalar: &[u8; 32]) -> Option<Self> {
        SigningKey::from_slice(scalar).ok().map(Self)
    }

    /// Signs the files of a model: see [`sign_model`]. The same files give the same text.
    pub fn sign(&self, model: &str, resources: Vec<Resource>) -> Result<String, BundleError> {
        sign_model(model, resources, &self.0)
    }

    /// The public key, in PEM, for whoever verifies.
    pub fn public_key(&self) -> Result<String, BundleError> {
        self.0
            .verifying_key()
            .to_public_key_pem(LineEnding::LF)
            .map_err(|error| BundleError::Malformed(error.to_string()))
    }
}

/// Signs the files of a model: the text of `model.sig`.
///
/// [`MODEL_SIGNATURE`] itself and git's own files at the top, which the format leaves unsigned, are
/// no resources. Resources are sorted by the code points of their names.
pub fn sign_model(
    model: &str,
    mut resources: Vec<Resource>,
    key: &SigningKey,
) -> Result<String, BundleError> {
    resources.retain(|resource| is_signed(&resource.name));
    resources.sort();
    if let Some(bad) = resources.iter().find(|r| !is_inside(&r.name)) {
        return Err(BundleError::Path(bad.name.clone()));
    }
    let statement = Statement {
        statement_type: STATEMENT_TYPE.to_owned(),
        subject: vec![Subject {
            name: model.to_owned(),
            digest: SubjectDigest {
                sha256: root(resources.iter().map(|r| r.sha256)),
            },
        }],
        predicate_type: PREDICATE_TYPE.to_owned(),
        predicate: Predicate {
            serialization: Serialization {
                method: "files".to_owned(),
                hash_type: "sha256".to_owned(),
                allow_symlinks: false,
                ignore_paths: IGNORED.map(str::to_owned).to_vec(),
            },
            resources: resources
                .into_iter()
                .map(|resource| WireResource {
                    name: resource.name,
                    algorithm: "sha256".to_owned(),
                    digest: resource.sha256.to_hex(),
                })
                .collect(),
        },
    };
    let payload = serde_json::to_vec(&statement).expect("a statement has text keys only");
    let signature: DerSignature = key.sign(&pre_authentication_encoding(PAYLOAD_TYPE, &payload));
    let bundle = Bundle {
        media_type: MEDIA_TYPE.to_owned(),
        verification_material: Material {
            public_key: PublicKey {
                hint: hint(key.verifying_key())?,
            },
            tlog_entries: Vec::new(),
        },
        dsse_envelope: WireEnvelope {
            payload: BASE64_STANDARD.encode(&payload),
            payload_type: PAYLOAD_TYPE.to_owned(),
            signatures: vec![WireSignature {
                sig: BASE64_STANDARD.encode(signature.as_bytes()),
                keyid: String::new(),
            }],
        },
    };
    Ok(serde_json::to_string_pretty(&bundle).expect("a bundle has text keys only"))
}

/// Checks a bundle against the files that are there, more strictly than the public tool: the exact
/// ignore list, SHA-256 only, no path outside the model, no file unsigned or missing.
pub fn verify_model(
    bundle: &[u8],
    present: &[Resource],
    key: &VerifyingKey,
) -> Result<(), BundleError> {
    let malformed = |reason: &str| BundleError::Malformed(reason.to_owned());
    let bundle: Bundle = serde_json::from_slice(bundle)
        .map_err(|error| BundleError::Malformed(error.to_string()))?;
    let envelope = &bundle.dsse_envelope;
    if bundle.media_type != MEDIA_TYPE || envelope.payload_type != PAYLOAD_TYPE {
        return Err(malformed("another media or payload type"));
    }
    if bundle.verification_material.public_key.hint != hint(key)? {
        return Err(BundleError::OtherKey);
    }
    let [signature] = &envelope.signatures[..] else {
        return Err(malformed("expected one signature"));
    };
    let decode = |text: &str| BASE64_STANDARD.decode(text).ok();
    let payload = decode(&envelope.payload).ok_or_else(|| malformed("payload is not base64"))?;
    let signature = decode(&signature.sig)
        .and_then(|der| DerSignature::try_from(der.as_slice()).ok())
        .ok_or_else(|| malformed("sig is not a DER signature"))?;
    key.verify(
        &pre_authentication_encoding(PAYLOAD_TYPE, &payload),
        &signature,
    )
    .map_err(|_| BundleError::BadSignature)?;

    let statement: Statement = serde_json::from_slice(&payload)
        .map_err(|error| BundleError::Malformed(error.to_string()))?;
    let signed = statement.resources()?;
    let names: BTreeSet<&str> = signed.iter().map(|r| r.name.as_str()).collect();
    if names.len() != signed.len() {
        return Err(malformed("a resource occurs twice"));
    }
    if let Some(extra) = present.iter().find(|r| !names.contains(r.name.as_str())) {
        return Err(file_error(&extra.name, "not signed"));
    }
    for resource in &signed {
        match present.iter().find(|r| r.name == resource.name) {
            None => return Err(file_error(&resource.name, "missing")),
            Some(found) if found.sha256 != resource.sha256 => {
                return Err(file_error(&resource.name, "differs"));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

impl Statement {
    /// The signed files, with every rule of the statement checked.
    fn resources(&self) -> Result<Vec<Resource>, BundleError> {
        let malformed = |reason: &str| BundleError::Malformed(reason.to_owned());
        if self.statement_type != STATEMENT_TYPE || self.predicate_type != PREDICATE_TYPE {
            return Err(malformed("another statement or predicate type"));
        }
        let how = &self.predicate.serialization;
        let strict = how.method == "files"
            && how.hash_type == "sha256"
            && !how.allow_symlinks
            && how.ignore_paths == IGNORED;
        if !strict {
            return Err(malformed("the serialization is not the strict one"));
        }
        let resources = self
            .predicate
            .resources
            .iter()
            .map(|wire| {
                if !is_inside(&wire.name) {
                    return Err(BundleError::Path(wire.name.clone()));
                }
                if wire.algorithm != "sha256" {
                    return Err(malformed("a resource's algorithm is not sha256"));
                }
                Ok(Resource {
                    name: wire.name.clone(),
                    sha256: Sha256Digest::from_hex(&wire.digest)
                        .map_err(|error| BundleError::Malformed(error.to_string()))?,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        match &self.subject[..] {
            [one] if one.digest.sha256 == root(resources.iter().map(|r| r.sha256)) => Ok(resources),
            [_] => Err(malformed(
                "the subject's digest is not that of the resources",
            )),
            _ => Err(malformed("expected one subject")),
        }
    }
}

fn file_error(path: &str, what: &'static str) -> BundleError {
    BundleError::File {
        path: path.to_owned(),
        what,
    }
}

fn root(digests: impl Iterator<Item = Sha256Digest>) -> String {
    let mut hash = Sha256::new();
    digests.for_each(|digest| hash.update(digest.as_bytes()));
    hex::encode(hash.finalize())
}

/// Lowercase hex SHA-256 of the public key's PEM text.
fn hint(key: &VerifyingKey) -> Result<String, BundleError> {
    let pem = key
        .to_public_key_pem(LineEnding::LF)
        .map_err(|_| BundleError::OtherKey)?;
    Ok(hex::encode(Sha256::digest(pem.as_bytes())))
}

/// Whether the format signs a file of this name.
fn is_signed(name: &str) -> bool {
    let top = name.split('/').next().unwrap_or_default();
    name != MODEL_SIGNATURE && !IGNORED.contains(&top)
}

fn is_inside(name: &str) -> bool {
    !name.is_empty()
        && !name.contains('\\')
        && !name.chars().any(char::is_control)
        && name
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | ".."))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    verification_material: Material,
    dsse_envelope: WireEnvelope,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Material {
    public_key: PublicKey,
    #[serde(default)]
    tlog_entries: Vec<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublicKey {
    hint: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WireEnvelope {
    payload: String,
    payload_type: String,
    signatures: Vec<WireSignature>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireSignature {
    sig: String,
    #[serde(default)]
    keyid: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    #[serde(rename = "_type")]
    statement_type: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: Predicate,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Subject {
    name: String,
    digest: SubjectDigest,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubjectDigest {
    sha256: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Predicate {
    serialization: Serialization,
    resources: Vec<WireResource>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Serialization {
    method: String,
    hash_type: String,
    allow_symlinks: bool,
    ignore_paths: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireResource {
    name: String,
    algorithm: String,
    digest: String,
}

/// Where a model has its signature.
pub const MODEL_SIGNATURE: &str = "model.sig";
const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PREDICATE_TYPE: &str = "https://model_signing/signature/v1.0";
const IGNORED: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];
