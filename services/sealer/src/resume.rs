//! What a later attempt of a job goes on with.

use api::v1::Lock;
use identifiers::Sha256Digest;
use registry_domain::{DurableFile, ManifestFile};
use sealing::SealedShard;
use serde::{Deserialize, Serialize};
use shard_identity::ShardManifest;
use weight_lock::{Entry, Format};

use crate::failure::JobError;
use crate::job::Terms;
use crate::order::{SealOrder, lock_message};

/// Settled by a job's first attempt: a retry makes the same bytes of the same source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// The source's weights.
    pub source: ShardManifest,
    /// Of the trusted blob, 32 hex digits. Salts are no secret: they stand in the output.
    #[serde(with = "salt")]
    pub blob_salt: [u8; 16],
    /// Of the container.
    #[serde(with = "salt")]
    pub container_salt: [u8; 16],
}

impl Resume {
    /// What the job asks of a grant.
    pub fn terms(&self, order: &SealOrder) -> Terms {
        Terms {
            source: self.source.aggregate(),
            scheme: order.scheme_message(),
            transform: order.transform_message(),
            lock: lock_message(order.lock),
            unlock: Lock::Unspecified,
            blob_salt: Some(self.blob_salt),
            container_salt: order.container.then_some(self.container_salt),
        }
    }
}

/// What [`DurableFile::detail`] holds for a shard: the entries of its lock record, as tensor,
/// domain and format.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShardDetail {
    locked: Vec<(String, u64, String)>,
}

/// The detail of a sealed shard.
pub fn shard_detail(shard: &SealedShard) -> serde_json::Value {
    let entry = |(tensor, entry): &(String, Entry)| {
        (tensor.clone(), entry.domain, entry.format.name().to_owned())
    };
    let detail = ShardDetail {
        locked: shard.locked.iter().map(entry).collect(),
    };
    serde_json::to_value(detail).unwrap_or_default()
}

/// The shard that a durable file is.
pub fn sealed_shard(file: &DurableFile) -> Result<SealedShard, JobError> {
    let damaged = || JobError::refused("state-damaged", "a durable file's record is damaged");
    let detail: ShardDetail = serde_json::from_value(file.detail.clone()).map_err(|_| damaged())?;
    let mut locked = Vec::with_capacity(detail.locked.len());
    for (tensor, domain, format) in detail.locked {
        let format = Format::from_name(&format).ok_or_else(damaged)?;
        locked.push((tensor, Entry { domain, format }));
    }
    Ok(SealedShard {
        file: checkpoint::WrittenFile {
            path: file.path.clone(),
            bytes: file.size,
            sha256: file.sha256,
        },
        locked,
    })
}

/// A durable file as a manifest lists it.
pub fn manifest_file(file: &DurableFile) -> ManifestFile {
    ManifestFile {
        path: file.path.clone(),
        size: file.size,
        sha256: file.sha256,
        chunk_root: file.chunk_root,
    }
}

/// Refuses an output that differs from what an earlier attempt made durable.
pub fn compare(path: &str, sha256: Sha256Digest, earlier: &DurableFile) -> Result<(), JobError> {
    if earlier.path == path && earlier.sha256 == sha256 {
        return Ok(());
    }
    let message = format!("{path}: this attempt made other bytes than an earlier one");
    Err(JobError::refused("output-differs", message))
}

mod salt {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(salt: &[u8; 16], out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&hex::encode(salt))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<[u8; 16], D::Error> {
        let text = String::deserialize(input)?;
        let mut salt = [0; 16];
        hex::decode_to_slice(text, &mut salt)
            .map_err(|_| D::Error::custom("expected 32 hex digits"))?;
        Ok(salt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_comes_back_from_its_record() {
        let shard = SealedShard {
            file: checkpoint::WrittenFile {
                path: "model-00001-of-00001.safetensors".to_owned(),
                bytes: 10,
                sha256: Sha256Digest::new([1; 32]),
            },
            locked: vec![(
                "a.weight".to_owned(),
                Entry {
                    domain: 65_000,
                    format: Format::Float,
                },
            )],
        };
        let mut durable = DurableFile {
            stage: "checkpoint".to_owned(),
            number: 0,
            path: shard.file.path.clone(),
            size: 10,
            sha256: shard.file.sha256,
            chunk_root: Sha256Digest::new([2; 32]),
            detail: shard_detail(&shard),
        };
        assert_eq!(sealed_shard(&durable).unwrap(), shard);
        compare(&shard.file.path, shard.file.sha256, &durable).unwrap();
        assert!(compare("other", shard.file.sha256, &durable).is_err());
        durable.detail = serde_json::json!({ "locked": [["a", 1, "nonsense"]] });
        assert!(sealed_shard(&durable).is_err());
    }

    #[test]
    fn the_resume_document_is_json_with_hex_salts() {
        let shard = shard_identity::Shard {
            filename: "model.safetensors".to_owned(),
            size_bytes: 3,
            sha256: Sha256Digest::new([1; 32]),
        };
        let resume = Resume {
            source: ShardManifest::new(vec![shard]).unwrap(),
            blob_salt: [0xab; 16],
            container_salt: [0xcd; 16],
        };
        let document = serde_json::to_value(&resume).unwrap();
        assert_eq!(document["blob_salt"], "ab".repeat(16));
        assert_eq!(serde_json::from_value::<Resume>(document).unwrap(), resume);
    }
}
