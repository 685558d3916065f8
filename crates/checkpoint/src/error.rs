use std::io;
use std::path::PathBuf;

use crate::header::HeaderError;
use crate::index::IndexError;
use crate::json::JsonError;
use crate::plan::PlanError;

/// Why a checkpoint could not be read or written. `file` is relative to the checkpoint's root.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    // The checkpoint is at fault.
    /// A safetensors header was refused.
    #[error("{file}: refused safetensors header")]
    Header {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: HeaderError,
    },
    /// The index was refused.
    #[error("{file}: refused index")]
    Index {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: IndexError,
    },
    /// A JSON file was refused.
    #[error("{file}: refused")]
    Json {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: JsonError,
    },
    /// The directory has no safetensors weights.
    #[error("{directory}: no safetensors files", directory = directory.display())]
    NoWeights {
        /// The directory.
        directory: PathBuf,
    },
    /// Several indexes, none of the usual name.
    #[error("several index files ({first}, {second}): which one holds is unclear")]
    SeveralIndexes {
        /// One.
        first: String,
        /// Another.
        second: String,
    },
    /// The index, or a shard's own numbering, names a shard that is not there.
    #[error("{named_by} names the shard {shard:?}, which is not there")]
    MissingShard {
        /// The shard.
        shard: String,
        /// The index, or the shard whose number says so.
        named_by: String,
    },
    /// A shard holds a tensor that the index does not name.
    #[error("{shard}: holds tensor {tensor:?}, which the index does not name")]
    NotInIndex {
        /// The shard.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// The index places a tensor in a shard that does not hold it.
    #[error("{shard}: the index places tensor {tensor:?} here, but the shard does not hold it")]
    NotInShard {
        /// The shard.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// Two shards hold a tensor of one name.
    #[error("tensor {tensor:?} is in both {first} and {second}")]
    TwoShards {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
    /// A path that could leave the directory, or that other systems read differently.
    #[error("path {path:?} is refused: {reason}")]
    Path {
        /// The path as it was given.
        path: String,
        /// Why.
        reason: &'static str,
    },
    /// Not a regular file beneath the root: a symbolic link, a device, a pipe.
    #[error("{file}: refused: {reason}")]
    NotRegular {
        /// The file.
        file: String,
        /// What it is.
        reason: &'static str,
    },
    /// The file is larger than its kind may be.
    #[error("{file}: {bytes} bytes, above the maximum {maximum}")]
    TooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// The largest accepted.
        maximum: u64,
    },
    /// More files or folders than a checkpoint may have.
    #[error("more than {maximum} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The most accepted.
        maximum: usize,
    },
    /// The file changed while it was being read.
    #[error("{file}: its size changed from {before} to {after} bytes while it was read")]
    Changed {
        /// The file.
        file: String,
        /// Size when it was opened.
        before: u64,
        /// Size now.
        after: u64,
    },

    // The caller is at fault.
    /// No tensor of that name.
    #[error("no tensor {tensor:?}")]
    NoTensor {
        /// The name.
        tensor: String,
    },
    /// A buffer or range that does not fit the tensor.
    #[error("tensor {tensor:?}: bytes {start}..{end} asked, it has {bytes}")]
    Range {
        /// The tensor.
        tensor: String,
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
        /// The tensor's length.
        bytes: u64,
    },
    /// The output is there already.
    #[error("{path}: exists already", path = path.display())]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// A shard was finished before all its tensors were written.
    #[error("{file}: tensor {tensor:?} is not written")]
    Incomplete {
        /// The file.
        file: String,
        /// The first such tensor.
        tensor: String,
    },
    /// A shard's tensors were not written in the order of the file.
    #[error("{file}: tensor {tensor:?} is written out of order; {next:?} comes next")]
    Order {
        /// The file.
        file: String,
        /// The tensor given.
        tensor: String,
        /// The tensor that comes next, where one is left.
        next: Option<String>,
    },
    /// A locked shard's final metadata does not fit the space kept for the header.
    #[error("{file}: the header needs {needed} bytes, {kept} were kept")]
    HeaderRoom {
        /// The file.
        file: String,
        /// Bytes of the final header.
        needed: usize,
        /// Bytes kept for it.
        kept: usize,
    },
    /// Tensors that cannot be laid out in shards.
    #[error("the output cannot be laid out")]
    Plan(#[from] PlanError),
    /// A source that computes its tensors failed.
    #[error("tensor {tensor:?} could not be produced")]
    Produce {
        /// The tensor.
        tensor: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    // The machine is at fault.
    /// Too little space for the output.
    #[error("{path}: {needed} bytes are needed, {free} are free", path = path.display())]
    NoSpace {
        /// The file system's directory.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A system call failed.
    #[error("{file}: could not {action}")]
    Io {
        /// The file.
        file: String,
        /// What was tried.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl CheckpointError {
    pub(crate) fn io(
        file: impl Into<String>,
        action: &'static str,
        source: impl Into<io::Error>,
    ) -> Self {
        Self::Io {
            file: file.into(),
            action,
            source: source.into(),
        }
    }
}
