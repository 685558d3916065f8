//! A sealed directory read as unlocked tensors in the secret basis.

use std::path::Path;

use checkpoint::{CheckpointError, PlannedShard, Root, TensorInfo, TensorSource, TensorSpec};
use model_key::SubkeySource;
use weight_lock::Version;

use crate::error::SealingError;
use crate::locking::{lock_subkey, unlock};
use crate::metadata::SealMetadata;
use crate::unlock::{Weights, weights};

/// The weights of a sealed directory, or of one folder of a sealed pipeline, unlocked as they are
/// read. Nothing is written anywhere.
pub struct UnlockingSource<'a> {
    weights: Weights,
    keys: &'a dyn SubkeySource,
    lock: Option<Version>,
    metadata: SealMetadata,
}

impl<'a> UnlockingSource<'a> {
    /// Opens the weights in `folder` ("" for a language model's). The fingerprint is compared
    /// first, and every lock record is checked.
    pub fn open(
        root: &Root,
        folder: &str,
        keys: &'a dyn SubkeySource,
    ) -> Result<Self, SealingError> {
        let metadata = SealMetadata::require(root)?;
        metadata.check_key(keys)?;
        let all = weights(root, &metadata, metadata.lock)?;
        let found = all.into_iter().find(|weights| weights.folder == folder);
        let weights = found.ok_or_else(|| CheckpointError::NoWeights {
            directory: root.path().join(folder),
        })?;
        Ok(Self {
            weights,
            keys,
            lock: metadata.lock,
            metadata,
        })
    }

    /// The directory's seal metadata.
    #[must_use]
    pub fn metadata(&self) -> &SealMetadata {
        &self.metadata
    }

    fn unlock(&self, info: &TensorInfo, at: u64, bytes: &mut [u8]) -> Result<(), SealingError> {
        let Some(version) = self.lock else {
            return Ok(());
        };
        let Some(domain) = self.weights.domain(info)? else {
            return Ok(());
        };
        let id = lock_subkey(version, &self.weights.folder, &info.name)?;
        let unlocked = unlock(self.keys, &id, version, domain, at, bytes)?;
        unlocked.map_err(|source| SealingError::Lock {
            file: self.weights.checkpoint.shards()[info.shard]
                .name()
                .to_owned(),
            tensor: info.name.clone(),
            source,
        })
    }
}

/// One tensor of a locked directory without its lock.
#[derive(Debug)]
pub struct UnlockedTensor {
    /// What it is.
    pub info: TensorInfo,
    /// Its values.
    pub bytes: Vec<u8>,
}

/// Unlocks one tensor of the weights in `folder` ("" for a language model's) and reads nothing else
/// of them but headers.
pub fn unlock_tensor(
    sealed: &Path,
    keys: &dyn SubkeySource,
    folder: &str,
    tensor: &str,
) -> Result<UnlockedTensor, SealingError> {
    let root = Root::open(sealed)?;
    let source = UnlockingSource::open(&root, folder, keys)?;
    if source.lock.is_none() {
        return Err(SealingError::NotLocked {
            file: source.metadata.file,
        });
    }
    let info = source.require(tensor)?.clone();
    let mut bytes = vec![0; info.bytes as usize];
    source.read(tensor, &mut bytes)?;
    Ok(UnlockedTensor { info, bytes })
}

impl UnlockedTensor {
    /// The bytes that stand before the values in a safetensors file of this tensor alone.
    pub fn header(&self) -> Result<Vec<u8>, SealingError> {
        let specs = vec![TensorSpec::from(&self.info)];
        let plan = PlannedShard::in_order("tensor.safetensors", specs);
        let metadata = [("format".to_owned(), "pt".to_owned())];
        Ok(plan.map_err(CheckpointError::from)?.header(&metadata, 0))
    }
}

impl TensorSource for UnlockingSource<'_> {
    fn tensors(&self) -> &[TensorInfo] {
        self.weights.checkpoint.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.weights.checkpoint.tensor(name)
    }

    fn read(&self, name: &str, out: &mut [u8]) -> Result<(), CheckpointError> {
        self.weights.checkpoint.read(name, out)?;
        let info = self.require(name)?;
        self.unlock(info, 0, out)
            .map_err(|error| produce(name, error))
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let info = self.require(name)?;
        // A part is unlocked from the edge of a value on.
        let width = (info.dtype.bits() / 8).max(1);
        let start = offset - offset % width;
        let end = (offset + out.len() as u64)
            .next_multiple_of(width)
            .min(info.bytes);
        let mut whole = vec![0; end.saturating_sub(start) as usize];
        self.weights.checkpoint.read_at(name, start, &mut whole)?;
        self.unlock(info, start, &mut whole)
            .map_err(|error| produce(name, error))?;
        let from = (offset - start) as usize;
        out.copy_from_slice(&whole[from..from + out.len()]);
        Ok(())
    }
}

fn produce(tensor: &str, source: SealingError) -> CheckpointError {
    CheckpointError::Produce {
        tensor: tensor.to_owned(),
        source: Box::new(source),
    }
}
