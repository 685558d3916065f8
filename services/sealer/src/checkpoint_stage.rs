//! The sealed checkpoint: shard by shard into the job's folder, each stored while the next is
//! sealed.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{StagedDir, WrittenFile};
use model_key::SubkeySource;
use registry_domain::{DurableFile, ManifestFile};
use sealing::{SealPlan, SealReport, SealedShard, Sealer, Step};
use tokio::task::JoinHandle;

use crate::failure::JobError;
use crate::job::{Attempt, OutputFile};
use crate::resume::{Resume, compare, manifest_file, sealed_shard, shard_detail};
use crate::upload::digest;

/// A sealed checkpoint.
pub struct SealedCheckpoint {
    pub report: SealReport,
    /// Every file, sorted by path; empty when no checkpoint is asked for.
    pub files: Vec<ManifestFile>,
    /// Holds the folder, where the shards are when a container is made of them.
    pub staged: StagedDir,
}

/// Seals what is not durable yet. With `need_local` every file is in the folder afterwards.
pub fn seal(
    attempt: &Arc<Attempt>,
    plan: &SealPlan,
    keys: &dyn SubkeySource,
    resume: &Resume,
    durable: &[DurableFile],
    need_local: bool,
) -> Result<SealedCheckpoint, JobError> {
    attempt.meter.phase("sealing");
    let sealer = plan.bind(keys)?;
    let staged = StagedDir::resume(&attempt.folder.join("checkpoint"))?;
    expect(attempt, &sealer);
    let stage = Stage {
        attempt,
        sealer: &sealer,
        staged: &staged,
        need_local,
        uploads: Uploads::new(attempt),
    };
    let (report, files) = stage.run(resume, durable)?;
    Ok(SealedCheckpoint {
        report,
        files,
        staged,
    })
}

struct Stage<'a> {
    attempt: &'a Arc<Attempt>,
    sealer: &'a Sealer<'a>,
    staged: &'a StagedDir,
    need_local: bool,
    uploads: Uploads<'a>,
}

impl Stage<'_> {
    fn run(
        mut self,
        resume: &Resume,
        durable: &[DurableFile],
    ) -> Result<(SealReport, Vec<ManifestFile>), JobError> {
        self.require_space(durable)?;
        let sealer = self.sealer;
        let mut shards = Vec::with_capacity(sealer.shards());
        for shard in 0..sealer.shards() {
            shards.push(self.shard(shard, durable)?);
        }
        let mut files = sealer.seal_files(self.staged)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        for (file, number) in files.iter().zip(number(sealer.shards())?..) {
            self.small_file(file, number, durable)?;
        }
        self.attempt.meter.phase("storing");
        let mut stored = self.uploads.finish()?;
        stored.sort_by(|a, b| a.path.cmp(&b.path));
        let report = sealer.report(resume.source.clone(), &shards, files)?;
        Ok((report, stored))
    }

    fn shard(&mut self, shard: usize, durable: &[DurableFile]) -> Result<SealedShard, JobError> {
        let path = self.sealer.shard_path(shard);
        let on_disk = self.staged.path().join(&path);
        let step = self.sealer.shard_step(shard);
        let Some(earlier) = recorded(durable, number(shard)?) else {
            let sealed = self.write(shard, &on_disk)?;
            self.store(
                sealed.file.clone(),
                shard,
                shard_detail(&sealed),
                self.need_local,
            )?;
            return Ok(sealed);
        };
        let sealed = sealed_shard(earlier)?;
        compare(&path, sealed.file.sha256, earlier)?;
        self.uploads.stored.push(manifest_file(earlier));
        if !self.need_local || is_intact(&on_disk, earlier)? {
            self.attempt.meter.done(step);
            return Ok(sealed);
        }
        // A lock authenticates nothing: what a container is made of is compared first.
        let again = self.write(shard, &on_disk)?;
        compare(&path, again.file.sha256, earlier)?;
        Ok(again)
    }

    fn write(&self, shard: usize, on_disk: &Path) -> Result<SealedShard, JobError> {
        remove_if_there(on_disk)?;
        let meter = &self.attempt.meter;
        let progress = |step| meter.done(step);
        let monitor = self.attempt.monitor(&progress);
        Ok(self.sealer.seal_shard(shard, self.staged, &monitor)?)
    }

    fn small_file(
        &mut self,
        file: &WrittenFile,
        number: u32,
        durable: &[DurableFile],
    ) -> Result<(), JobError> {
        if let Some(earlier) = recorded(durable, number) {
            compare(&file.path, file.sha256, earlier)?;
            self.uploads.stored.push(manifest_file(earlier));
            return Ok(());
        }
        let detail = serde_json::Value::Object(serde_json::Map::new());
        self.store(file.clone(), number as usize, detail, true)
    }

    fn store(
        &mut self,
        written: WrittenFile,
        at: usize,
        detail: serde_json::Value,
        keep: bool,
    ) -> Result<(), JobError> {
        if !self.attempt.order.checkpoint {
            return Ok(());
        }
        self.uploads.push(OutputFile {
            stage: CHECKPOINT,
            number: number(at)?,
            on_disk: self.staged.path().join(&written.path),
            written,
            detail,
            keep,
        })
    }

    /// Shards that stay until a container is made of them, or those that are stored meanwhile.
    fn require_space(&self, durable: &[DurableFile]) -> Result<(), JobError> {
        let mut left = Vec::new();
        for shard in 0..self.sealer.shards() {
            let is_done = if self.need_local {
                self.staged
                    .path()
                    .join(self.sealer.shard_path(shard))
                    .exists()
            } else {
                recorded(durable, number(shard)?).is_some()
            };
            if !is_done {
                left.push(self.sealer.shard_step(shard).bytes);
            }
        }
        let all: u64 = left.iter().sum();
        let needed = if self.need_local {
            all.saturating_add(total(self.sealer).bytes)
        } else {
            let largest = left.iter().max().copied().unwrap_or(0);
            all.min(largest.saturating_mul(SHARDS_ON_DISK))
        };
        Ok(self
            .staged
            .require_space(needed.saturating_add(SPARE_SPACE))?)
    }
}

/// Uploads, one under way at a time.
struct Uploads<'a> {
    attempt: &'a Arc<Attempt>,
    under_way: Option<JoinHandle<Result<ManifestFile, JobError>>>,
    stored: Vec<ManifestFile>,
}

impl<'a> Uploads<'a> {
    const fn new(attempt: &'a Arc<Attempt>) -> Self {
        Self {
            attempt,
            under_way: None,
            stored: Vec::new(),
        }
    }

    fn push(&mut self, file: OutputFile) -> Result<(), JobError> {
        self.settle()?;
        let attempt = self.attempt.clone();
        let upload = async move { attempt.store(file).await };
        self.under_way = Some(tokio::runtime::Handle::current().spawn(upload));
        Ok(())
    }

    fn settle(&mut self) -> Result<(), JobError> {
        if let Some(upload) = self.under_way.take() {
            // The upload itself ends when the work should stop.
            self.stored
                .push(tokio::runtime::Handle::current().block_on(upload)??);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<ManifestFile>, JobError> {
        self.settle()?;
        Ok(std::mem::take(&mut self.stored))
    }
}

impl Drop for Uploads<'_> {
    fn drop(&mut self) {
        if let Some(upload) = &self.under_way {
            upload.abort();
        }
    }
}

fn expect(attempt: &Attempt, sealer: &Sealer<'_>) {
    let mut all = total(sealer);
    if attempt.order.container {
        // Until the container is planned: about as large as the checkpoint.
        all.bytes = all.bytes.saturating_mul(2);
    }
    attempt.meter.expect(all);
}

/// What sealing every shard reports.
fn total(sealer: &Sealer<'_>) -> Step {
    let steps = (0..sealer.shards()).map(|shard| sealer.shard_step(shard));
    steps.fold(Step::default(), |sum, step| Step {
        bytes: sum.bytes + step.bytes,
        tensors: sum.tensors + step.tensors,
    })
}

/// The file of that number, where an earlier attempt made it durable.
fn recorded(durable: &[DurableFile], number: u32) -> Option<&DurableFile> {
    let mut files = durable.iter();
    files.find(|file| file.stage == CHECKPOINT && file.number == number)
}

fn is_intact(path: &Path, recorded: &DurableFile) -> Result<bool, JobError> {
    match digest(path) {
        Ok(found) => Ok(found == (recorded.sha256, recorded.size)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remove_if_there(path: &Path) -> Result<(), JobError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn number(at: usize) -> Result<u32, JobError> {
    u32::try_from(at).map_err(|_| JobError::refused("source-refused", "too many files"))
}

/// The stage's name in the record of durable files.
const CHECKPOINT: &str = "checkpoint";
/// One being sealed, one being stored, one to spare.
const SHARDS_ON_DISK: u64 = 3;
const SPARE_SPACE: u64 = 64 << 20;
