use identifiers::Sha256Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A validated base-weight manifest: a value of this type obeys every rule of the contract.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Record", into = "Record")]
pub struct ShardManifest {
    aggregate: Sha256Digest,
    total_size: u64,
    shards: Vec<Shard>,
}

/// One shard: every byte of one file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shard {
    /// Portable file name, see [`is_portable_filename`].
    pub filename: String,
    /// Bytes, at least 1.
    pub size_bytes: u64,
    /// Digest of every byte.
    pub sha256: Sha256Digest,
}

/// The bounded summary that health endpoints show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// `kiln.base-weight-shards.v1`
    pub manifest_type: String,
    /// `kiln.base-model-content.v1`
    pub aggregate_algorithm: String,
    /// The content aggregate.
    pub aggregate_sha256: Sha256Digest,
    /// Number of shards.
    pub shard_count: u32,
    /// Bytes of all shards.
    pub total_size_bytes: u64,
}

/// Which rule a manifest breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not the one schema version.
    #[error("schema_version is {0}, expected 1")]
    SchemaVersion(u64),
    /// Not the one manifest type.
    #[error("manifest_type is not {MANIFEST_TYPE}")]
    ManifestType,
    /// Not the one aggregate algorithm.
    #[error("aggregate_algorithm is not {AGGREGATE_ALGORITHM}")]
    AggregateAlgorithm,
    /// No shard, or too many.
    #[error("{0} shards, expected 1 to {MAX_SHARDS}")]
    ShardCount(usize),
    /// A name that is not portable.
    #[error("shard {0:?}: not a portable .safetensors filename")]
    Filename(String),
    /// Two shards of one name.
    #[error("shard {0}: the filename occurs twice")]
    Duplicate(String),
    /// Shards out of order.
    #[error("shard {0}: not sorted by filename")]
    Unsorted(String),
    /// A shard of no bytes.
    #[error("shard {0}: size_bytes is 0")]
    EmptyShard(String),
    /// The sizes add up beyond 64 bits.
    #[error("the shard sizes overflow")]
    Overflow,
    /// The recorded total differs from the shards'.
    #[error("total_size_bytes is {recorded}, the shards have {actual}")]
    TotalSize {
        /// As recorded.
        recorded: u64,
        /// Sum over the shards.
        actual: u64,
    },
    /// The recorded aggregate differs from the shards'.
    #[error("aggregate_sha256 is {recorded}, the shards give {actual}")]
    Aggregate {
        /// As recorded.
        recorded: Sha256Digest,
        /// Computed from the shards.
        actual: Sha256Digest,
    },
}

impl ShardManifest {
    /// A manifest of these shards, which are sorted here.
    pub fn new(mut shards: Vec<Shard>) -> Result<Self, ManifestError> {
        shards.sort_by(|a, b| a.filename.as_bytes().cmp(b.filename.as_bytes()));
        Self::from_sorted(shards)
    }

    /// Parses the JSON form; an unknown field at either level is an error.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The JSON form, indented by two spaces.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a manifest has text keys only")
    }

    /// The content aggregate.
    #[must_use]
    pub const fn aggregate(&self) -> Sha256Digest {
        self.aggregate
    }

    /// Bytes of all shards.
    #[must_use]
    pub const fn total_size(&self) -> u64 {
        self.total_size
    }

    /// The shards, sorted by filename.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The bounded summary.
    #[must_use]
    pub fn summary(&self) -> Summary {
        Summary {
            manifest_type: MANIFEST_TYPE.to_owned(),
            aggregate_algorithm: AGGREGATE_ALGORITHM.to_owned(),
            aggregate_sha256: self.aggregate,
            shard_count: u32::try_from(self.shards.len()).expect("at most MAX_SHARDS"),
            total_size_bytes: self.total_size,
        }
    }

    fn from_sorted(shards: Vec<Shard>) -> Result<Self, ManifestError> {
        if shards.is_empty() || shards.len() > MAX_SHARDS {
            return Err(ManifestError::ShardCount(shards.len()));
        }
        for shard in &shards {
            if !is_portable_filename(&shard.filename) {
                return Err(ManifestError::Filename(shard.filename.clone()));
            }
            if shard.size_bytes == 0 {
                return Err(ManifestError::EmptyShard(shard.filename.clone()));
            }
        }
        for pair in shards.windows(2) {
            match pair[0].filename.as_bytes().cmp(pair[1].filename.as_bytes()) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => {
                    return Err(ManifestError::Duplicate(pair[1].filename.clone()));
                }
                std::cmp::Ordering::Greater => {
                    return Err(ManifestError::Unsorted(pair[1].filename.clone()));
                }
            }
        }
        let total_size = shards
            .iter()
            .try_fold(0_u64, |total, shard| total.checked_add(shard.size_bytes))
            .ok_or(ManifestError::Overflow)?;
        let aggregate = aggregate(shards.iter().map(|shard| (shard.sha256, shard.size_bytes)));
        Ok(Self {
            aggregate,
            total_size,
            shards,
        })
    }
}

/// `kiln.base-model-content.v1` over content records of (digest, size): independent of names and
/// of order; repeated records count.
pub fn aggregate(records: impl IntoIterator<Item = (Sha256Digest, u64)>) -> Sha256Digest {
    let mut records: Vec<(Sha256Digest, u64)> = records.into_iter().collect();
    records.sort_unstable();
    let mut hash = Sha256::new();
    hash.update(AGGREGATE_ALGORITHM);
    hash.update([0]);
    hash.update((records.len() as u64).to_le_bytes());
    for (digest, size) in records {
        hash.update(size.to_le_bytes());
        hash.update(digest.as_bytes());
    }
    Sha256Digest::new(hash.finalize().into())
}

/// 1 to 255 bytes of ASCII letters, digits, `.`, `-`, `_`, ending in `.safetensors`.
#[must_use]
pub fn is_portable_filename(name: &str) -> bool {
    let portable = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    name.len() <= MAX_FILENAME && name.ends_with(".safetensors") && name.bytes().all(portable)
}

/// The manifest as JSON has it, unchecked; the field order is the contract's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    schema_version: u64,
    manifest_type: String,
    aggregate_algorithm: String,
    aggregate_sha256: Sha256Digest,
    total_size_bytes: u64,
    shards: Vec<Shard>,
}

impl TryFrom<Record> for ShardManifest {
    type Error = ManifestError;

    fn try_from(record: Record) -> Result<Self, ManifestError> {
        if record.schema_version != SCHEMA_VERSION {
            return Err(ManifestError::SchemaVersion(record.schema_version));
        }
        if record.manifest_type != MANIFEST_TYPE {
            return Err(ManifestError::ManifestType);
        }
        if record.aggregate_algorithm != AGGREGATE_ALGORITHM {
            return Err(ManifestError::AggregateAlgorithm);
        }
        let manifest = Self::from_sorted(record.shards)?;
        if record.total_size_bytes != manifest.total_size {
            return Err(ManifestError::TotalSize {
                recorded: record.total_size_bytes,
                actual: manifest.total_size,
            });
        }
        if record.aggregate_sha256 != manifest.aggregate {
            return Err(ManifestError::Aggregate {
                recorded: record.aggregate_sha256,
                actual: manifest.aggregate,
            });
        }
        Ok(manifest)
    }
}

impl From<ShardManifest> for Record {
    fn from(manifest: ShardManifest) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            manifest_type: MANIFEST_TYPE.to_owned(),
            aggregate_algorithm: AGGREGATE_ALGORITHM.to_owned(),
            aggregate_sha256: manifest.aggregate,
            total_size_bytes: manifest.total_size,
            shards: manifest.shards,
        }
    }
}

/// The most shards of one manifest.
pub const MAX_SHARDS: usize = 4096;
const MAX_FILENAME: usize = 255;
const SCHEMA_VERSION: u64 = 1;
const MANIFEST_TYPE: &str = "kiln.base-weight-shards.v1";
const AGGREGATE_ALGORITHM: &str = "kiln.base-model-content.v1";
