//! Shard manifests of directories.

use checkpoint::{Checkpoint, WrittenFile};

use crate::error::SealingError;
use crate::locking::tensor_id;
use crate::monitor::Monitor;

/// Digests of a component's shards; a folder's are named `<folder>.<file>`.
pub(crate) fn digest_shards(
    folder: &str,
    checkpoint: &Checkpoint,
    monitor: &Monitor<'_>,
) -> Result<Vec<shard_identity::Shard>, SealingError> {
    let mut out = Vec::new();
    for shard in checkpoint.shards() {
        monitor.check()?;
        let digest = shard.digest(|_| {})?;
        out.push(identity(&WrittenFile {
            path: tensor_id(folder, shard.name()),
            bytes: digest.bytes,
            sha256: digest.sha256,
        }));
    }
    Ok(out)
}

/// A file as a manifest lists it: names there have no folders.
pub(crate) fn identity(file: &WrittenFile) -> shard_identity::Shard {
    shard_identity::Shard {
        filename: file.path.replace('/', "."),
        size_bytes: file.bytes,
        sha256: file.sha256,
    }
}
