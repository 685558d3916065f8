//! The artifact manifest: what a sealer signs and a node checks before it unlocks anything.
//!
//! It is carried as the payload of a DSSE envelope of type [`PAYLOAD_TYPE`]. The artifact's digest
//! is the SHA-256 of the payload's bytes, so a manifest is never re-serialized to be checked.

use identifiers::{Fingerprint, KeyId, Sha256Digest, SpiffeId};
use serde::{Deserialize, Serialize};
use shard_identity::ShardManifest;

use crate::ArtifactKind;

/// DSSE payload type of an artifact manifest.
pub const PAYLOAD_TYPE: &str = "application/vnd.chancery.artifact-manifest+json";

/// The manifest of one sealed artifact, version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactManifest {
    /// Always 1.
    pub version: u32,
    /// The model's name.
    pub model: String,
    /// What the files are.
    pub kind: ArtifactKind,
    /// The model key that sealed it.
    pub key_id: KeyId,
    /// The key's version.
    pub key_version: u32,
    /// The key's fingerprint.
    pub fingerprint: Fingerprint,
    /// How it was sealed.
    pub seal: SealRecord,
    /// Base-weight manifest of the source.
    pub source: ShardManifest,
    /// Base-weight manifest of the sealed shards; `None` for a container.
    pub sealed: Option<ShardManifest>,
    /// Every file, sorted by path.
    pub files: Vec<ManifestFile>,
    /// Set for a container.
    pub container: Option<ContainerRecord>,
    /// Unix seconds.
    pub sealed_at: i64,
    /// Who sealed it.
    pub sealer: SpiffeId,
}

/// How an artifact was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SealRecord {
    /// `l1`, `client` or `d1-v1`.
    pub scheme: String,
    /// `perm` or `orth`.
    pub transform: String,
    /// `none`, `v1` or `v2`.
    pub lock: String,
    /// SHA-256 over the lock tables of all shards; `None` without a lock.
    pub lock_table_digest: Option<Sha256Digest>,
    /// The architecture that was sealed.
    pub architecture: String,
}

/// One file of an artifact, a blob in storage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Path relative to the artifact, `/` separated.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Of the whole file: the blob's name.
    pub sha256: Sha256Digest,
    /// RFC 6962 root over SHA-256 leaves of every 1 MiB.
    pub chunk_root: Sha256Digest,
}

/// What unlocking a container needs to know about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerRecord {
    /// The seal salt, 32 lowercase hex digits.
    pub salt: String,
    /// Units of each region present, by region id.
    pub units: Vec<RegionUnits>,
}

/// How many units a region has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionUnits {
    /// Region id, 1 to 6.
    pub region: u8,
    /// Number of units, at least 1.
    pub count: u64,
}
