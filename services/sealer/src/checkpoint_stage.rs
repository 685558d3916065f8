//! The sealed checkpoint: shard by shard into the job's folder, each stored while the next is
//! sealed.

use std::path::Path;
use std::sync::Arc;

use checkpoint::{StagedDir, WrittenFile};
use model_key::SubkeySource;
use registry_domain::{DurableFile, ManifestFile};
use sealing::{SealPlan, SealReport, SealedShard, Sealer, Step};

use crate::failure::JobError;
use crate::job::{Attempt, OutputFile};
use crate::order::SealOrder;
use crate::resume::{Resume, compare, manifest_file, sealed_shard, shard_detail};
use crate::uploads::{CHECKPOINT, Uploads, is_file, number, recorded, remove_if_there};

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
    order: &SealOrder,
    plan: &SealPlan,
    keys: &dyn SubkeySource,
    resume: &Resume,
    durable: &[DurableFile],
    need_local: bool,
) -> Result<SealedCheckpoint, JobError> {
    attempt.meter.phase("sealing");
    let sealer = plan.bind(keys)?;
    let staged = StagedDir::resume(&attempt.folder.join("checkpoint"))?;
    expect(attempt, order, &sealer);
    let stage = Stage {
        attempt,
        order,
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
    order: &'a SealOrder,
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
        if !self.need_local || is_file(&on_disk, earlier.sha256, earlier.size)? {
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
        if !self.order.checkpoint {
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

fn expect(attempt: &Attempt, order: &SealOrder, sealer: &Sealer<'_>) {
    let mut all = total(sealer);
    if order.container {
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

/// One being sealed, one being stored, one to spare.
const SHARDS_ON_DISK: u64 = 3;
const SPARE_SPACE: u64 = 64 << 20;
