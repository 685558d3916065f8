//! A sealed directory compared with a fresh seal of its base.

use std::path::Path;

use checkpoint::{Dtype, Root, TensorSource};
use model_key::SubkeySource;
use weight_transform::Transform;

use crate::blob::{blob_salt, open_trusted};
use crate::error::SealingError;
use crate::files::Outcome;
use crate::metadata::{Scheme, SealMetadata};
use crate::monitor::Monitor;
use crate::pipeline::Buffers;
use crate::rewrite;
use crate::scheme::{FilePlan, SealOptions};
use crate::seal::SealPlan;
use crate::source::UnlockingSource;
use crate::store::digest;

/// One way in which a sealed directory is not what its base gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The file, or the tensor with its folder.
    pub what: String,
    /// How it differs.
    pub how: String,
}

/// What a comparison saw.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VerifyReport {
    /// Tensors compared.
    pub tensors: u64,
    /// Files compared.
    pub files: u64,
    /// The largest difference seen, in units of the last place of the stored type.
    pub largest_ulps: u64,
    /// Every difference; empty where the directory is what the base gives.
    pub differences: Vec<Difference>,
}

/// A sealed directory and the base to compare it with. Made without a key.
pub struct Verification {
    sealed: Root,
    metadata: SealMetadata,
    plan: SealPlan,
}

impl Verification {
    /// Looks at both directories.
    pub fn new(sealed: Root, base: Root) -> Result<Self, SealingError> {
        let metadata = SealMetadata::require(&sealed)?;
        let options = SealOptions {
            transform: metadata.transform.unwrap_or(Transform::Perm),
            lock: metadata.lock,
            client: metadata.scheme == Scheme::Client,
            salt: blob_salt(&sealed, metadata.scheme)?,
        };
        Ok(Self {
            plan: SealPlan::from_root(base, options)?,
            sealed,
            metadata,
        })
    }

    /// How the base would be sealed.
    #[must_use]
    pub fn plan(&self) -> &SealPlan {
        &self.plan
    }

    /// Seals the base again under the key, in memory, and compares tensor by tensor (unlocked) and
    /// file by file. Tensors that the transform computes in floating point may differ by `ulps`; all
    /// others are equal to the bit. Asks for the subkeys of [`SealPlan::subkeys`].
    pub fn compare(
        &self,
        keys: &dyn SubkeySource,
        ulps: u64,
        monitor: &Monitor<'_>,
    ) -> Result<VerifyReport, SealingError> {
        self.metadata.check_key(keys)?;
        let mut report = VerifyReport::default();
        compare_tensors(&self.sealed, &self.plan, keys, ulps, monitor, &mut report)?;
        compare_files(&self.sealed, &self.plan, keys, &mut report)?;
        Ok(report)
    }
}

/// Compares a sealed directory with its base: see [`Verification::compare`].
pub fn verify(
    sealed: &Path,
    base: &Path,
    keys: &dyn SubkeySource,
    ulps: u64,
    monitor: &Monitor<'_>,
) -> Result<VerifyReport, SealingError> {
    Verification::new(Root::open(sealed)?, Root::open(base)?)?.compare(keys, ulps, monitor)
}

fn compare_tensors(
    root: &Root,
    plan: &SealPlan,
    keys: &dyn SubkeySource,
    ulps: u64,
    monitor: &Monitor<'_>,
    report: &mut VerifyReport,
) -> Result<(), SealingError> {
    let sealer = plan.bind(keys)?;
    let buffers = Buffers::default();
    let mut open: Option<(String, UnlockingSource<'_>)> = None;
    let mut expected: Vec<(String, String)> = Vec::new();
    for (component, name, recipe) in sealer.outputs() {
        monitor.check()?;
        let Some(recipe) = recipe else { continue };
        let folder = component.folder.as_str();
        if open.as_ref().is_none_or(|(opened, _)| opened != folder) {
            open = Some((
                folder.to_owned(),
                UnlockingSource::open(root, folder, keys)?,
            ));
        }
        let Some((_, source)) = &open else { continue };
        let what = crate::locking::tensor_id(folder, name);
        expected.push((folder.to_owned(), name.to_owned()));
        report.tensors += 1;
        let info = component.source(recipe);
        let found = source.tensor(name);
        let Some(found) = found.filter(|f| f.dtype == info.dtype && f.shape == info.shape) else {
            report.differ(what, "missing, or of another type or shape");
            continue;
        };
        let ours = sealer.transform(component, recipe, &buffers)?;
        let theirs = buffers.read(source, &found.name)?;
        if ours != theirs {
            let distance = largest_distance(info.dtype, &ours, &theirs);
            report.largest_ulps = report.largest_ulps.max(distance.unwrap_or(u64::MAX));
            let allowed = if recipe.is_dense() { ulps } else { 0 };
            match distance {
                Some(distance) if distance <= allowed => {}
                Some(distance) => report.differ(what, format!("differs by {distance} ulps")),
                None => report.differ(what, "differs"),
            }
        }
        monitor.tensor(info.bytes);
        buffers.give_back(ours);
        buffers.give_back(theirs);
    }
    let folders: std::collections::BTreeSet<String> =
        expected.iter().map(|(folder, _)| folder.clone()).collect();
    let expected: std::collections::HashSet<(String, String)> = expected.into_iter().collect();
    for folder in folders {
        let source = UnlockingSource::open(root, &folder, keys)?;
        for info in source.tensors() {
            if !expected.contains(&(folder.clone(), info.name.clone())) {
                let what = crate::locking::tensor_id(&folder, &info.name);
                report.differ(what, "not among the base's tensors");
            }
        }
    }
    Ok(())
}

fn compare_files(
    root: &Root,
    plan: &SealPlan,
    keys: &dyn SubkeySource,
    report: &mut VerifyReport,
) -> Result<(), SealingError> {
    let trusted = open_trusted(root, keys)?;
    for file in plan.files() {
        let path = file.path.as_str();
        let expected = match &file.plan {
            FilePlan::Copy => {
                let ours = plan.root().open_file(path)?;
                let same =
                    root.has_file(path)? && digest(&ours)? == digest(&root.open_file(path)?)?;
                report.compared(path, same);
                continue;
            }
            FilePlan::Tokenizer(value, tokens) => rewrite::tokenizer(value, *tokens, keys)?,
            FilePlan::VocabularyFile(value, tokens) => {
                rewrite::vocabulary(path, value, *tokens, keys)?
            }
            FilePlan::LatentStatistics(value, latent, channels) => {
                let text = rewrite::latent_statistics(value, &latent.order(keys, *channels)?);
                let found =
                    root.has_file(path)? && root.read_file(path, MAX_SMALL)? == text.as_bytes();
                report.compared(path, found);
                continue;
            }
            FilePlan::Weights | FilePlan::Replaced | FilePlan::LeaveOut(_) => continue,
        };
        report.compared(path, trusted.file(path) == Some(expected.as_bytes()));
    }
    for file in plan.files() {
        let withheld = matches!(file.plan.outcome(), Outcome::LeftOut(_) | Outcome::Secret);
        if withheld && !file.path.ends_with(".safetensors") && root.has_file(&file.path)? {
            report.differ(
                file.path.clone(),
                "is in the sealed directory and should not be",
            );
        }
    }
    Ok(())
}

/// The largest distance in units of the last place; `None` where the type has none.
fn largest_distance(dtype: Dtype, ours: &[u8], theirs: &[u8]) -> Option<u64> {
    let width = match dtype {
        Dtype::BF16 | Dtype::F16 => 2,
        Dtype::F32 => 4,
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => 1,
        _ => return None,
    };
    let pairs = ours.chunks_exact(width).zip(theirs.chunks_exact(width));
    pairs
        .map(|(a, b)| (ordinal(a) - ordinal(b)).unsigned_abs())
        .max()
}

/// A float's place among all floats of its type; both zeros are 0.
fn ordinal(bytes: &[u8]) -> i64 {
    let bits = bytes
        .iter()
        .rev()
        .fold(0_i64, |bits, byte| bits << 8 | i64::from(*byte));
    let sign = 1_i64 << (8 * bytes.len() - 1);
    if bits & sign == 0 {
        bits
    } else {
        -(bits & !sign)
    }
}

impl VerifyReport {
    fn differ(&mut self, what: impl Into<String>, how: impl Into<String>) {
        self.differences.push(Difference {
            what: what.into(),
            how: how.into(),
        });
    }

    fn compared(&mut self, path: &str, same: bool) {
        self.files += 1;
        if !same {
            self.differ(path, "differs from what the base gives, or is missing");
        }
    }
}

const MAX_SMALL: u64 = 256 << 20;
