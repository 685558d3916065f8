use crate::error::CheckpointError;
use crate::header::TensorInfo;

/// Tensors by name: a checkpoint on disk, or one that is unlocked as it is read.
pub trait TensorSource: Sync {
    /// Every tensor, in source order: shards by name, then tensors by name (the order in which the
    /// safetensors reader lists a file's names).
    fn tensors(&self) -> &[TensorInfo];

    /// Fills `out`, which must have the tensor's exact length, with its data.
    fn read(&self, name: &str, out: &mut [u8]) -> Result<(), CheckpointError>;

    /// Fills `out` with the tensor's bytes from `offset` on. Sources that can read a part override
    /// this; by default the whole tensor is read.
    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let info = self.require(name)?;
        let range = range_of(info, offset, out.len())?;
        let mut whole = vec![0; info.bytes as usize];
        self.read(name, &mut whole)?;
        out.copy_from_slice(&whole[range.start as usize..range.end as usize]);
        Ok(())
    }

    /// The tensor of that name.
    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors().iter().find(|info| info.name == name)
    }

    /// The tensor of that name, or an error that says there is none.
    fn require(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        self.tensor(name).ok_or_else(|| CheckpointError::NoTensor {
            tensor: name.to_owned(),
        })
    }
}

/// The bytes `offset..offset + length` of a tensor, checked.
pub(crate) fn range_of(
    info: &TensorInfo,
    offset: u64,
    length: usize,
) -> Result<std::ops::Range<u64>, CheckpointError> {
    let end = offset.saturating_add(length as u64);
    if end > info.bytes {
        return Err(CheckpointError::Range {
            tensor: info.name.clone(),
            start: offset,
            end,
            bytes: info.bytes,
        });
    }
    Ok(offset..end)
}
