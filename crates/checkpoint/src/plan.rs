//! Which tensor goes where in the output, decided before a byte is written.

use std::collections::HashSet;

use crate::dtype::Dtype;
use crate::header::{self, MAX_NAME, MAX_RANK, TensorInfo};
use crate::index::{Index, MAX_SHARDS};

/// A shard is flushed once its tensors reach this many bytes: 4 GiB.
pub const SHARD_LIMIT: u64 = 4 << 30;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
}

/// One file to be written: its name and its tensors in the order of their data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedShard {
    file: String,
    tensors: Vec<TensorInfo>,
    data_length: u64,
}

/// All files of a checkpoint to be written, and the index over them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    shards: Vec<PlannedShard>,
    weight_map: Vec<(String, usize)>,
}

/// Tensors that no layout exists for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Two tensors of one name.
    #[error("tensor {tensor:?} would be written twice")]
    Twice {
        /// The tensor.
        tensor: String,
    },
    /// A tensor whose name or size no reader would take.
    #[error("tensor {tensor:?}: {reason}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// Why.
        reason: &'static str,
    },
    /// More shards than a reader takes.
    #[error("more than {MAX_SHARDS} shards")]
    TooManyShards,
}

impl ShardPlan {
    /// Spreads tensors over shards `model-%05d-of-%05d.safetensors`, in the given order, a new
    /// shard whenever the current one has reached `limit` bytes (usually [`SHARD_LIMIT`]).
    pub fn new(tensors: Vec<TensorSpec>, limit: u64) -> Result<Self, PlanError> {
        let mut groups: Vec<Vec<TensorSpec>> = Vec::new();
        let mut weight_map = Vec::with_capacity(tensors.len());
        let mut filled = limit;
        for tensor in tensors {
            if filled >= limit {
                groups.push(Vec::new());
                filled = 0;
            }
            filled = filled.saturating_add(byte_length(&tensor)?);
            let shard = groups.len() - 1;
            weight_map.push((tensor.name.clone(), shard));
            groups[shard].push(tensor);
        }
        let count = groups.len();
        if count > MAX_SHARDS {
            return Err(PlanError::TooManyShards);
        }
        let mut seen = HashSet::new();
        if let Some((twice, _)) = weight_map.iter().find(|(name, _)| !seen.insert(name)) {
            let tensor = twice.clone();
            return Err(PlanError::Twice { tensor });
        }
        let shards = groups
            .into_iter()
            .zip(1..)
            .map(|(group, number)| {
                let file = format!("model-{number:05}-of-{count:05}.safetensors");
                PlannedShard::new(&file, group)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { shards, weight_map })
    }

    /// The files to write.
    #[must_use]
    pub fn shards(&self) -> &[PlannedShard] {
        &self.shards
    }

    /// Tensor and number of its shard, in the order the tensors were given.
    #[must_use]
    pub fn weight_map(&self) -> &[(String, usize)] {
        &self.weight_map
    }

    /// The text of `model.safetensors.index.json`.
    #[must_use]
    pub fn index_json(&self) -> String {
        let file = |shard: usize| self.shards[shard].file.as_str();
        Index::encode(
            self.weight_map
                .iter()
                .map(|(name, shard)| (name.as_str(), file(*shard))),
        )
    }

    /// Bytes of data in all shards, without headers.
    #[must_use]
    pub fn data_length(&self) -> u64 {
        self.shards.iter().map(|shard| shard.data_length).sum()
    }
}

impl PlannedShard {
    /// Lays tensors out as the safetensors library does: widest element type first (by [`Dtype`]'s
    /// order), then by name.
    pub fn new(file: &str, mut tensors: Vec<TensorSpec>) -> Result<Self, PlanError> {
        tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
        Self::in_order(file, tensors)
    }

    /// Lays tensors out in the given order, to keep the layout of a file that is rewritten.
    pub fn in_order(file: &str, tensors: Vec<TensorSpec>) -> Result<Self, PlanError> {
        let mut offset = 0_u64;
        let mut placed: Vec<TensorInfo> = Vec::with_capacity(tensors.len());
        let mut seen = HashSet::new();
        for tensor in tensors {
            let bytes = byte_length(&tensor)?;
            let TensorSpec { name, dtype, shape } = tensor;
            if !seen.insert(name.clone()) {
                return Err(PlanError::Twice { tensor: name });
            }
            let Some(end) = offset.checked_add(bytes) else {
                let reason = "the file would be too large";
                return Err(PlanError::Tensor {
                    tensor: name,
                    reason,
                });
            };
            placed.push(TensorInfo {
                name,
                dtype,
                shape,
                bytes,
                offset,
                shard: 0,
            });
            offset = end;
        }
        Ok(Self {
            file: file.to_owned(),
            tensors: placed,
            data_length: offset,
        })
    }

    /// The file's name.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The tensors in the order of their data; here `offset` counts from the start of the data.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_length(&self) -> u64 {
        self.data_length
    }

    /// The length field and the header with `metadata`, its JSON padded to at least `room` bytes.
    #[must_use]
    pub fn header(&self, metadata: &[(String, String)], room: usize) -> Vec<u8> {
        let tensors = self.tensors.iter();
        let tensors = tensors.map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice(), t.bytes));
        header::encode(metadata, tensors, room)
    }
}

impl From<&TensorInfo> for TensorSpec {
    fn from(info: &TensorInfo) -> Self {
        Self {
            name: info.name.clone(),
            dtype: info.dtype,
            shape: info.shape.clone(),
        }
    }
}

fn byte_length(tensor: &TensorSpec) -> Result<u64, PlanError> {
    let fault = |reason| PlanError::Tensor {
        tensor: tensor.name.chars().take(MAX_NAME).collect(),
        reason,
    };
    if tensor.name.is_empty() || tensor.name.len() > MAX_NAME || tensor.name == "__metadata__" {
        return Err(fault("its name is empty, too long or reserved"));
    }
    if tensor.name.chars().any(char::is_control) {
        return Err(fault("its name holds a control character"));
    }
    if tensor.shape.len() > MAX_RANK {
        return Err(fault("it has too many dimensions"));
    }
    let bytes = tensor.dtype.byte_length(&tensor.shape);
    bytes.ok_or_else(|| fault("its shape has no size in whole bytes"))
}
