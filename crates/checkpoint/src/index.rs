//! The index of a sharded checkpoint, `model.safetensors.index.json`.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::header::Object;
use crate::json::{self, Style, Value};

/// The longest index accepted, in bytes.
pub const MAX_INDEX: u64 = 100_000_000;
/// The most tensors accepted in one checkpoint.
pub const MAX_TENSORS: usize = 5_000_000;
/// The most shards accepted in one checkpoint.
pub const MAX_SHARDS: usize = 4096;

/// Which shard holds which tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    weight_map: Vec<(String, String)>,
}

/// Why an index was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// Not the JSON that an index is; the text names the field.
    #[error("{reason}")]
    Json {
        /// What was wrong.
        reason: String,
    },
    /// A shard's name that is not a plain file name.
    #[error("weight_map: tensor {tensor:?} is in {shard:?}, which is no file name here: {reason}")]
    ShardName {
        /// The tensor.
        tensor: String,
        /// The name.
        shard: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// More shards than a checkpoint may have.
    #[error("weight_map: more than {MAX_SHARDS} shards")]
    TooManyShards,
    /// No tensor at all.
    #[error("weight_map is empty")]
    Empty,
}

impl Index {
    /// Reads an index. Every shard name is a plain file name; no tensor appears twice.
    pub fn parse(text: &[u8]) -> Result<Self, IndexError> {
        let raw: Object<Raw> = serde_json::from_slice(text).map_err(|error| {
            let mut reason = error.to_string();
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
            IndexError::Json { reason }
        })?;
        let weight_map = raw.0.weight_map.0;
        let mut shards = HashSet::new();
        for (tensor, shard) in &weight_map {
            if !shards.insert(shard.as_str()) {
                continue;
            }
            if let Err(reason) = plain_name(shard) {
                return Err(IndexError::ShardName {
                    tensor: tensor.clone(),
                    shard: shard.chars().take(MAX_REASON).collect(),
                    reason,
                });
            }
            if shards.len() > MAX_SHARDS {
                return Err(IndexError::TooManyShards);
            }
        }
        if weight_map.is_empty() {
            return Err(IndexError::Empty);
        }
        Ok(Self { weight_map })
    }

    /// Tensor and shard, in the file's order.
    #[must_use]
    pub fn weight_map(&self) -> &[(String, String)] {
        &self.weight_map
    }

    /// Writes an index as the reference does: empty metadata, two spaces of indentation.
    #[must_use]
    pub fn encode<'a>(weight_map: impl Iterator<Item = (&'a str, &'a str)>) -> String {
        let entries = weight_map.map(|(tensor, shard)| (tensor.to_owned(), Value::from(shard)));
        let index = Value::Object(vec![
            ("metadata".to_owned(), Value::Object(Vec::new())),
            ("weight_map".to_owned(), Value::Object(entries.collect())),
        ]);
        json::write(&index, Style::Indented)
    }
}

fn plain_name(name: &str) -> Result<(), &'static str> {
    crate::root::relative_fault(name).map_or(Ok(()), Err)?;
    if name.contains('/') {
        return Err("it names a folder");
    }
    if !name.ends_with(".safetensors") {
        return Err("it does not end in .safetensors");
    }
    Ok(())
}

#[derive(Deserialize)]
struct Raw {
    #[expect(dead_code, reason = "read so that a repeated field is refused")]
    #[serde(default)]
    metadata: IgnoredAny,
    weight_map: WeightMap,
}

struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("weight_map: an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut entries = Vec::new();
                let mut seen = HashSet::new();
                while let Some(tensor) = map.next_key::<String>()? {
                    let shard = map.next_value::<String>().map_err(|error| {
                        A::Error::custom(format_args!("weight_map: tensor {tensor:?}: {error}"))
                    })?;
                    if entries.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format_args!(
                            "weight_map: more than {MAX_TENSORS} tensors"
                        )));
                    }
                    if !seen.insert(tensor.clone()) {
                        return Err(A::Error::custom(format_args!(
                            "weight_map: tensor {tensor:?} appears twice"
                        )));
                    }
                    entries.push((tensor, shard));
                }
                Ok(WeightMap(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

const MAX_REASON: usize = 400;
