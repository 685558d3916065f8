//! Sealing and opening a container.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use identifiers::Sha256Digest;
use jlm::{Container, Region, Span, UnitId};
use model_key::{ModelKey, SubkeySource};
use sealed_jlm::{ChunkSize, SealParameters, Sealer};
use serde::Serialize;
use service_runtime::{Randomness, SystemRandomness};
use sha2::{Digest, Sha256};

use super::{digests, plain_container, sealed_header};
use crate::args::KeyArgs;
use crate::files::{self, StagedFile};
use crate::offline::spans::ContainerFile;
use crate::outcome::{Outcome, WrongUse, bytes};
use crate::progress;

#[derive(Serialize)]
struct WrittenView {
    written: String,
    bytes: u64,
    sha256: String,
    fingerprint: String,
}

impl WrittenView {
    fn outcome(self, what: &str) -> Outcome {
        let text = format!("{what} {} ({})", self.written, bytes(self.bytes));
        Outcome::new(&self, text)
    }
}

pub fn seal(path: &Path, output: &Path, aggregate: Option<&str>, key: &KeyArgs) -> Result<Outcome> {
    let file = ContainerFile::open(path)?;
    let (container, mut meta) = plain_container(&file)?;
    let aggregate = match aggregate {
        Some(text) => text
            .parse()
            .map_err(|error| WrongUse(format!("--source-aggregate: {error}")))?,
        None => own_aggregate(&file)?,
    };
    let key = files::open_key(key)?;
    let randomness: &dyn Randomness = &SystemRandomness;
    let parameters = SealParameters {
        salt: randomness.bytes(),
        chunk: ChunkSize::default(),
        aggregate,
        fingerprint: key.fingerprint(),
    };
    let mut sealer = Sealer::new(&meta, &parameters)?;
    sealer.seal_meta(&mut meta, |id| Ok::<_, anyhow::Error>(key.subkey(id)?))?;
    let mut out = Output::create(output, "sealing", file.length())?;
    out.write(&meta)?;
    let mut buffer = Vec::new();
    for (unit, span) in pages(&container) {
        buffer.resize(span.length as usize, 0);
        file.read(span, &mut buffer)?;
        let subkey = key.subkey(&sealer.subkey_id(unit))?;
        sealer.seal_unit(unit, &subkey, &mut buffer)?;
        out.write(&buffer)?;
    }
    out.write(&sealer.finish()?)?;
    Ok(out.finish(&key)?.outcome("sealed"))
}

pub fn open(path: &Path, output: &Path, key: &KeyArgs) -> Result<Outcome> {
    let file = ContainerFile::open(path)?;
    let header = sealed_header(&file)?;
    let key = files::open_key(key)?;
    header.require_fingerprint(key.fingerprint())?;
    let container = header.container();
    let unit = |unit: UnitId, buffer: &mut Vec<u8>| -> Result<()> {
        let span = container.unit(unit).context("the unit is laid out")?;
        buffer.resize(span.length as usize, 0);
        file.read(span, buffer)?;
        let subkey = key.subkey(&header.subkey_id(unit))?;
        Ok(header.open_unit(unit, &subkey, buffer)?)
    };
    let section = |region: Region| -> Result<Vec<u8>> {
        let mut buffer = Vec::new();
        if container.unit_count(region) > 0 {
            unit(UnitId::new(region, 0), &mut buffer)?;
        }
        Ok(buffer)
    };
    let (vision, vocab) = (section(Region::VisionConfig)?, section(Region::Vocab)?);
    let mut out = Output::create(output, "opening", container.header().file_len())?;
    out.write(&container.encode_meta(&vision, &vocab)?)?;
    let mut buffer = Vec::new();
    for (page, _) in pages(container) {
        unit(page, &mut buffer)?;
        out.write(&buffer)?;
    }
    Ok(out.finish(&key)?.outcome("opened"))
}

/// The units after the metadata, as they lie in the file, one after the other.
fn pages(container: &Container) -> impl Iterator<Item = (UnitId, Span)> + '_ {
    container
        .units()
        .filter(|unit| !matches!(unit.region, Region::Vocab | Region::VisionConfig))
        .filter_map(|unit| Some((unit, container.unit(unit)?)))
}

/// The aggregate of a source that is this one file.
fn own_aggregate(file: &ContainerFile) -> Result<Sha256Digest> {
    let (sha256, _) = digests(file)?;
    let record = (Sha256Digest::new(sha256), file.length());
    Ok(shard_identity::aggregate([record]))
}

/// A container that is being written, hashed on the way.
struct Output {
    file: StagedFile,
    path: String,
    bytes: u64,
    hash: Sha256,
    bar: indicatif::ProgressBar,
}

impl Output {
    fn create(path: &Path, what: &str, total: u64) -> Result<Self> {
        Ok(Self {
            file: StagedFile::create(path)?,
            path: path.display().to_string(),
            bytes: 0,
            hash: Sha256::new(),
            bar: progress::bytes(what, total),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .writer()
            .write_all(bytes)
            .with_context(|| format!("cannot write {}", self.path))?;
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.bar.inc(bytes.len() as u64);
        Ok(())
    }

    fn finish(self, key: &ModelKey) -> Result<WrittenView> {
        self.file.finish()?;
        self.bar.finish_and_clear();
        Ok(WrittenView {
            written: self.path,
            bytes: self.bytes,
            sha256: hex::encode(self.hash.finalize()),
            fingerprint: key.fingerprint().to_string(),
        })
    }
}
