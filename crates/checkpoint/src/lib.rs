//! Hugging Face checkpoints: strict safetensors headers, directories, shard writer.
//!
//! Reading: [`Checkpoint`] opens a directory strictly beneath its root, driven by its index, and
//! gives tensors through [`TensorSource`]. Writing: [`ShardPlan`] lays tensors out as the
//! safetensors library does, [`ShardWriter`] writes them one after another past the page cache,
//! [`StagedDir`] makes a directory appear whole or not at all.

mod directory;
mod dtype;
mod error;
pub mod header;
mod index;
pub mod json;
mod plan;
mod root;
mod source;
mod staged;
mod writer;

pub use directory::{Checkpoint, Shard, ShardDigest};
pub use dtype::{Dtype, element_count};
pub use error::CheckpointError;
pub use header::{Header, HeaderError, TensorInfo};
pub use index::{Index, IndexError};
pub use plan::{PlanError, PlannedShard, SHARD_LIMIT, ShardPlan, TensorSpec};
pub use root::{FileEntry, FileKind, Root, SourceFile, check_relative};
pub use source::TensorSource;
pub use staged::{StagedDir, free_space};
pub use writer::{ShardWriter, WrittenFile};
