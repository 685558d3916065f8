//! Manifests whose signature and form were checked.

use std::collections::BTreeSet;

use ed25519_dalek::SigningKey;
use identifiers::{Role, Sha256Digest, SpiffeId};
use receipt::{Envelope, EnvelopeError, TrustedSigners};
use sha2::{Digest as _, Sha256};

use crate::ArtifactKind;
use crate::manifest::{ArtifactManifest, PAYLOAD_TYPE};

/// A manifest signed by a trusted sealer, every rule checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedManifest {
    manifest: ArtifactManifest,
    digest: Sha256Digest,
}

/// Why a manifest is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// The envelope is not accepted.
    #[error("manifest envelope")]
    Envelope(#[from] EnvelopeError),
    /// Not the JSON of a manifest.
    #[error("the manifest is malformed")]
    Malformed(#[from] serde_json::Error),
    /// Signed by someone other than the sealer it names.
    #[error("the manifest names the sealer {named}, the key belongs to {signer}")]
    OtherSigner {
        /// As the manifest says.
        named: SpiffeId,
        /// Whose key signed.
        signer: SpiffeId,
    },
    /// A field that breaks a rule.
    #[error("manifest field {field}: {rule}")]
    Field {
        /// The field.
        field: &'static str,
        /// The rule.
        rule: &'static str,
    },
}

impl ArtifactManifest {
    /// Checks and signs the manifest: the JSON of its envelope. The same manifest and key give the
    /// same bytes.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, ManifestError> {
        self.check()?;
        let payload = serde_json::to_vec(self)?;
        Ok(Envelope::sign(PAYLOAD_TYPE, payload, key).to_json())
    }

    fn check(&self) -> Result<(), ManifestError> {
        let rule = |holds, field, rule| {
            if holds {
                Ok(())
            } else {
                Err(ManifestError::Field { field, rule })
            }
        };
        rule(self.version == 1, "version", "is not 1")?;
        rule(is_name(&self.model), "model", "is not a model name")?;
        rule(
            self.sealer.role() == Role::Sealer,
            "sealer",
            "is not a sealer",
        )?;
        let seal = &self.seal;
        let known = |value: &str, values: &[&str]| values.contains(&value);
        rule(
            known(&seal.scheme, &["l1", "client", "d1-v1"]),
            "seal.scheme",
            "is unknown",
        )?;
        rule(
            known(&seal.transform, &["perm", "orth"]),
            "seal.transform",
            "is unknown",
        )?;
        rule(
            known(&seal.lock, &["none", "v1", "v2"]),
            "seal.lock",
            "is unknown",
        )?;
        rule(
            (seal.lock == "none") == seal.lock_table_digest.is_none(),
            "seal.lock_table_digest",
            "does not agree with seal.lock",
        )?;
        let count = self.files.len();
        rule(
            (1..=MAX_FILES).contains(&count),
            "files",
            "has no entry, or too many",
        )?;
        let sorted = self
            .files
            .windows(2)
            .all(|pair| pair[0].path < pair[1].path);
        rule(sorted, "files", "is not sorted by path, or repeats one")?;
        let inside = self.files.iter().all(|file| is_inside(&file.path));
        rule(
            inside,
            "files.path",
            "is not a relative path inside the artifact",
        )?;
        match (self.kind, &self.container) {
            (ArtifactKind::Checkpoint, None) => Ok(()),
            (ArtifactKind::Container, Some(container)) => {
                rule(count == 1, "files", "is not the one container")?;
                rule(self.files[0].size > 0, "files.size", "is 0")?;
                rule(
                    container.salt_bytes().is_some(),
                    "container.salt",
                    "is not 32 hex digits",
                )?;
                let regions: BTreeSet<u8> = container.units.iter().map(|u| u.region).collect();
                let sane = regions.len() == container.units.len()
                    && container
                        .units
                        .iter()
                        .all(|u| (1..=6).contains(&u.region) && u.count > 0);
                rule(
                    sane && !regions.is_empty(),
                    "container.units",
                    "is not a list of regions",
                )
            }
            _ => rule(false, "container", "does not agree with kind"),
        }
    }
}

impl VerifiedManifest {
    /// Checks a manifest's envelope (JSON): a trusted sealer's signature, and every rule.
    pub fn verify(envelope: &[u8], signers: &TrustedSigners) -> Result<Self, ManifestError> {
        let envelope = Envelope::from_json(envelope)?;
        let verified = envelope.verify(PAYLOAD_TYPE, signers)?;
        let manifest: ArtifactManifest = serde_json::from_slice(verified.payload)?;
        if manifest.sealer != *verified.signer {
            return Err(ManifestError::OtherSigner {
                named: manifest.sealer,
                signer: verified.signer.clone(),
            });
        }
        manifest.check()?;
        Ok(Self {
            manifest,
            digest: Sha256Digest::new(Sha256::digest(verified.payload).into()),
        })
    }

    /// The manifest.
    #[must_use]
    pub fn manifest(&self) -> &ArtifactManifest {
        &self.manifest
    }

    /// The artifact's digest: SHA-256 of the signed bytes.
    #[must_use]
    pub const fn digest(&self) -> Sha256Digest {
        self.digest
    }
}

impl crate::ContainerRecord {
    /// The salt's 16 bytes; `None` if the text is not 32 lowercase hex digits.
    #[must_use]
    pub fn salt_bytes(&self) -> Option<[u8; 16]> {
        let lower = self
            .salt
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !lower || self.salt.len() != 32 {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(self.salt.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(pair).ok()?;
            *byte = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(bytes)
    }
}

fn is_name(name: &str) -> bool {
    let sane = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    (1..=128).contains(&name.len()) && name.bytes().all(sane) && !matches!(name, "." | "..")
}

fn is_inside(path: &str) -> bool {
    path.len() <= 1024
        && !path.contains('\\')
        && !path.chars().any(char::is_control)
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The most files of one artifact.
const MAX_FILES: usize = 16_384;

#[cfg(test)]
mod tests {
    use identifiers::KeyId;
    use shard_identity::{Shard, ShardManifest};

    use super::*;
    use crate::{ContainerRecord, ManifestFile, RegionUnits, SealRecord};

    fn manifest() -> ArtifactManifest {
        let shard = Shard {
            filename: "model.safetensors".to_owned(),
            size_bytes: 3,
            sha256: Sha256Digest::new([1; 32]),
        };
        ArtifactManifest {
            version: 1,
            model: "tiny".to_owned(),
            kind: ArtifactKind::Container,
            key_id: KeyId::from_parts(1, &[1; 10]),
            key_version: 1,
            fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
            seal: SealRecord {
                scheme: "l1".to_owned(),
                transform: "perm".to_owned(),
                lock: "none".to_owned(),
                lock_table_digest: None,
                architecture: "Qwen3ForCausalLM".to_owned(),
            },
            source: ShardManifest::new(vec![shard]).unwrap(),
            sealed: None,
            files: vec![ManifestFile {
                path: "tiny.jlm".to_owned(),
                size: 4096,
                sha256: Sha256Digest::new([2; 32]),
                chunk_root: Sha256Digest::new([3; 32]),
            }],
            container: Some(ContainerRecord {
                salt: "00112233445566778899aabbccddeeff".to_owned(),
                units: vec![RegionUnits {
                    region: 4,
                    count: 4,
                }],
            }),
            sealed_at: 1,
            sealer: sealer("one"),
        }
    }

    fn sealer(name: &str) -> SpiffeId {
        SpiffeId::new("chancery.test", Role::Sealer, name).unwrap()
    }

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }

    fn signers(name: &str) -> TrustedSigners {
        let mut signers = TrustedSigners::new();
        signers.insert(sealer(name), key().verifying_key());
        signers
    }

    #[test]
    fn a_signed_manifest_verifies() {
        let envelope = manifest().sign(&key()).unwrap();
        let verified = VerifiedManifest::verify(&envelope, &signers("one")).unwrap();
        assert_eq!(verified.manifest(), &manifest());
        let salt = manifest().container.unwrap().salt_bytes().unwrap();
        assert_eq!((salt[0], salt[15]), (0, 0xff));
    }

    #[test]
    fn another_sealers_key_is_refused() {
        let envelope = manifest().sign(&key()).unwrap();
        let refused = VerifiedManifest::verify(&envelope, &signers("two")).unwrap_err();
        assert!(
            matches!(refused, ManifestError::OtherSigner { .. }),
            "{refused}"
        );
    }

    #[test]
    fn a_checkpoint_may_hold_empty_files() {
        let mut checkpoint = manifest();
        checkpoint.kind = ArtifactKind::Checkpoint;
        checkpoint.container = None;
        checkpoint.files[0].size = 0;
        checkpoint.sign(&key()).unwrap();
    }

    #[test]
    fn every_broken_rule_names_its_field() {
        type Change = fn(&mut ArtifactManifest);
        let broken: &[(&str, Change)] = &[
            ("version", |m| m.version = 2),
            ("model", |m| m.model = "../x".to_owned()),
            ("seal.lock", |m| m.seal.lock = "v3".to_owned()),
            ("seal.lock_table_digest", |m| m.seal.lock = "v2".to_owned()),
            ("files", |m| m.files.clear()),
            ("files.path", |m| m.files[0].path = "../x.jlm".to_owned()),
            ("files.size", |m| m.files[0].size = 0),
            ("container", |m| m.container = None),
            ("container.salt", |m| {
                m.container.as_mut().unwrap().salt = "00".to_owned()
            }),
            ("container.units", |m| {
                m.container.as_mut().unwrap().units[0].count = 0
            }),
        ];
        for (expected, change) in broken {
            let mut changed = manifest();
            change(&mut changed);
            let error = changed.sign(&key()).unwrap_err();
            let ManifestError::Field { field, .. } = error else {
                panic!("{expected}: {error}");
            };
            assert_eq!(field, *expected);
        }
    }
}
