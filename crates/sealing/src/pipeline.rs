//! Tensors produced and written side by side.

use checkpoint::{ShardWriter, TensorInfo};
use weight_lock::{Domain, LockTable};

use crate::error::SealingError;
use crate::monitor::Monitor;

/// A tensor's bytes, and the domain of its lock where it has one.
pub(crate) type Produced = (Vec<u8>, Option<Domain>);

/// Writes a shard's tensors in the order of their data: while one is written and hashed, the next
/// is produced. Domains go into `table`.
pub(crate) fn write_tensors(
    writer: &ShardWriter,
    file: &str,
    tensors: &[TensorInfo],
    mut table: Option<&mut LockTable>,
    monitor: &Monitor<'_>,
    produce: impl Fn(usize, &TensorInfo) -> Result<Produced, SealingError> + Sync,
) -> Result<(), SealingError> {
    let mut ready: Option<(&TensorInfo, Vec<u8>)> = None;
    for (at, info) in tensors.iter().enumerate() {
        monitor.check()?;
        let (written, produced) = rayon::join(
            || match &ready {
                Some((info, bytes)) => writer.write(&info.name, bytes),
                None => Ok(()),
            },
            || produce(at, info),
        );
        written?;
        if let Some((info, _)) = ready.take() {
            monitor.tensor(info.bytes);
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
