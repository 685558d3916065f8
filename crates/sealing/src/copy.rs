//! Copies of a sealed directory with another lock, or none, planned before a key is used and
//! resumable file by file.

use std::path::Path;

use checkpoint::json::{Style, write};
use checkpoint::{CheckpointError, FileEntry, Root, StagedDir, TensorSource as _, WrittenFile};
use identifiers::Sha256Digest;
use model_key::{SubkeyId, SubkeySource};
use shard_identity::ShardManifest;
use weight_lock::{Version, table_digest};

use crate::error::SealingError;
use crate::files::{self, base_name, folder_of};
use crate::locking::lock_subkey;
use crate::manifest::identity;
use crate::metadata::{SealMetadata, with_lock};
use crate::monitor::Monitor;
use crate::seal::SealedShard;
use crate::store::MODEL_SIGNATURE;
use crate::unlock::{Change, Weights, change_shard, weights};

/// A sealed directory and what its copy will be. Made without a key.
pub struct CopyPlan {
    root: Root,
    metadata: SealMetadata,
    change: Change,
    weights: Vec<Weights>,
    files: Vec<PlannedCopy>,
}

/// A copy that was written.
#[derive(Debug, Clone)]
pub struct CopyReport {
    /// Every file written, sorted by path.
    pub written: Vec<WrittenFile>,
    /// Files of the directory that are not in the copy, and why.
    pub left_out: Vec<(String, &'static str)>,
    /// The copy's weights.
    pub weights: ShardManifest,
    /// Digest of all lock records, where the copy is locked.
    pub lock_table: Option<Sha256Digest>,
}

/// A plan bound to a key. The same plan and key give the same bytes.
pub struct Copier<'a> {
    plan: &'a CopyPlan,
    keys: Option<&'a dyn SubkeySource>,
}

struct PlannedCopy {
    entry: FileEntry,
    fate: Fate,
}

enum Fate {
    /// Shard `shard` of `weights[folder]`: its lock is changed.
    Shard {
        folder: usize,
        shard: usize,
    },
    /// The seal metadata: its lock flag is changed.
    Metadata,
    Copy,
    LeaveOut(&'static str),
}

impl CopyPlan {
    /// A copy of a locked directory without its lock.
    pub fn unlock(sealed: Root) -> Result<Self, SealingError> {
        let metadata = SealMetadata::require(&sealed)?;
        let Some(version) = metadata.lock else {
            return Err(SealingError::NotLocked {
                file: metadata.file,
            });
        };
        let change = Change {
            from: Some(version),
            to: None,
        };
        Self::new(sealed, metadata, change, &|_| None)
    }

    /// A copy of a directory locked with version 1 that is locked with version 2.
    pub fn relock(sealed: Root) -> Result<Self, SealingError> {
        let metadata = SealMetadata::require(&sealed)?;
        if metadata.lock != Some(Version::V1) {
            return Err(SealingError::Metadata {
                file: metadata.file,
                field: "lock",
                problem: "only a lock of version v1 is relocked".to_owned(),
            });
        }
        let change = Change {
            from: Some(Version::V1),
            to: Some(Version::V2),
        };
        Self::new(sealed, metadata, change, &|_| None)
    }

    /// A copy that leaves files out, without a lock.
    pub(crate) fn without(
        sealed: Root,
        metadata: SealMetadata,
        omit: &dyn Fn(&str) -> Option<&'static str>,
    ) -> Result<Self, SealingError> {
        let change = Change {
            from: metadata.lock,
            to: None,
        };
        Self::new(sealed, metadata, change, omit)
    }

    fn new(
        root: Root,
        metadata: SealMetadata,
        change: Change,
        omit: &dyn Fn(&str) -> Option<&'static str>,
    ) -> Result<Self, SealingError> {
        let weights = weights(&root, &metadata, change.from)?;
        let mut files = Vec::new();
        for entry in root.list()? {
            files::require_regular(&entry)?;
            let fate = match omit(&entry.path) {
                Some(reason) => Fate::LeaveOut(reason),
                None if entry.path == MODEL_SIGNATURE => {
                    Fate::LeaveOut("signs the files as they were before")
                }
                None => fate(&entry.path, &metadata, &weights),
            };
            files.push(PlannedCopy { entry, fate });
        }
        Ok(Self {
            root,
            metadata,
            change,
            weights,
            files,
        })
    }

    /// The directory's seal metadata.
    #[must_use]
    pub fn metadata(&self) -> &SealMetadata {
        &self.metadata
    }

    /// The lock that the copy will have.
    #[must_use]
    pub const fn lock(&self) -> Option<Version> {
        self.change.to
    }

    /// How many files the directory has.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// The path of a file.
    #[must_use]
    pub fn path(&self, file: usize) -> &str {
        &self.files[file].entry.path
    }

    /// Bytes of a file, about what its copy takes on disk; 0 for one that is left out.
    #[must_use]
    pub fn file_bytes(&self, file: usize) -> u64 {
        match self.files[file].fate {
            Fate::LeaveOut(_) => 0,
            _ => self.files[file].entry.bytes,
        }
    }

    /// Why a file will not be in the copy, if so.
    #[must_use]
    pub fn left_out(&self, file: usize) -> Option<&'static str> {
        match self.files[file].fate {
            Fate::LeaveOut(reason) => Some(reason),
            _ => None,
        }
    }

    /// Whether a file is a shard of the weights whose lock is changed.
    #[must_use]
    pub fn is_shard(&self, file: usize) -> bool {
        matches!(self.files[file].fate, Fate::Shard { .. })
    }

    /// Every subkey that the copy will ask for: none where there is no lock to take off.
    pub fn subkeys(&self) -> Result<Vec<SubkeyId>, SealingError> {
        let mut all = Vec::new();
        let Some(from) = self.change.from else {
            return Ok(all);
        };
        for weights in &self.weights {
            for info in weights.checkpoint.tensors() {
                if weights.domain(info)?.is_none() {
                    continue;
                }
                for version in [Some(from), self.change.to].into_iter().flatten() {
                    all.push(lock_subkey(version, &weights.folder, &info.name)?);
                }
            }
        }
        Ok(all)
    }

    /// The subkey of one tensor's lock, in the weights of `folder` ("" for a language model's).
    pub fn lock_subkey(&self, folder: &str, tensor: &str) -> Result<SubkeyId, SealingError> {
        let absent = || CheckpointError::NoTensor {
            tensor: tensor.to_owned(),
        };
        let weights = self.weights.iter().find(|w| w.folder == folder);
        let weights = weights.ok_or_else(absent)?;
        weights.checkpoint.require(tensor)?;
        let version = self.change.from.unwrap_or(Version::V2);
        lock_subkey(version, folder, tensor)
    }

    /// Binds the plan to a key, whose fingerprint is compared. A copy of a directory that is not
    /// locked needs none.
    pub fn bind<'a>(
        &'a self,
        keys: Option<&'a dyn SubkeySource>,
    ) -> Result<Copier<'a>, SealingError> {
        match keys {
            Some(keys) => self.metadata.check_key(keys)?,
            None if self.change.from.is_none() => {}
            None => {
                return Err(SealingError::KeyNeeded {
                    file: self.metadata.file.clone(),
                });
            }
        }
        Ok(Copier { plan: self, keys })
    }

    /// The copy of every file that is not left out, in order.
    pub fn report(&self, copies: &[SealedShard]) -> Result<CopyReport, SealingError> {
        let left_out = self.files.iter().filter_map(|file| match file.fate {
            Fate::LeaveOut(reason) => Some((file.entry.path.clone(), reason)),
            _ => None,
        });
        let kept = (0..self.files.len()).filter(|file| self.left_out(*file).is_none());
        let shards = kept.zip(copies).filter(|(file, _)| self.is_shard(*file));
        let shards = shards.map(|(_, copy)| identity(&copy.file)).collect();
        let entries = copies.iter().flat_map(|copy| &copy.locked);
        let entries = entries.map(|(id, entry)| (id.as_str(), *entry));
        let table = |version| Sha256Digest::new(table_digest(version, entries));
        let mut written: Vec<WrittenFile> = copies.iter().map(|copy| copy.file.clone()).collect();
        written.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(CopyReport {
            written,
            left_out: left_out.collect(),
            weights: ShardManifest::new(shards)?,
            lock_table: self.change.to.map(table),
        })
    }
}

impl Copier<'_> {
    /// Writes one file that is not left out into the output under way, in any order and apart from
    /// the others.
    pub fn copy(
        &self,
        file: usize,
        out: &StagedDir,
        monitor: &Monitor<'_>,
    ) -> Result<SealedShard, SealingError> {
        monitor.check()?;
        let plan = self.plan;
        let path = plan.path(file);
        let written = match plan.files[file].fate {
            Fate::Shard { folder, shard } => {
                let (weights, keys) = (&plan.weights[folder], self.keys);
                return change_shard(weights, shard, plan.change, keys, out, monitor);
            }
            Fate::Metadata => {
                let value = with_lock(&plan.metadata, plan.root.read_json(path)?, plan.change.to);
                out.write_file(path, write(&value, Style::Indented).as_bytes())?
            }
            Fate::Copy | Fate::LeaveOut(_) => out.copy_file(&plan.root.open_file(path)?, path)?,
        };
        Ok(SealedShard {
            file: written,
            locked: Vec::new(),
        })
    }

    /// Writes the whole copy. `target` must not exist and appears whole or not at all.
    fn write(&self, target: &Path, monitor: &Monitor<'_>) -> Result<CopyReport, SealingError> {
        let plan = self.plan;
        plan.root.require_outside(target)?;
        let out = StagedDir::create(target)?;
        let files = 0..plan.files();
        out.require_space(files.clone().map(|file| plan.file_bytes(file)).sum())?;
        let kept = files.filter(|file| plan.left_out(*file).is_none());
        let copies: Vec<SealedShard> = kept
            .map(|file| self.copy(file, &out, monitor))
            .collect::<Result<_, _>>()?;
        let report = plan.report(&copies)?;
        out.commit()?;
        Ok(report)
    }
}

/// Writes a copy of a locked directory without its lock. `target` must not exist and appears
/// whole or not at all.
pub fn unlock(
    sealed: &Path,
    keys: &dyn SubkeySource,
    target: &Path,
    monitor: &Monitor<'_>,
) -> Result<CopyReport, SealingError> {
    let plan = CopyPlan::unlock(Root::open(sealed)?)?;
    plan.bind(Some(keys))?.write(target, monitor)
}

/// Writes a copy of a directory locked with version 1 that is locked with version 2.
pub fn relock(
    sealed: &Path,
    keys: &dyn SubkeySource,
    target: &Path,
    monitor: &Monitor<'_>,
) -> Result<CopyReport, SealingError> {
    let plan = CopyPlan::relock(Root::open(sealed)?)?;
    plan.bind(Some(keys))?.write(target, monitor)
}

/// Writes everything of a sealed directory but what stays with the key's holder: the trusted blob,
/// keys, tokenizer files, chat templates and the folders of tokenizer, processor and autoencoder.
/// Locked weights are unlocked on the way, which needs the key.
pub fn cloud_export(
    sealed: &Path,
    keys: Option<&dyn SubkeySource>,
    target: &Path,
    monitor: &Monitor<'_>,
) -> Result<CopyReport, SealingError> {
    let plan = CopyPlan::cloud(Root::open(sealed)?)?;
    plan.bind(keys)?.write(target, monitor)
}

fn fate(path: &str, metadata: &SealMetadata, weights: &[Weights]) -> Fate {
    let folder = weights.iter().position(|w| w.folder == folder_of(path));
    let shard = folder.and_then(|folder| weights[folder].shard(base_name(path)));
    match (folder, shard) {
        (Some(folder), Some(shard)) => Fate::Shard { folder, shard },
        (Some(_), None) if path.ends_with(".safetensors") => {
            Fate::LeaveOut("safetensors outside the index")
        }
        _ if path == metadata.file => Fate::Metadata,
        _ => Fate::Copy,
    }
}
