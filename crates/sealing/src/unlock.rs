//! Shards of a sealed directory with another lock, or none.

use checkpoint::{
    Checkpoint, PlannedShard, Root, Shard, ShardWriter, StagedDir, TensorInfo, TensorSpec,
};
use model_key::SubkeySource;
use weight_lock::{Domain, HEADER_KEY, LockTable, Version};

use crate::error::SealingError;
use crate::files::{self, folder_of};
use crate::locking::{lock, lock_subkey, scan, tensor_id, unlock as unlock_bytes};
use crate::metadata::SealMetadata;
use crate::monitor::Monitor;
use crate::pipeline::write_tensors;
use crate::seal::SealedShard;

/// The lock that is taken off and the one that is put on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change {
    pub from: Option<Version>,
    pub to: Option<Version>,
}

/// The weights of one folder that a lock is on.
pub(crate) struct Weights {
    pub folder: String,
    pub checkpoint: Checkpoint,
    /// The lock record of each shard; `None` where nothing is locked.
    pub tables: Vec<Option<LockTable>>,
}

impl Weights {
    pub(crate) fn shard(&self, name: &str) -> Option<usize> {
        let shards = self.checkpoint.shards();
        shards.iter().position(|shard| shard.name() == name)
    }

    /// The domain of a tensor's lock.
    pub(crate) fn domain(&self, info: &TensorInfo) -> Result<Option<Domain>, SealingError> {
        let Some(table) = &self.tables[info.shard] else {
            return Ok(None);
        };
        table
            .domain(&info.name, info.dtype.name())
            .map_err(|source| {
                let shard = &self.checkpoint.shards()[info.shard];
                SealingError::LockRecord {
                    file: tensor_id(&self.folder, shard.name()),
                    source,
                }
            })
    }
}

/// Opens every folder of weights and reads and checks its lock records.
pub(crate) fn weights(
    root: &Root,
    metadata: &SealMetadata,
    lock: Option<Version>,
) -> Result<Vec<Weights>, SealingError> {
    let mut folders: Vec<String> = if metadata.is_pipeline() {
        let entries = root.list()?.into_iter();
        let shards = entries.filter(|entry| entry.path.ends_with(".safetensors"));
        let folders = shards.map(|entry| folder_of(&entry.path).to_owned());
        folders
            .filter(|folder| !files::is_never_locked(folder))
            .collect()
    } else {
        vec![String::new()]
    };
    folders.sort();
    folders.dedup();
    let mut out = Vec::new();
    for folder in folders {
        let checkpoint = match folder.as_str() {
            "" => Checkpoint::open(root.path())?,
            folder => Checkpoint::from_root(root.folder(folder)?)?,
        };
        let tables = checkpoint.shards().iter().map(|shard| match lock {
            Some(version) => lock_table(&folder, shard, version),
            None => Ok(None),
        });
        out.push(Weights {
            tables: tables.collect::<Result<_, _>>()?,
            folder,
            checkpoint,
        });
    }
    Ok(out)
}

fn lock_table(
    folder: &str,
    shard: &Shard,
    version: Version,
) -> Result<Option<LockTable>, SealingError> {
    let file = tensor_id(folder, shard.name());
    let tensors = shard.header().tensors();
    let Some(text) = shard.header().metadata_value(HEADER_KEY) else {
        let coded = |info: &TensorInfo| {
            crate::locking::lockable(version, info.dtype, false, info.bytes).is_some()
        };
        if tensors.iter().any(coded) {
            return Err(SealingError::NoLockRecord { file });
        }
        return Ok(None);
    };
    let refused = |source| SealingError::LockRecord {
        file: file.clone(),
        source,
    };
    let table = LockTable::parse(text, version).map_err(refused)?;
    let names = tensors
        .iter()
        .map(|info| (info.name.as_str(), info.dtype.name()));
    table.check(names).map_err(refused)?;
    Ok(Some(table))
}

/// Writes one shard with its lock changed and its layout kept.
pub(crate) fn change_shard(
    weights: &Weights,
    number: usize,
    change: Change,
    keys: Option<&dyn SubkeySource>,
    out: &StagedDir,
    monitor: &Monitor<'_>,
) -> Result<SealedShard, SealingError> {
    let shard = &weights.checkpoint.shards()[number];
    let path = tensor_id(&weights.folder, shard.name());
    let (Some(table), Some(keys)) = (&weights.tables[number], keys) else {
        return Ok(SealedShard {
            file: out.copy_file(shard.file(), &path)?,
            locked: Vec::new(),
        });
    };
    let tensors = shard.header().tensors().iter().map(TensorSpec::from);
    let planned = PlannedShard::in_order(shard.name(), tensors.collect())
        .map_err(checkpoint::CheckpointError::from)?;
    let folder = match weights.folder.as_str() {
        "" => out.path().to_owned(),
        folder => out.folder(folder)?,
    };
    let kept = shard
        .header()
        .metadata()
        .iter()
        .filter(|(key, _)| key != HEADER_KEY);
    let mut metadata: Vec<(String, String)> = kept.cloned().collect();
    let mut renewed = change.to.map(LockTable::new);
    let mut writer = match change.to {
        None => ShardWriter::create(&folder, &planned, &metadata)?,
        Some(version) => {
            let mut widest = metadata.clone();
            let record = widest_record(weights, shard, version)?;
            widest.push((HEADER_KEY.to_owned(), record.to_text()));
            ShardWriter::create_reserving(&folder, &planned, &widest)?
        }
    };
    let tensors = planned.tensors();
    write_tensors(
        &mut writer,
        &path,
        tensors,
        renewed.as_mut(),
        monitor,
        |_, info, buffers| {
            let mut bytes = buffers.read(&weights.checkpoint, &info.name)?;
            let in_shard = TensorInfo {
                shard: number,
                ..info.clone()
            };
            let Some(domain) = weights.domain(&in_shard)? else {
                return Ok((bytes, None));
            };
            let lock_error = |source| SealingError::Lock {
                file: path.clone(),
                tensor: info.name.clone(),
                source,
            };
            let id = lock_subkey(table.version(), &weights.folder, &info.name)?;
            unlock_bytes(keys, &id, table.version(), domain, 0, &mut bytes)?.map_err(lock_error)?;
            let Some(version) = change.to else {
                return Ok((bytes, None));
            };
            let domain = scan(domain.element(), &bytes).map_err(lock_error)?;
            if let Some(domain) = domain {
                let id = lock_subkey(version, &weights.folder, &info.name)?;
                lock(keys, &id, version, domain, &mut bytes)?.map_err(lock_error)?;
            }
            Ok((bytes, domain))
        },
    )?;
    let mut file = match &renewed {
        None => writer.finish()?,
        Some(table) => {
            metadata.push((HEADER_KEY.to_owned(), table.to_text()));
            writer.finish_with(&metadata)?
        }
    };
    file.path = path;
    let entries = renewed.iter().flat_map(|table| table.entries());
    let locked = entries.map(|(name, entry)| (tensor_id(&weights.folder, name), *entry));
    Ok(SealedShard {
        file,
        locked: locked.collect(),
    })
}

fn widest_record(
    weights: &Weights,
    shard: &Shard,
    version: Version,
) -> Result<LockTable, SealingError> {
    let mut record = LockTable::new(version);
    let number = weights.shard(shard.name()).unwrap_or_default();
    for info in shard.header().tensors() {
        let info = TensorInfo {
            shard: number,
            ..info.clone()
        };
        if let Some(domain) = weights.domain(&info)? {
            let widest = Domain::widest(domain.element());
            record
                .insert(&info.name, widest)
                .map_err(|source| SealingError::LockRecord {
                    file: tensor_id(&weights.folder, shard.name()),
                    source,
                })?;
        }
    }
    Ok(record)
}
