//! Sealing, planned before a key is used and resumable shard by shard.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::thread::ScopedJoinHandle;

use checkpoint::json::{Style, write};
use checkpoint::{
    CheckpointError, Root, ShardWriter, StagedDir, TensorInfo, TensorSource, WrittenFile,
};
use identifiers::Sha256Digest;
use model_key::{Component as KeyComponent, Label, SubkeyId, SubkeySource};
use shard_identity::ShardManifest;
use weight_lock::{
    Domain, Element, Entry, HEADER_KEY, LockError, LockTable, Version, table_digest,
};
use weight_transform::{Basis, Recipe, subkeys};

use crate::blob::{Payload, seal_blob};
use crate::component::{Component, element};
use crate::error::SealingError;
use crate::files::Outcome;
use crate::layout::{OutputShard, lay_out};
use crate::locking::{lock as put_lock, lock_subkey, lockable, scan, tensor_id};
use crate::manifest::{digest_shards, identity};
use crate::monitor::Monitor;
use crate::pipeline::{Buffers, write_tensors};
use crate::rewrite;
use crate::scheme::{FilePlan, Scheme, SealOptions};

/// A source directory and what sealing it will write. Made without a key.
pub struct SealPlan {
    root: Root,
    options: SealOptions,
    scheme: Scheme,
}

/// What became of one file, in source or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileReport {
    /// Path in the source, or in the output where the source has none.
    pub path: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// A seal that is finished.
#[derive(Debug, Clone)]
pub struct SealReport {
    /// The seal metadata object, as JSON text.
    pub metadata: String,
    /// Every source file and what became of it, then files that only the output has.
    pub files: Vec<FileReport>,
    /// Every output file with its size and SHA-256, sorted by path.
    pub written: Vec<WrittenFile>,
    /// The source's weights.
    pub source: ShardManifest,
    /// The sealed weights.
    pub sealed: ShardManifest,
    /// Digest of all lock records, where the weights are locked.
    pub lock_table: Option<Sha256Digest>,
}

/// One shard that was sealed: what a service keeps to resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedShard {
    /// The file.
    pub file: WrittenFile,
    /// The lock record's entries, by tensor id.
    pub locked: Vec<(String, Entry)>,
}

impl SealPlan {
    /// Looks at a source directory: every refusal that needs no key is made here.
    pub fn new(source: &Path, options: SealOptions) -> Result<Self, SealingError> {
        Self::from_root(Root::open(source)?, options)
    }

    /// As [`SealPlan::new`], of a directory that is open: no path is resolved again.
    pub fn from_root(root: Root, options: SealOptions) -> Result<Self, SealingError> {
        let scheme = Scheme::of(&root, &options)?;
        Ok(Self {
            root,
            options,
            scheme,
        })
    }

    /// The scheme that the directory is sealed under.
    #[must_use]
    pub fn scheme(&self) -> crate::metadata::Scheme {
        self.scheme.kind(&self.options)
    }

    /// Whether the directory is a pipeline of component folders.
    #[must_use]
    pub fn is_pipeline(&self) -> bool {
        matches!(
            self.scheme.metadata,
            crate::scheme::Metadata::Pipeline { .. }
        )
    }

    /// Whether a file of this path is in the source.
    pub fn has_source_file(&self, path: &str) -> Result<bool, SealingError> {
        Ok(self.root.has_file(path)?)
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &SealOptions {
        &self.options
    }

    /// Every subkey that the seal will ask for, sorted and without repetition. The trusted blob's
    /// is among them.
    pub fn subkeys(&self) -> Result<Vec<SubkeyId>, SealingError> {
        let mut all = BTreeSet::new();
        for component in &self.scheme.components {
            all.extend(subkeys(&component.recipes)?);
            let mut locks = Vec::new();
            component.lock_subkeys(&mut locks)?;
            all.extend(locks);
        }
        for file in &self.scheme.files {
            match &file.plan {
                FilePlan::Tokenizer(_, tokens) | FilePlan::VocabularyFile(_, tokens) => {
                    all.insert(tokens.subkey());
                }
                FilePlan::LatentStatistics(_, latent, _) => {
                    all.insert(latent.subkey());
                }
                _ => {}
            }
        }
        all.insert(SubkeyId {
            component: KeyComponent::Model,
            label: Label::TrustedBlob(self.options.salt),
        });
        Ok(all.into_iter().collect())
    }

    /// Bytes of tensors to be written, about what the output takes on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let components = self.scheme.components.iter();
        components
            .map(|component| component.checkpoint.tensor_bytes())
            .sum()
    }

    /// Bytes of the largest tensor; sealing holds less than four times as much in memory.
    #[must_use]
    pub fn largest_tensor(&self) -> u64 {
        let components = self.scheme.components.iter();
        let tensors = components.flat_map(|component| component.checkpoint.tensors());
        tensors.map(|info| info.bytes).max().unwrap_or(0)
    }

    /// Hashes the source's weights, through the files that they are then read from. A resumed job
    /// compares the aggregate before it writes anything: see [`SealPlan::check_source`].
    pub fn source_manifest(&self, monitor: &Monitor<'_>) -> Result<ShardManifest, SealingError> {
        let mut shards = Vec::new();
        for component in &self.scheme.components {
            shards.extend(digest_shards(
                &component.folder,
                &component.checkpoint,
                monitor,
            )?);
        }
        Ok(ShardManifest::new(shards)?)
    }

    /// Fails unless the source's weights are those of an earlier manifest.
    pub fn check_source(
        &self,
        earlier: &ShardManifest,
        monitor: &Monitor<'_>,
    ) -> Result<ShardManifest, SealingError> {
        let now = self.source_manifest(monitor)?;
        if now.aggregate() != earlier.aggregate() {
            return Err(SealingError::SourceChanged {
                found: now.aggregate(),
                expected: earlier.aggregate(),
            });
        }
        Ok(now)
    }

    /// Binds the plan to a key, which decides the order of experts and so the shards' layout.
    pub fn bind<'a>(&'a self, keys: &'a dyn SubkeySource) -> Result<Sealer<'a>, SealingError> {
        let basis = Basis::new(keys);
        let mut shards = Vec::new();
        let mut indexes = Vec::new();
        for component in &self.scheme.components {
            lay_out(component, &basis, &mut shards, &mut indexes)?;
        }
        Ok(Sealer {
            plan: self,
            keys,
            basis,
            shards,
            indexes,
        })
    }
}

/// A plan bound to a key. The same plan and key give the same bytes.
pub struct Sealer<'a> {
    plan: &'a SealPlan,
    keys: &'a dyn SubkeySource,
    basis: Basis<'a>,
    shards: Vec<OutputShard<'a>>,
    indexes: Vec<(String, String)>,
}

impl Sealer<'_> {
    /// How many shards there are to write.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The path of a shard in the output.
    #[must_use]
    pub fn shard_path(&self, shard: usize) -> String {
        let shard = &self.shards[shard];
        shard.component.path(shard.planned.file())
    }

    /// What sealing a shard will have reported as done.
    #[must_use]
    pub fn shard_step(&self, shard: usize) -> crate::monitor::Step {
        let planned = &self.shards[shard].planned;
        crate::monitor::Step {
            bytes: planned.data_length(),
            tensors: planned.tensors().len() as u64,
        }
    }

    /// Writes one shard into the output under way, in any order and apart from the others.
    pub fn seal_shard(
        &self,
        shard: usize,
        out: &StagedDir,
        monitor: &Monitor<'_>,
    ) -> Result<SealedShard, SealingError> {
        self.write_shard(shard, out, monitor)?.finish()
    }

    /// Writes all of a shard but for its hash and its name.
    fn write_shard(
        &self,
        shard: usize,
        out: &StagedDir,
        monitor: &Monitor<'_>,
    ) -> Result<Unfinished, SealingError> {
        let shard = &self.shards[shard];
        let component = shard.component;
        let path = component.path(shard.planned.file());
        let Some(recipes) = &shard.recipes else {
            let from = self.plan.root.open_file(&path)?;
            monitor.check()?;
            let file = out.copy_file(&from, &path)?;
            (monitor.progress)(crate::monitor::Step {
                bytes: shard.planned.data_length(),
                tensors: shard.planned.tensors().len() as u64,
            });
            return Ok(Unfinished::Copied(file));
        };
        let folder = match component.folder.as_str() {
            "" => out.path().to_owned(),
            folder => out.folder(folder)?,
        };
        let lock = self.lock_of(shard, recipes, monitor)?;
        let mut writer = match &lock {
            Planned::None => ShardWriter::create(&folder, &shard.planned, &[format_entry()])?,
            Planned::Domains(table, _) => {
                ShardWriter::create(&folder, &shard.planned, &with_record(table))?
            }
            Planned::Widest(table) => {
                ShardWriter::create_reserving(&folder, &shard.planned, &with_record(table))?
            }
        };
        let mut table = match &lock {
            Planned::None => None,
            Planned::Domains(table, _) | Planned::Widest(table) => {
                Some(LockTable::new(table.version()))
            }
        };
        let tensors = shard.planned.tensors();
        write_tensors(
            &mut writer,
            &path,
            tensors,
            table.as_mut(),
            monitor,
            |at, info, buffers| {
                let recipe = recipes[at];
                let mut sealed = self.transform(component, recipe, buffers)?;
                let Some((version, element)) = lockable_output(component, info, recipe) else {
                    return Ok((sealed, None));
                };
                let failed = |source| lock_error(&path, info, source);
                let domain = match &lock {
                    Planned::Domains(_, domains) => domains.get(&info.name).copied(),
                    _ => scan(element, &sealed).map_err(failed)?,
                };
                if let Some(domain) = domain {
                    let id = lock_subkey(version, &component.folder, &info.name)?;
                    put_lock(self.keys, &id, version, domain, &mut sealed)?.map_err(failed)?;
                }
                Ok((sealed, domain))
            },
        )?;
        Ok(Unfinished::Written {
            writer: Box::new(writer),
            header_is_written: !matches!(lock, Planned::Widest(_)),
            table,
            path,
            folder: component.folder.clone(),
        })
    }

    /// Writes all shards. While one is synced, the next is written.
    fn seal_shards(
        &self,
        out: &StagedDir,
        monitor: &Monitor<'_>,
    ) -> Result<Vec<SealedShard>, SealingError> {
        let mut sealed = Vec::with_capacity(self.shards());
        let mut last: Option<Unfinished> = None;
        for shard in 0..self.shards() {
            // Not on the pool: to wait for a disk takes no core.
            let (finished, next) = std::thread::scope(|scope| {
                let finished = last.take().map(|last| scope.spawn(|| last.finish()));
                let next = self.write_shard(shard, out, monitor);
                (finished.map(ScopedJoinHandle::join), next)
            });
            match finished {
                None => {}
                Some(Ok(finished)) => sealed.push(finished?),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
            }
            last = Some(next?);
        }
        sealed.extend(last.map(Unfinished::finish).transpose()?);
        Ok(sealed)
    }

    /// Writes every other file: the trusted blob, the metadata, indexes and copies.
    pub fn seal_files(&self, out: &StagedDir) -> Result<Vec<WrittenFile>, SealingError> {
        let root = &self.plan.root;
        let mut payload = Payload::default();
        let mut written = Vec::new();
        for file in &self.plan.scheme.files {
            let path = file.path.as_str();
            match &file.plan {
                FilePlan::Copy => written.push(out.copy_file(&root.open_file(path)?, path)?),
                FilePlan::LeaveOut(_) | FilePlan::Weights | FilePlan::Replaced => {}
                FilePlan::Tokenizer(value, tokens) => {
                    let text = rewrite::tokenizer(value, *tokens, self.keys)?;
                    payload.add_file(path, text.into_bytes());
                }
                FilePlan::VocabularyFile(value, tokens) => {
                    let text = rewrite::vocabulary(path, value, *tokens, self.keys)?;
                    payload.add_file(path, text.into_bytes());
                }
                FilePlan::LatentStatistics(value, latent, channels) => {
                    let order = latent.order(self.keys, *channels)?;
                    let text = rewrite::latent_statistics(value, &order);
                    written.push(out.write_file(path, text.as_bytes())?);
                }
            }
        }
        for component in &self.plan.scheme.components {
            for recipe in component
                .recipes
                .iter()
                .filter(|recipe| recipe.is_kept_aside())
            {
                let info = component.source(recipe);
                let bytes = read(&component.checkpoint, &info.name)?;
                payload.add_tensor(info.into(), bytes);
            }
        }
        for (path, text) in &self.indexes {
            written.push(out.write_file(path, text.as_bytes())?);
        }
        let fingerprint = self.keys.fingerprint();
        let path = self.plan.scheme.blob;
        let blob = seal_blob(self.keys, self.plan.options.salt, path, &payload)?;
        written.push(out.write_file(path, &blob)?);
        let (path, value) = self.metadata(&fingerprint.to_string());
        written.push(out.write_file(path, write(&value, Style::Indented).as_bytes())?);
        Ok(written)
    }

    /// What became of every file, once [`Sealer::seal_files`] and all shards are written.
    pub fn report(
        &self,
        source: ShardManifest,
        shards: &[SealedShard],
        files: Vec<WrittenFile>,
    ) -> Result<SealReport, SealingError> {
        let plan = self.plan;
        let mut reports: Vec<FileReport> = plan
            .scheme
            .files
            .iter()
            .map(|file| FileReport {
                path: file.path.clone(),
                outcome: file.plan.outcome(),
            })
            .collect();
        let mut written = files;
        written.extend(shards.iter().map(|shard| shard.file.clone()));
        written.sort_by(|a, b| a.path.cmp(&b.path));
        for file in &written {
            if !reports.iter().any(|report| report.path == file.path) {
                reports.push(FileReport {
                    path: file.path.clone(),
                    outcome: Outcome::Written,
                });
            }
        }
        let entries = shards.iter().flat_map(|shard| &shard.locked);
        let entries = entries.map(|(id, entry)| (id.as_str(), *entry));
        let lock_table = plan
            .options
            .lock
            .map(|version| Sha256Digest::new(table_digest(version, entries)));
        let (_, value) = self.metadata(&self.keys.fingerprint().to_string());
        let object = value.get("kllm").unwrap_or(&value);
        Ok(SealReport {
            metadata: write(object, Style::Ascii),
            files: reports,
            written,
            source,
            sealed: ShardManifest::new(shards.iter().map(|shard| identity(&shard.file)).collect())?,
            lock_table,
        })
    }

    fn metadata(&self, fingerprint: &str) -> (&'static str, checkpoint::json::Value) {
        let plan = self.plan;
        plan.scheme.metadata.file(fingerprint, plan.options.lock)
    }

    /// One tensor in the secret basis, not locked.
    pub(crate) fn transform(
        &self,
        component: &Component,
        recipe: &Recipe,
        buffers: &Buffers,
    ) -> Result<Vec<u8>, SealingError> {
        let info = component.source(recipe);
        let source = buffers.read(&component.checkpoint, &info.name)?;
        if recipe.is_unchanged() {
            return Ok(source);
        }
        let prepared = self.basis.prepare(recipe)?;
        let gain = match recipe.gain() {
            Some(name) => {
                let dtype = component.checkpoint.require(name)?.dtype;
                Some((element(dtype), read(&component.checkpoint, name)?))
            }
            None => None,
        };
        let mut out = buffers.take(source.len());
        let gain = gain
            .as_ref()
            .map(|(element, bytes)| (*element, bytes.as_slice()));
        prepared.apply(&source, gain, &mut out)?;
        buffers.give_back(source);
        Ok(out)
    }

    /// Every tensor that will be stored, with its component and recipe, in file order.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (&Component, &str, Option<&Recipe>)> {
        self.shards.iter().flat_map(|shard| {
            let tensors = shard.planned.tensors().iter().enumerate();
            tensors.map(move |(at, info)| {
                let recipe = shard.recipes.as_ref().map(|recipes| recipes[at]);
                (shard.component, info.name.as_str(), recipe)
            })
        })
    }

    /// What is known of a shard's lock before it is written.
    ///
    /// Where the transform is cheap, the domains are found by one pass more over the source, so that
    /// the header stands first in the file and the hash rides along with the data. Behind a matrix
    /// product it is cheaper to read the file back.
    fn lock_of(
        &self,
        shard: &OutputShard<'_>,
        recipes: &[&Recipe],
        monitor: &Monitor<'_>,
    ) -> Result<Planned, SealingError> {
        let component = shard.component;
        let path = component.path(shard.planned.file());
        let tensors = shard.planned.tensors().iter().zip(recipes);
        let locked: Vec<_> = tensors
            .filter_map(|(info, recipe)| {
                let (version, element) = lockable_output(component, info, recipe)?;
                Some((info, *recipe, version, element))
            })
            .collect();
        let Some((_, _, version, _)) = locked.first() else {
            return Ok(Planned::None);
        };
        let dense = locked.iter().any(|(_, recipe, ..)| recipe.is_dense());
        let mut table = LockTable::new(*version);
        let mut domains = HashMap::new();
        let buffers = Buffers::default();
        for (info, recipe, _, element) in locked {
            monitor.check()?;
            let domain = if dense {
                Some(Domain::widest(element))
            } else {
                let sealed = self.transform(component, recipe, &buffers)?;
                let domain = scan(element, &sealed);
                buffers.give_back(sealed);
                domain.map_err(|source| lock_error(&path, info, source))?
            };
            if let Some(domain) = domain {
                domains.insert(info.name.clone(), domain);
                let inserted = table.insert(&info.name, domain);
                inserted.map_err(|source| SealingError::LockRecord {
                    file: path.clone(),
                    source,
                })?;
            }
        }
        Ok(if dense {
            Planned::Widest(table)
        } else {
            Planned::Domains(table, domains)
        })
    }
}

/// The lock of a shard that is to be written.
enum Planned {
    /// Nothing in it has a lock.
    None,
    /// Its record, and the domains by tensor.
    Domains(LockTable, HashMap<String, Domain>),
    /// The longest that its record can be.
    Widest(LockTable),
}

/// How an output tensor is locked, where it is.
fn lockable_output(
    component: &Component,
    info: &TensorInfo,
    recipe: &Recipe,
) -> Option<(Version, Element)> {
    let version = component.lock?;
    let element = lockable(version, info.dtype, recipe.is_packed(), info.bytes)?;
    Some((version, element))
}

fn lock_error(path: &str, info: &TensorInfo, source: LockError) -> SealingError {
    SealingError::Lock {
        file: path.to_owned(),
        tensor: info.name.clone(),
        source,
    }
}

/// Seals `source` into `target`, which must not exist and appears whole or not at all.
pub fn seal(
    source: &Path,
    keys: &dyn SubkeySource,
    options: SealOptions,
    target: &Path,
    monitor: &Monitor<'_>,
) -> Result<SealReport, SealingError> {
    let plan = SealPlan::new(source, options)?;
    let sealer = plan.bind(keys)?;
    plan.root.require_outside(target)?;
    let out = StagedDir::create(target)?;
    out.require_space(plan.bytes() + SPARE_SPACE)?;
    let (source, shards) = rayon::join(
        || {
            plan.source_manifest(&Monitor {
                progress: &|_| {},
                cancel: monitor.cancel,
            })
        },
        || sealer.seal_shards(&out, monitor),
    );
    let (source, shards) = (source?, shards?);
    let files = sealer.seal_files(&out)?;
    let report = sealer.report(source, &shards, files)?;
    out.commit()?;
    Ok(report)
}

/// A shard whose tensors are all written.
enum Unfinished {
    Copied(WrittenFile),
    Written {
        writer: Box<ShardWriter>,
        header_is_written: bool,
        table: Option<LockTable>,
        path: String,
        folder: String,
    },
}

impl Unfinished {
    fn finish(self) -> Result<SealedShard, SealingError> {
        let (writer, header_is_written, table, path, folder) = match self {
            Self::Copied(file) => {
                return Ok(SealedShard {
                    file,
                    locked: Vec::new(),
                });
            }
            Self::Written {
                writer,
                header_is_written,
                table,
                path,
                folder,
            } => (writer, header_is_written, table, path, folder),
        };
        let mut file = match &table {
            Some(table) if !header_is_written => writer.finish_with(&with_record(table))?,
            _ => writer.finish()?,
        };
        file.path = path;
        let entries = table.iter().flat_map(|table| table.entries());
        let locked = entries.map(|(name, entry)| (tensor_id(&folder, name), *entry));
        Ok(SealedShard {
            file,
            locked: locked.collect(),
        })
    }
}

fn with_record(table: &LockTable) -> [(String, String); 2] {
    [format_entry(), (HEADER_KEY.to_owned(), table.to_text())]
}

fn format_entry() -> (String, String) {
    ("format".to_owned(), "pt".to_owned())
}

pub(crate) fn read(source: &dyn TensorSource, name: &str) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = vec![0; source.require(name)?.bytes as usize];
    source.read(name, &mut bytes)?;
    Ok(bytes)
}

impl SealPlan {
    pub(crate) fn files(&self) -> &[crate::scheme::PlannedFile] {
        &self.scheme.files
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }
}

const SPARE_SPACE: u64 = 16 << 20;
