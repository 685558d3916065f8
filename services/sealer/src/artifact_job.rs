//! A sealed checkpoint's artifact to a copy of it, or to what it says about itself.
//!
//! The manifest is verified first, and every file by its SHA-256 before anything of it is unlocked.

use std::sync::Arc;

use api::client::{ReadBlobError, is_transient};
use api::v1;
use api::v1::get_artifact_request::Which;
use checkpoint::{Root, StagedDir, WrittenFile};
use identifiers::Sha256Digest;
use model_key::{GrantedSubkeys, SubkeyId, SubkeySource};
use receipt::{KeyRef, MODEL_SIGNATURE};
use registry_domain::{
    ArtifactKind, ArtifactManifest, Comparison, DurableFile, FileFate, FileOutcome, JobResult,
    ManifestFile, SealRecord,
};
use sealing::{
    CATALOG_MANIFEST, CatalogEntry, CopyPlan, SealMetadata, Step, Verification, VerifyReport,
};
use sha2::{Digest as _, Sha256};
use shard_identity::{Shard, ShardManifest};

use crate::failure::JobError;
use crate::job::{Attempt, OutputFile, Terms};
use crate::order::{Operation, lock_message, lock_name};
use crate::registration::{Origin, register_one};
use crate::resume::{compare, manifest_file, sealed_shard, shard_detail};
use crate::uploads::{Uploads, is_file, number, recorded, remove_if_there};

/// Does an operation with a registered checkpoint.
pub async fn run(
    attempt: &Arc<Attempt>,
    digest: Sha256Digest,
    operation: &Operation,
) -> Result<JobResult, JobError> {
    attempt.meter.phase("verifying the manifest");
    let found = attempt
        .means
        .log
        .artifact(Which::Digest(digest.to_string()));
    let manifest = attempt.until_stopped(found).await??.manifest().clone();
    if manifest.kind != ArtifactKind::Checkpoint {
        let message = "the artifact is a container, not a checkpoint";
        return Err(JobError::refused("artifact-refused", message));
    }
    let job = ArtifactJob {
        attempt,
        digest,
        manifest,
    };
    match operation {
        Operation::Check => job.check().await,
        Operation::Catalog(entry) => job.catalog(entry.clone()).await,
        Operation::Verify { base, ulps } => job.verify(base.clone(), *ulps).await,
        Operation::Relock => job.copy("relock", CopyPlan::relock).await,
        Operation::Unlock => job.copy("unlock", CopyPlan::unlock).await,
        Operation::CloudExport => job.copy("cloud export", CopyPlan::cloud).await,
        Operation::UnlockTensor(tensor) => job.unlock_tensor(tensor.clone()).await,
    }
}

struct ArtifactJob<'a> {
    attempt: &'a Arc<Attempt>,
    digest: Sha256Digest,
    manifest: ArtifactManifest,
}

impl ArtifactJob<'_> {
    /// Reads every file where it is stored and compares it with the manifest.
    async fn check(&self) -> Result<JobResult, JobError> {
        let files = &self.manifest.files;
        self.expect(files);
        self.attempt.meter.phase("reading what is stored");
        let mut differences = Vec::new();
        for file in files {
            let mut hash = Sha256::new();
            let meter = self.attempt.meter.clone();
            let digest = move |pieces: &mut dyn Iterator<Item = v1::GetBlobResponse>| {
                for piece in pieces {
                    hash.update(&piece.data);
                    meter.done(bytes(piece.data.len() as u64));
                }
                Sha256Digest::new(hash.finalize().into())
            };
            match self.read(file, digest).await? {
                Ok(found) if found == file.sha256 => {}
                Ok(found) => differences.push(format!("{}: its SHA-256 is {found}", file.path)),
                Err(problem) => differences.push(format!("{}: {problem}", file.path)),
            }
        }
        if !differences.is_empty() {
            return Err(differ(&differences));
        }
        Ok(JobResult {
            comparison: Some(Comparison {
                files: files.len() as u64,
                ..Comparison::default()
            }),
            ..JobResult::default()
        })
    }

    /// Compares the artifact with its base.
    async fn verify(&self, base: String, ulps: u64) -> Result<JobResult, JobError> {
        let attempt = self.attempt;
        let (input, root) = self.fetch(&self.manifest.files, 0).await?;
        attempt.meter.phase("reading the base");
        let source = self.manifest.source.clone();
        let verification = attempt
            .blocking(move |attempt| {
                let base = attempt.means.sources.open(&base)?;
                let verification = Verification::new(root, base)?;
                let monitor = attempt.monitor(&|_| {});
                verification.plan().check_source(&source, &monitor)?;
                Ok(Arc::new(verification))
            })
            .await?;
        attempt.meter.phase("fetching keys");
        let planned = verification.clone();
        let labels = attempt
            .blocking(move |_| Ok(planned.plan().subkeys()?))
            .await?;
        let options = *verification.plan().options();
        let terms = Terms {
            transform: match options.transform {
                weight_transform::Transform::Perm => v1::Transform::Perm,
                weight_transform::Transform::Orth => v1::Transform::Orth,
            },
            lock: lock_message(options.lock),
            blob_salt: Some(options.salt),
            ..self.terms(verification.plan().scheme())
        };
        let keys = self.keys(&terms, labels).await?;
        attempt.meter.phase("comparing");
        let report = attempt
            .blocking(move |attempt| {
                let progress = |step| attempt.meter.done(step);
                let monitor = attempt.monitor(&progress);
                let report = verification.compare(&keys, ulps, &monitor)?;
                drop(input);
                Ok(report)
            })
            .await?;
        result_of(&report)
    }

    /// Copies every file, shards with their lock changed, and registers the copy.
    async fn copy(
        &self,
        how: &str,
        plan: fn(Root) -> Result<CopyPlan, sealing::SealingError>,
    ) -> Result<JobResult, JobError> {
        let attempt = self.attempt;
        let all: u64 = self.manifest.files.iter().map(|file| file.size).sum();
        let (input, root) = self.fetch(&self.manifest.files, all).await?;
        let plan = attempt.blocking(move |_| Ok(Arc::new(plan(root)?))).await?;
        let keys = self.copy_keys(&plan).await?;
        let durable = attempt.durable_files().await?;
        attempt.meter.phase("copying");
        let copied = plan.clone();
        let (report, files) = attempt
            .blocking(move |attempt| {
                let written = copy_files(attempt, &copied, keys.as_ref(), &durable);
                drop(input);
                written
            })
            .await?;
        let manifest = ArtifactManifest {
            seal: SealRecord {
                lock: lock_name(plan.lock()),
                lock_table_digest: report.lock_table,
                ..self.manifest.seal.clone()
            },
            sealed: Some(report.weights),
            files,
            ..self.blank()
        };
        self.register(manifest, how, outcomes(&plan)).await
    }

    /// Registers one tensor without its lock, as a file of its own.
    async fn unlock_tensor(&self, tensor: String) -> Result<JobResult, JobError> {
        let attempt = self.attempt;
        let (input, root) = self.fetch(&self.manifest.files, 0).await?;
        let path = root.path().to_owned();
        let plan = attempt
            .blocking(move |_| Ok(Arc::new(CopyPlan::unlock(root)?)))
            .await?;
        // A slash ends a pipeline's folder.
        let (folder, name) = tensor.rsplit_once('/').unwrap_or(("", &tensor));
        let label = plan.lock_subkey(folder, name)?;
        let terms = Terms {
            unlock: lock_message(plan.metadata().lock),
            ..self.terms(plan.metadata().scheme)
        };
        let keys = self.keys(&terms, vec![label]).await?;
        attempt.meter.phase("unlocking");
        let (folder, name) = (folder.to_owned(), name.to_owned());
        let output = attempt
            .blocking(move |attempt| {
                let unlocked = sealing::unlock_tensor(&path, &keys, &folder, &name)?;
                drop(input);
                let out = StagedDir::resume(&attempt.folder.join("output"))?;
                remove_if_there(&out.path().join(TENSOR_FILE))?;
                let header = unlocked.header()?;
                let written = out.write_parts(TENSOR_FILE, |write| {
                    write(&header)?;
                    write(&unlocked.bytes)
                })?;
                Ok(output_file(&out, written, 0, no_detail()))
            })
            .await?;
        let written = output.written.clone();
        let file = attempt.store(output).await?;
        let manifest = ArtifactManifest {
            seal: SealRecord {
                lock: lock_name(None),
                lock_table_digest: None,
                ..self.manifest.seal.clone()
            },
            sealed: Some(weights_of(&written)?),
            files: vec![file],
            ..self.blank()
        };
        let how = format!("unlock of tensor {tensor}");
        self.register(manifest, &how, Vec::new()).await
    }

    /// Registers the same files with a catalog manifest. Only the seal metadata is read.
    async fn catalog(&self, entry: CatalogEntry) -> Result<JobResult, JobError> {
        let attempt = self.attempt;
        let files = self.manifest.files.iter();
        let metadata: Vec<ManifestFile> = files
            .clone()
            .filter(|file| matches!(file.path.as_str(), "config.json" | "kllm.json"))
            .cloned()
            .collect();
        let unlisted = [CATALOG_MANIFEST, MODEL_SIGNATURE];
        let kept: Vec<ManifestFile> = files
            .filter(|file| !unlisted.contains(&file.path.as_str()))
            .cloned()
            .collect();
        let (input, root) = self.fetch(&metadata, 0).await?;
        let listed = kept.clone();
        let output = attempt
            .blocking(move |attempt| {
                let metadata = SealMetadata::require(&root)?;
                drop(input);
                let digests: Vec<(&str, String)> = listed
                    .iter()
                    .map(|file| (file.path.as_str(), file.sha256.to_hex()))
                    .collect();
                let digests = digests.iter().map(|(path, hex)| (*path, hex.as_str()));
                let text = sealing::catalog_text(&metadata, &entry, digests);
                let out = StagedDir::resume(&attempt.folder.join("output"))?;
                remove_if_there(&out.path().join(CATALOG_MANIFEST))?;
                let written = out.write_file(CATALOG_MANIFEST, text.as_bytes())?;
                Ok(output_file(&out, written, 0, no_detail()))
            })
            .await?;
        let mut files = kept;
        files.push(attempt.store(output).await?);
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let manifest = ArtifactManifest {
            files,
            ..self.blank()
        };
        self.register(manifest, "catalog manifest", Vec::new())
            .await
    }

    /// Fetches files into the job's folder; what an earlier attempt fetched whole stays. There must
    /// be room for `more` bytes beside them.
    async fn fetch(
        &self,
        files: &[ManifestFile],
        more: u64,
    ) -> Result<(StagedDir, Root), JobError> {
        let attempt = self.attempt;
        self.expect(files);
        attempt.meter.phase("fetching the artifact");
        let wanted = files.to_vec();
        let (staged, missing) = attempt
            .blocking(move |attempt| {
                let staged = StagedDir::resume(&attempt.folder.join("input"))?;
                let mut missing = Vec::new();
                for file in wanted {
                    let path = staged.path().join(&file.path);
                    if is_file(&path, file.sha256, file.size)? {
                        attempt.meter.done(bytes(file.size));
                    } else {
                        remove_if_there(&path)?;
                        missing.push(file);
                    }
                }
                let bytes: u64 = missing.iter().map(|file| file.size).sum();
                staged.require_space(bytes.saturating_add(more).saturating_add(SPARE_SPACE))?;
                Ok((Arc::new(staged), missing))
            })
            .await?;
        for file in &missing {
            let (out, path, meter) = (staged.clone(), file.path.clone(), attempt.meter.clone());
            let write = move |pieces: &mut dyn Iterator<Item = v1::GetBlobResponse>| {
                out.write_parts(&path, |write| {
                    for piece in pieces {
                        write(&piece.data)?;
                        meter.done(bytes(piece.data.len() as u64));
                    }
                    Ok(())
                })
            };
            let written = match self.read(file, write).await? {
                Ok(written) => written?,
                Err(problem) => return Err(damaged(&file.path, &problem)),
            };
            if written.sha256 != file.sha256 {
                return Err(damaged(&file.path, "it is not the file that was sealed"));
            }
        }
        let staged = Arc::into_inner(staged)
            .ok_or_else(|| JobError::Passing("a file is still being written".to_owned()))?;
        let root = Root::open(staged.path())?;
        Ok((staged, root))
    }

    /// Reads a stored file, unless the work should stop. A file that storage does not have, or has
    /// with another length, is a finding and no failure to read.
    async fn read<T: Send + 'static>(
        &self,
        file: &ManifestFile,
        take: impl FnOnce(&mut dyn Iterator<Item = v1::GetBlobResponse>) -> T + Send + 'static,
    ) -> Result<Result<T, String>, JobError> {
        let (storage, digest) = (&self.attempt.means.storage, file.sha256.to_string());
        let read = storage.read_blob(&digest, file.size, take);
        match self.attempt.until_stopped(read).await? {
            Ok(taken) => Ok(Ok(taken)),
            Err(ReadBlobError::Status(status)) if is_transient(&status) => {
                Err(JobError::of_storage(&status))
            }
            Err(ReadBlobError::Silent) => Err(JobError::Passing(ReadBlobError::Silent.to_string())),
            Err(ReadBlobError::Task(error)) => Err(error.into()),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// The subkeys of a copy; none where there is no lock to take off.
    async fn copy_keys(&self, plan: &Arc<CopyPlan>) -> Result<Option<GrantedSubkeys>, JobError> {
        let attempt = self.attempt;
        let planned = plan.clone();
        let labels = attempt.blocking(move |_| Ok(planned.subkeys()?)).await?;
        if labels.is_empty() {
            return Ok(None);
        }
        attempt.meter.phase("fetching keys");
        let terms = Terms {
            lock: lock_message(plan.lock()),
            unlock: lock_message(plan.metadata().lock),
            ..self.terms(plan.metadata().scheme)
        };
        Ok(Some(self.keys(&terms, labels).await?))
    }

    async fn keys(&self, terms: &Terms, labels: Vec<SubkeyId>) -> Result<GrantedSubkeys, JobError> {
        let key = KeyRef {
            id: self.manifest.key_id,
            fingerprint: self.manifest.fingerprint,
            version: self.manifest.key_version,
        };
        let grant = self.attempt.open_grant(&key, terms).await?;
        self.attempt.fetch(&grant, labels).await
    }

    /// A grant for no label at all.
    fn terms(&self, scheme: sealing::Scheme) -> Terms {
        Terms {
            source: self.manifest.source.aggregate(),
            scheme: match scheme {
                sealing::Scheme::L1 => v1::Scheme::L1,
                sealing::Scheme::Client => v1::Scheme::Client,
                sealing::Scheme::Split => v1::Scheme::D1,
            },
            transform: v1::Transform::Unspecified,
            lock: v1::Lock::None,
            unlock: v1::Lock::Unspecified,
            blob_salt: None,
            container_salt: None,
        }
    }

    /// The manifest of what this job makes, but for what it changes.
    fn blank(&self) -> ArtifactManifest {
        let attempt = self.attempt;
        ArtifactManifest {
            model: attempt.order.model.clone(),
            sealed_at: attempt.lease.job.submitted_at.div_euclid(1000),
            sealer: attempt.means.log.replica().clone(),
            ..self.manifest.clone()
        }
    }

    async fn register(
        &self,
        manifest: ArtifactManifest,
        how: &str,
        files: Vec<FileOutcome>,
    ) -> Result<JobResult, JobError> {
        self.attempt.meter.phase("registering");
        let origin = Origin {
            from: self.digest,
            how: how.to_owned(),
        };
        let artifact = register_one(self.attempt, manifest, Some(origin)).await?;
        Ok(JobResult {
            artifacts: vec![artifact],
            files,
            comparison: None,
        })
    }

    fn expect(&self, files: &[ManifestFile]) {
        let total = files.iter().map(|file| file.size).sum();
        self.attempt.meter.expect(bytes(total));
    }
}

/// Copies what is not durable yet, each file stored while the next is copied.
fn copy_files(
    attempt: &Arc<Attempt>,
    plan: &CopyPlan,
    keys: Option<&GrantedSubkeys>,
    durable: &[DurableFile],
) -> Result<(sealing::CopyReport, Vec<ManifestFile>), JobError> {
    let copier = plan.bind(keys.map(|keys| keys as &dyn SubkeySource))?;
    let out = StagedDir::resume(&attempt.folder.join("output"))?;
    let kept = || (0..plan.files()).filter(|file| plan.left_out(*file).is_none());
    let left = kept().map(|file| plan.file_bytes(file)).sum();
    attempt.meter.expect_left(left);
    let progress = |step| attempt.meter.done(step);
    let monitor = attempt.monitor(&progress);
    let mut uploads = Uploads::new(attempt);
    let mut copies = Vec::new();
    for file in kept() {
        let at = number(file)?;
        if let Some(earlier) = recorded(durable, at) {
            let copy = sealed_shard(earlier)?;
            compare(plan.path(file), copy.file.sha256, earlier)?;
            uploads.stored.push(manifest_file(earlier));
            attempt.meter.done(bytes(plan.file_bytes(file)));
            copies.push(copy);
            continue;
        }
        remove_if_there(&out.path().join(plan.path(file)))?;
        let copy = copier.copy(file, &out, &monitor)?;
        if !plan.is_shard(file) {
            attempt.meter.done(bytes(plan.file_bytes(file)));
        }
        uploads.push(output_file(
            &out,
            copy.file.clone(),
            at,
            shard_detail(&copy),
        ))?;
        copies.push(copy);
    }
    attempt.meter.phase("storing");
    let mut stored = uploads.finish()?;
    stored.sort_by(|a, b| a.path.cmp(&b.path));
    Ok((plan.report(&copies)?, stored))
}

/// A file of the output that is not needed on disk once it is stored.
fn output_file(
    out: &StagedDir,
    written: WrittenFile,
    number: u32,
    detail: serde_json::Value,
) -> OutputFile {
    OutputFile {
        stage: crate::uploads::CHECKPOINT,
        number,
        on_disk: out.path().join(&written.path),
        written,
        detail,
        keep: false,
    }
}

/// What became of each file of the artifact.
fn outcomes(plan: &CopyPlan) -> Vec<FileOutcome> {
    let of = |file| {
        let (fate, why) = match plan.left_out(file) {
            Some(reason) => (FileFate::LeftOut, reason),
            None if plan.is_shard(file) => (FileFate::Copied, "with its lock changed"),
            None => (FileFate::Copied, ""),
        };
        FileOutcome {
            path: plan.path(file).to_owned(),
            fate,
            why: why.to_owned(),
        }
    };
    (0..plan.files()).map(of).collect()
}

fn result_of(report: &VerifyReport) -> Result<JobResult, JobError> {
    if !report.differences.is_empty() {
        let lines = report.differences.iter();
        let lines: Vec<String> = lines
            .map(|difference| format!("{}: {}", difference.what, difference.how))
            .collect();
        return Err(differ(&lines));
    }
    Ok(JobResult {
        comparison: Some(Comparison {
            tensors: report.tensors,
            files: report.files,
            largest_ulps: report.largest_ulps,
        }),
        ..JobResult::default()
    })
}

/// A failure that lists what differs, as far as it fits.
fn differ(lines: &[String]) -> JobError {
    let listed = lines.join("; ");
    JobError::refused("differs", format!("{} differences: {listed}", lines.len()))
}

fn damaged(path: &str, problem: &str) -> JobError {
    JobError::refused("storage-refused", format!("storage: {path}: {problem}"))
}

fn weights_of(file: &WrittenFile) -> Result<ShardManifest, JobError> {
    let shard = Shard {
        filename: file.path.clone(),
        size_bytes: file.bytes,
        sha256: file.sha256,
    };
    ShardManifest::new(vec![shard])
        .map_err(|error| JobError::refused("sealer-failed", error.to_string()))
}

fn no_detail() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}

const fn bytes(bytes: u64) -> Step {
    Step { bytes, tensors: 0 }
}

/// The file of an artifact that is one tensor.
const TENSOR_FILE: &str = "tensor.safetensors";
const SPARE_SPACE: u64 = 64 << 20;
