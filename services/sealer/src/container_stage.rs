//! The sealed container: made of the sealed checkpoint's unlocked tensors, sealed unit by unit as
//! it is written. It never stands on disk in clear.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{CheckpointError, Root, StagedDir, WrittenFile};
use convert::{Options, Plan, SourceFiles};
use identifiers::Sha256Digest;
use jlm::{Region, UnitId, WriterFingerprint};
use model_key::{GrantedSubkeys, SubkeyId, SubkeySource as _};
use receipt::KeyRef;
use registry_domain::{DurableFile, ManifestFile, RegionUnits};
use sealed_jlm::{ChunkSize, SealParameters, Sealer};
use sealing::{Step, TrustedFiles, UnlockingSource, open_trusted};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::failure::JobError;
use crate::job::{Attempt, OutputFile};
use crate::order::SealOrder;
use crate::resume::{Resume, manifest_file};

/// A sealed container that is durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedContainer {
    pub file: ManifestFile,
    pub units: Vec<RegionUnits>,
}

/// What [`DurableFile::detail`] holds for a container.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Detail {
    units: Vec<RegionUnits>,
}

/// The container that an earlier attempt made durable.
pub fn recorded(file: &DurableFile) -> Result<SealedContainer, JobError> {
    let detail: Detail = serde_json::from_value(file.detail.clone())
        .map_err(|_| JobError::refused("state-damaged", "a durable file's record is damaged"))?;
    Ok(SealedContainer {
        file: manifest_file(file),
        units: detail.units,
    })
}

/// Makes and stores the container of the checkpoint in `staged`.
pub fn seal(
    attempt: &Arc<Attempt>,
    order: &SealOrder,
    keys: &GrantedSubkeys,
    key: &KeyRef,
    resume: &Resume,
    staged: &StagedDir,
) -> Result<SealedContainer, JobError> {
    attempt.meter.phase("planning the container");
    let root = Root::open(staged.path())?;
    let source = UnlockingSource::open(&root, "", keys)?;
    let files = small_files(&root, &open_trusted(&root, keys)?)?;
    let options = Options {
        widen_bf16: false,
        q8: order.q8,
        fingerprint: writer(),
    };
    let plan = convert::plan(&source, &files, &options)?;
    for warning in plan.warnings() {
        tracing::warn!(job = %attempt.lease.job.id, %warning, "container");
    }
    let parameters = SealParameters {
        salt: resume.container_salt,
        chunk: ChunkSize::default(),
        aggregate: resume.source.aggregate(),
        fingerprint: keys.fingerprint(),
    };
    let sealer = Sealer::new(plan.meta(), &parameters)?;
    let unit_keys = unit_keys(attempt, order, key, resume, &sealer)?;
    attempt.meter.phase("sealing the container");
    attempt
        .meter
        .expect_left(plan.container().header().file_len());
    let units = unit_counts(sealer.container());
    let name = format!("{}.jlm", attempt.order.model);
    let on_disk = attempt.folder.join("container.jlm");
    let written = Writing {
        attempt,
        out: Output::create(&on_disk)?,
        unit_keys: &unit_keys,
    }
    .run(&plan, sealer, name)?;
    attempt.meter.phase("storing the container");
    let detail = serde_json::to_value(Detail {
        units: units.clone(),
    })
    .map_err(|error| JobError::refused("sealer-failed", error.to_string()))?;
    let file = attempt.wait(attempt.store(OutputFile {
        stage: CONTAINER,
        number: 0,
        on_disk,
        written,
        detail,
        keep: false,
    }))??;
    Ok(SealedContainer { file, units })
}

/// The keys of every unit, under a grant that is made to last until they are here.
fn unit_keys(
    attempt: &Attempt,
    order: &SealOrder,
    key: &KeyRef,
    resume: &Resume,
    sealer: &Sealer,
) -> Result<GrantedSubkeys, JobError> {
    let ids: Vec<SubkeyId> = sealer
        .container()
        .units()
        .map(|unit| sealer.subkey_id(unit))
        .collect();
    attempt.wait(async {
        let grant = attempt.open_grant(key, &resume.terms(order)).await?;
        attempt.fetch(&grant, ids).await
    })?
}

struct Writing<'a> {
    attempt: &'a Attempt,
    out: Output,
    unit_keys: &'a GrantedSubkeys,
}

impl Writing<'_> {
    /// Writes metadata, units and seal section. While a unit is written, the next is produced.
    fn run(
        mut self,
        plan: &Plan<'_>,
        mut sealer: Sealer,
        name: String,
    ) -> Result<WrittenFile, JobError> {
        let mut meta = plan.meta().to_vec();
        sealer.seal_meta(&mut meta, |id| {
            self.unit_keys.subkey(id).map_err(JobError::from)
        })?;
        self.put(&meta)?;
        let units: Vec<UnitId> = plan.units().collect();
        let (mut ready, mut next) = (Vec::new(), Vec::new());
        for unit in units {
            if self.attempt.stop.is_set() {
                return Err(JobError::Stopped);
            }
            let length = plan.container().unit_len(unit.region);
            next.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
            let (written, produced) =
                rayon::join(|| self.put(&ready), || plan.write_unit(unit, &mut next));
            written?;
            produced?;
            let key = self.unit_keys.subkey(&sealer.subkey_id(unit))?;
            sealer.seal_unit(unit, &key, &mut next)?;
            std::mem::swap(&mut ready, &mut next);
        }
        self.put(&ready)?;
        self.out.write(&sealer.finish()?)?;
        Ok(self.out.finish(name))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        self.out.write(bytes)?;
        self.attempt.meter.done(Step {
            bytes: bytes.len() as u64,
            tensors: 0,
        });
        Ok(())
    }
}

/// The file under way, hashed as it is written. It needs no sync: storage makes it durable.
struct Output {
    file: File,
    hash: Sha256,
    length: u64,
}

impl Output {
    fn create(path: &Path) -> Result<Self, JobError> {
        Ok(Self {
            file: File::create(path)?,
            hash: Sha256::new(),
            length: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), JobError> {
        let (written, ()) = rayon::join(|| self.file.write_all(bytes), || self.hash.update(bytes));
        written?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn finish(self, name: String) -> WrittenFile {
        WrittenFile {
            path: name,
            bytes: self.length,
            sha256: Sha256Digest::new(self.hash.finalize().into()),
        }
    }
}

/// The files that conversion reads: secret ones from the trusted blob, the others from the folder.
fn small_files(root: &Root, trusted: &TrustedFiles) -> Result<SourceFiles, CheckpointError> {
    SourceFiles::collect(|name| match trusted.file(name) {
        Some(bytes) => Ok(Some(bytes.to_vec())),
        None if root.has_file(name)? => root.read_file(name, MAX_SMALL_FILE).map(Some),
        None => Ok(None),
    })
}

fn unit_counts(container: &jlm::Container) -> Vec<RegionUnits> {
    let counts = Region::ALL.into_iter().map(|region| RegionUnits {
        region: region.id(),
        count: container.unit_count(region),
    });
    counts.filter(|units| units.count > 0).collect()
}

/// The same on every machine: a retry elsewhere makes the same bytes.
fn writer() -> WriterFingerprint {
    WriterFingerprint {
        host: String::new(),
        device: "cpu".to_owned(),
        writer: concat!("chancery ", env!("CARGO_PKG_VERSION")).to_owned(),
        vram: 0,
    }
}

/// The stage's name in the record of durable files.
pub const CONTAINER: &str = "container";
const MAX_SMALL_FILE: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_container_comes_back_with_its_units() {
        let units = vec![RegionUnits {
            region: 4,
            count: 2,
        }];
        let durable = DurableFile {
            stage: CONTAINER.to_owned(),
            number: 0,
            path: "tiny.jlm".to_owned(),
            size: 10,
            sha256: Sha256Digest::new([1; 32]),
            chunk_root: Sha256Digest::new([2; 32]),
            detail: serde_json::json!({ "units": [{ "region": 4, "count": 2 }] }),
        };
        let container = recorded(&durable).unwrap();
        assert_eq!((container.units, container.file.size), (units, 10));
        let damaged = DurableFile {
            detail: serde_json::Value::Null,
            ..durable
        };
        assert!(recorded(&damaged).is_err());
    }
}
