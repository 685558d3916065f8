//! Tensors produced and written side by side.

use std::sync::{Mutex, PoisonError};

use checkpoint::{CheckpointError, ShardWriter, TensorInfo, TensorSource};
use weight_lock::{Domain, LockTable};

use crate::error::SealingError;
use crate::monitor::Monitor;

/// A tensor's bytes, and the domain of its lock where it has one.
pub(crate) type Produced = (Vec<u8>, Option<Domain>);

/// Writes a shard's tensors in the order of their data: while one is written and hashed, the next
/// is produced. Domains go into `table`.
pub(crate) fn write_tensors(
    writer: &mut ShardWriter,
    file: &str,
    tensors: &[TensorInfo],
    mut table: Option<&mut LockTable>,
    monitor: &Monitor<'_>,
    produce: impl Fn(usize, &TensorInfo, &Buffers) -> Result<Produced, SealingError> + Sync,
) -> Result<(), SealingError> {
    let buffers = Buffers::default();
    let mut ready: Option<(&TensorInfo, Vec<u8>)> = None;
    for (at, info) in tensors.iter().enumerate() {
        monitor.check()?;
        let (written, produced) = rayon::join(
            || match &ready {
                Some((info, bytes)) => writer.write(&info.name, bytes),
                None => Ok(()),
            },
            || produce(at, info, &buffers),
        );
        written?;
        if let Some((info, bytes)) = ready.take() {
            monitor.tensor(info.bytes);
            buffers.give_back(bytes);
        }
        let (bytes, domain) = produced?;
        if let (Some(table), Some(domain)) = (table.as_deref_mut(), domain) {
            let inserted = table.insert(&info.name, domain);
            inserted.map_err(|source| SealingError::LockRecord {
                file: file.to_owned(),
                source,
            })?;
        }
        ready = Some((info, bytes));
    }
    if let Some((info, bytes)) = ready {
        writer.write(&info.name, &bytes)?;
        monitor.tensor(info.bytes);
    }
    Ok(())
}

/// Memory of tensors that are written, for the next ones: fresh memory costs a page fault for
/// every page, which is more than a memory copy.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// `length` bytes of unspecified content.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.sort_by_key(Vec::capacity);
        let fits = free.iter().position(|bytes| bytes.capacity() >= length);
        // What is too small makes room for what is allocated.
        let buffer = (!free.is_empty()).then(|| free.remove(fits.unwrap_or(0)));
        drop(free);
        match (buffer, fits) {
            (Some(mut buffer), Some(_)) => {
                buffer.resize(length, 0);
                buffer
            }
            (small, _) => {
                drop(small);
                vec![0; length]
            }
        }
    }

    pub(crate) fn give_back(&self, bytes: Vec<u8>) {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(bytes);
    }

    /// A whole tensor.
    pub(crate) fn read(
        &self,
        source: &dyn TensorSource,
        name: &str,
    ) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = self.take(source.require(name)?.bytes as usize);
        source.read(name, &mut bytes)?;
        Ok(bytes)
    }
}
