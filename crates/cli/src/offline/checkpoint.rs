//! `chancery checkpoint`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use checkpoint::{Root, WrittenFile};
use indicatif::ProgressBar;
use model_key::SubkeySource;
use sealing::{
    CheckReport, CopyReport, Monitor, Outcome as Fate, SealMetadata, SealOptions, SealPlan,
    SealReport, Shown, Step, StoreRecord, VerifyReport,
};
use serde::Serialize;
use service_runtime::{Randomness, SystemRandomness};
use sha2::{Digest as _, Sha256};
use weight_lock::Version;
use weight_transform::Transform;

use crate::args::{CheckpointCommand, CheckpointSealArgs, LockArg, TransformArg};
use crate::files;
use crate::offline::{catalog, interruptible};
use crate::outcome::{Outcome, bytes, table};
use crate::progress;

/// Runs a command.
pub fn execute(command: CheckpointCommand) -> Result<Outcome> {
    match command {
        CheckpointCommand::Seal(arguments) => seal(&arguments),
        CheckpointCommand::Unlock {
            source,
            output,
            tensor: Some(tensor),
            key,
        } => unlock_tensor(&source, &output, &tensor, &key),
        CheckpointCommand::Unlock {
            source,
            output,
            tensor: None,
            key,
        } => {
            let key = files::open_key(&key)?;
            let report = watched("unlocking", weight_bytes(&source), |monitor| {
                Ok(sealing::unlock(&source, &key, &output, monitor)?)
            })?;
            Ok(copied("unlocked", &report))
        }
        CheckpointCommand::Relock {
            source,
            output,
            key,
        } => {
            let key = files::open_key(&key)?;
            let report = watched("locking again", weight_bytes(&source), |monitor| {
                Ok(sealing::relock(&source, &key, &output, monitor)?)
            })?;
            Ok(copied("locked again", &report))
        }
        CheckpointCommand::Verify {
            sealed,
            base,
            ulps,
            key,
        } => {
            let key = files::open_key(&key)?;
            let report = watched("comparing", weight_bytes(&base), |monitor| {
                Ok(sealing::verify(&sealed, &base, &key, ulps, monitor)?)
            })?;
            Ok(verified(&report))
        }
        CheckpointCommand::Cloud {
            sealed,
            output,
            key,
        } => {
            let key = files::open_optional_key(&key)?;
            let keys = key.as_ref().map(|key| key as &dyn SubkeySource);
            let report = watched("exporting", weight_bytes(&sealed), |monitor| {
                Ok(sealing::cloud_export(&sealed, keys, &output, monitor)?)
            })?;
            Ok(copied("exported", &report))
        }
        CheckpointCommand::Show { folder } => Ok(shown(&sealing::show(&folder)?)),
        CheckpointCommand::Recognise { folder } => recognise(&folder),
        CheckpointCommand::Catalog(command) => catalog::execute(&command),
        CheckpointCommand::Check { folder, write } => check(&folder, write),
    }
}

#[derive(Serialize)]
struct SealView {
    fingerprint: String,
    metadata: serde_json::Value,
    source_aggregate: String,
    sealed_aggregate: String,
    lock_table: Option<String>,
    files: Vec<FateView>,
    written: Vec<FileView>,
}

#[derive(Serialize)]
struct FateView {
    path: String,
    fate: &'static str,
    why: Option<&'static str>,
}

#[derive(Serialize)]
struct FileView {
    path: String,
    bytes: u64,
    sha256: String,
}

impl FileView {
    fn of(file: &WrittenFile) -> Self {
        Self {
            path: file.path.clone(),
            bytes: file.bytes,
            sha256: file.sha256.to_string(),
        }
    }
}

fn seal(arguments: &CheckpointSealArgs) -> Result<Outcome> {
    let randomness: &dyn Randomness = &SystemRandomness;
    let options = SealOptions {
        transform: match arguments.transform {
            TransformArg::Perm => Transform::Perm,
            TransformArg::Orth => Transform::Orth,
        },
        lock: match arguments.lock {
            LockArg::None => None,
            LockArg::V1 => Some(Version::V1),
            LockArg::V2 => Some(Version::V2),
        },
        client: arguments.client,
        salt: randomness.bytes(),
    };
    // What needs no key is refused before a passphrase costs anything.
    let total = SealPlan::new(&arguments.source, options)?.bytes();
    let key = files::open_key(&arguments.key)?;
    let report = watched("sealing", total, |monitor| {
        Ok(sealing::seal(
            &arguments.source,
            &key,
            options,
            &arguments.output,
            monitor,
        )?)
    })?;
    sealed(&report, key.fingerprint().to_string())
}

fn sealed(report: &SealReport, fingerprint: String) -> Result<Outcome> {
    let view = SealView {
        fingerprint,
        metadata: serde_json::from_str(&report.metadata).context("the seal metadata")?,
        source_aggregate: report.source.summary().aggregate_sha256.to_string(),
        sealed_aggregate: report.sealed.summary().aggregate_sha256.to_string(),
        lock_table: report.lock_table.map(|digest| digest.to_string()),
        files: report
            .files
            .iter()
            .map(|file| FateView {
                path: file.path.clone(),
                fate: fate(&file.outcome),
                why: match file.outcome {
                    Fate::LeftOut(why) => Some(why),
                    _ => None,
                },
            })
            .collect(),
        written: report.written.iter().map(FileView::of).collect(),
    };
    let total = view.written.iter().map(|file| file.bytes).sum();
    let mut rows = vec![
        vec!["fingerprint".to_owned(), view.fingerprint.clone()],
        vec!["source".to_owned(), view.source_aggregate.clone()],
        vec![
            "written".to_owned(),
            format!("{} files, {}", view.written.len(), bytes(total)),
        ],
    ];
    rows.extend(view.files.iter().map(|file| {
        let why = file.why.map_or(String::new(), |why| format!(": {why}"));
        vec![file.fate.to_owned(), format!("{}{why}", file.path)]
    }));
    Ok(Outcome::new(&view, table(&rows)))
}

const fn fate(outcome: &Fate) -> &'static str {
    match outcome {
        Fate::Sealed => "sealed",
        Fate::Copied => "copied",
        Fate::Written => "written",
        Fate::Secret => "secret",
        Fate::LeftOut(_) => "left out",
    }
}

#[derive(Serialize)]
struct CopyView {
    written: Vec<FileView>,
    left_out: Vec<FateView>,
}

fn copied(what: &str, report: &CopyReport) -> Outcome {
    let view = CopyView {
        written: report.written.iter().map(FileView::of).collect(),
        left_out: report
            .left_out
            .iter()
            .map(|(path, why)| FateView {
                path: path.clone(),
                fate: "left out",
                why: Some(why),
            })
            .collect(),
    };
    let total = view.written.iter().map(|file| file.bytes).sum();
    let mut text = format!("{what}: {} files, {}", view.written.len(), bytes(total));
    for file in &view.left_out {
        text.push_str(&format!(
            "\nleft out {}: {}",
            file.path,
            file.why.unwrap_or("")
        ));
    }
    Outcome::new(&view, text)
}

#[derive(Serialize)]
struct TensorView {
    tensor: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: u64,
    written: FileView,
}

/// Writes one tensor to a file that appears whole or not at all.
fn unlock_tensor(
    sealed: &Path,
    output: &Path,
    tensor: &str,
    key: &crate::args::KeyArgs,
) -> Result<Outcome> {
    // In a language model, dots separate the parts of a name; a slash ends a pipeline's folder.
    let (folder, name) = tensor.rsplit_once('/').unwrap_or(("", tensor));
    let key = files::open_key(key)?;
    let unlocked = sealing::unlock_tensor(sealed, &key, folder, name)?;
    let header = unlocked.header()?;
    let mut file = files::StagedFile::create(output)?;
    let mut hash = Sha256::new();
    for part in [&header, &unlocked.bytes] {
        hash.update(part);
        file.writer()
            .write_all(part)
            .with_context(|| format!("cannot write {}", output.display()))?;
    }
    file.finish()?;
    let view = TensorView {
        tensor: tensor.to_owned(),
        dtype: unlocked.info.dtype.name(),
        shape: unlocked.info.shape.clone(),
        bytes: unlocked.info.bytes,
        written: FileView {
            path: output.display().to_string(),
            bytes: header.len() as u64 + unlocked.info.bytes,
            sha256: hex::encode(hash.finalize()),
        },
    };
    let text = format!(
        "unlocked {tensor}: {} {:?}, {}",
        view.dtype,
        view.shape,
        bytes(view.bytes)
    );
    Ok(Outcome::new(&view, text))
}

#[derive(Serialize)]
struct VerifyView {
    tensors: u64,
    files: u64,
    largest_ulps: u64,
    differences: Vec<DifferenceView>,
}

#[derive(Serialize)]
struct DifferenceView {
    what: String,
    how: String,
}

fn verified(report: &VerifyReport) -> Outcome {
    let view = VerifyView {
        tensors: report.tensors,
        files: report.files,
        largest_ulps: report.largest_ulps,
        differences: report
            .differences
            .iter()
            .map(|difference| DifferenceView {
                what: difference.what.clone(),
                how: difference.how.clone(),
            })
            .collect(),
    };
    let mut text = format!(
        "{} tensors and {} files compared, largest difference {} ulp",
        view.tensors, view.files, view.largest_ulps
    );
    for difference in &view.differences {
        text.push_str(&format!("\n{}: {}", difference.what, difference.how));
    }
    let outcome = Outcome::new(&view, text);
    match report.differences.first() {
        None => outcome,
        Some(first) => outcome.refused(format!(
            "{} differences, the first: {}: {}",
            report.differences.len(),
            first.what,
            first.how
        )),
    }
}

#[derive(Serialize)]
struct ShowView {
    scheme: &'static str,
    transform: Option<&'static str>,
    fingerprint: String,
    architecture: String,
    lock: Option<String>,
    total_bytes: u64,
    files: std::collections::BTreeMap<String, u64>,
    record: Option<PathBuf>,
}

fn shown(shown: &Shown) -> Outcome {
    let view = ShowView {
        scheme: shown.scheme,
        transform: shown.transform,
        fingerprint: shown.fingerprint.clone(),
        architecture: shown.architecture.clone(),
        lock: shown.lock.clone(),
        total_bytes: shown.files.values().sum(),
        files: shown.files.clone(),
        record: shown.record.clone(),
    };
    let mut rows = vec![
        vec!["scheme".to_owned(), view.scheme.to_owned()],
        vec![
            "transform".to_owned(),
            view.transform.unwrap_or("none").to_owned(),
        ],
        vec!["fingerprint".to_owned(), view.fingerprint.clone()],
        vec!["architecture".to_owned(), view.architecture.clone()],
        vec![
            "lock".to_owned(),
            view.lock.clone().unwrap_or_else(|| "none".to_owned()),
        ],
    ];
    rows.extend(
        view.files
            .iter()
            .map(|(path, size)| vec!["file".to_owned(), format!("{path} {}", bytes(*size))]),
    );
    Outcome::new(&view, table(&rows))
}

#[derive(Serialize)]
struct RecognisedView {
    sealed: bool,
    /// The file that says so.
    file: Option<String>,
    scheme: Option<&'static str>,
    transform: Option<&'static str>,
    fingerprint: Option<String>,
    architecture: Option<String>,
    lock: Option<String>,
}

/// Says whether a folder is sealed. Neither answer is a refusal.
fn recognise(folder: &Path) -> Result<Outcome> {
    let found = SealMetadata::recognise(&Root::open(folder)?)?;
    let view = RecognisedView {
        sealed: found.is_some(),
        file: found.as_ref().map(|found| found.file.clone()),
        scheme: found.as_ref().map(|found| found.scheme.name()),
        transform: found
            .as_ref()
            .and_then(|found| found.transform)
            .map(Transform::name),
        fingerprint: found.as_ref().map(|found| found.fingerprint.to_string()),
        architecture: found.as_ref().map(|found| found.architecture.clone()),
        lock: found
            .as_ref()
            .and_then(|found| found.lock)
            .map(|lock| lock.to_string()),
    };
    let text = match &found {
        None => "not sealed".to_owned(),
        Some(found) => format!(
            "sealed: {} {}, lock {}, {}, key {}",
            found.scheme.name(),
            view.transform.unwrap_or("without a transform"),
            view.lock.as_deref().unwrap_or("none"),
            found.architecture,
            found.fingerprint
        ),
    };
    Ok(Outcome::new(&view, text))
}

fn check(folder: &Path, write: bool) -> Result<Outcome> {
    let folder =
        fs::canonicalize(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    ensure!(folder.is_dir(), "{} is not a folder", folder.display());
    let path = sealing::record_path(&folder)
        .with_context(|| format!("{} has no name for a record", folder.display()))?;
    if write {
        let record = StoreRecord::of(&folder)?;
        fs::write(&path, record.to_json())
            .with_context(|| format!("cannot write {}", path.display()))?;
        let text = format!(
            "{} files recorded in {}",
            record.files.len(),
            path.display()
        );
        return Ok(Outcome::new(&record, text));
    }
    if !path.is_file() && folder.join("kllm-manifest.json").is_file() {
        return Ok(checked(&sealing::check_catalog(&folder)?, "the manifest"));
    }
    let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let record = StoreRecord::from_json(&path.display().to_string(), &text)?;
    Ok(checked(&record.check(&folder)?, "the record"))
}

pub(super) fn checked(report: &CheckReport, against: &str) -> Outcome {
    let mut lines = Vec::new();
    for (what, paths) in [
        ("missing", &report.missing),
        ("not recorded", &report.extra),
        ("differs", &report.differing),
    ] {
        lines.extend(paths.iter().map(|path| format!("{what}: {path}")));
    }
    match lines.first().cloned() {
        None => Outcome::new(report, format!("as in {against}")),
        Some(first) => Outcome::new(report, lines.join("\n")).refused(format!(
            "{} files are not as in {against}, the first: {first}",
            lines.len()
        )),
    }
}

/// Runs long work with a bar; a signal stops it in order, so that nothing is left behind.
fn watched<T>(what: &str, total: u64, work: impl FnOnce(&Monitor<'_>) -> Result<T>) -> Result<T> {
    interruptible(|cancel| {
        let bar: ProgressBar = progress::bytes(what, total);
        let told = |step: Step| bar.inc(step.bytes);
        let result = work(&Monitor {
            progress: &told,
            cancel,
        });
        bar.finish_and_clear();
        result
    })
}

/// Bytes of the weights in a folder and in a pipeline's folders, for a bar; 0 when it cannot be told.
fn weight_bytes(folder: &Path) -> u64 {
    weight_bytes_to(folder, PIPELINE_DEPTH)
}

fn weight_bytes_to(folder: &Path, depth: u32) -> u64 {
    fs::read_dir(folder).map_or(0, |entries| {
        entries
            .flatten()
            .map(|entry| match entry.metadata() {
                Ok(metadata) if metadata.is_dir() && depth > 0 => {
                    weight_bytes_to(&entry.path(), depth - 1)
                }
                Ok(metadata) if entry.path().extension().is_some_and(|e| e == "safetensors") => {
                    metadata.len()
                }
                _ => 0,
            })
            .sum()
    })
}

/// Folders of a pipeline's parts, one within the other.
const PIPELINE_DEPTH: u32 = 1;
