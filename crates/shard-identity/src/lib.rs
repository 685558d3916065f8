//! Base-weight shard manifests (`kiln.base-weight-shards.v1`) and their content aggregate.
//!
//! The aggregate answers "are these the same base-weight bytes?" and nothing else: filenames are
//! for audit, and configuration, tokenizer or adapters are not bound by it.

mod compare;
mod manifest;

pub use compare::{Comparison, Question, compare};
pub use manifest::{
    MAX_SHARDS, ManifestError, Shard, ShardManifest, Summary, aggregate, is_portable_filename,
};
