//! `chancery jlm`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use identifiers::Sha256Digest;
use jlm::{Container, HEADER_LEN, Header, Region, Side, Span, UnitId};
use model_key::{ModelKey, SubkeySource};
use sealed_jlm::{ChunkSize, Finding, SealParameters, SealedHeader, SealedJlmError, Sealer};
use serde::Serialize;
use service_runtime::{Randomness, SystemRandomness};
use sha2::{Digest, Sha256};
use tlog::ChunkHasher;

use super::spans::ContainerFile;
use crate::args::{JlmCommand, KeyArgs, OptionalKeyArgs};
use crate::files::{self, StagedFile};
use crate::outcome::{Outcome, WrongUse, bytes, heading, table};
use crate::progress;

/// Runs a command.
pub fn execute(command: JlmCommand) -> Result<Outcome> {
    match command {
        JlmCommand::Dump { file } => dump(&file),
        JlmCommand::Info { file, svg } => info(&ContainerFile::open(&file)?, svg.as_deref()),
        JlmCommand::Diff { left, right } => {
            diff(&ContainerFile::open(&left)?, &ContainerFile::open(&right)?)
        }
        JlmCommand::Seal {
            file,
            output,
            source_aggregate,
            key,
        } => seal(&file, &output, source_aggregate.as_deref(), &key),
        JlmCommand::Open { file, output, key } => open(&file, &output, &key),
        JlmCommand::Verify { file, key } => verify(&ContainerFile::open(&file)?, &key),
    }
}

fn dump(path: &Path) -> Result<Outcome> {
    let file = ContainerFile::open(path)?;
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} is no file name", path.display()))?;
    let value = jlm::dump(name, file.length(), &mut |span, out| file.read(span, out))
        .with_context(|| file.name().to_owned())?;
    let text = serde_json::to_string_pretty(&value)?;
    Ok(Outcome::new(&value, text))
}

/// A part of a container.
#[derive(Debug, Serialize)]
pub struct RegionView {
    region: &'static str,
    offset: u64,
    bytes: u64,
    units: u64,
    unit_bytes: u64,
}

/// The regions that a container has.
pub fn regions(container: &Container) -> Vec<RegionView> {
    Region::ALL
        .into_iter()
        .filter(|region| container.unit_count(*region) > 0)
        .map(|region| {
            let span = container.region(region);
            RegionView {
                region: region.name(),
                offset: span.offset,
                bytes: span.length,
                units: container.unit_count(region),
                unit_bytes: container.unit_len(region),
            }
        })
        .collect()
}

/// Regions as rows of a table.
pub fn region_rows(regions: &[RegionView]) -> Vec<Vec<String>> {
    regions
        .iter()
        .map(|region| {
            vec![
                region.region.to_owned(),
                format!(
                    "at {}, {}: {} of {}",
                    region.offset,
                    bytes(region.bytes),
                    region.units,
                    bytes(region.unit_bytes)
                ),
            ]
        })
        .collect()
}

#[derive(Serialize)]
struct InfoView {
    sealed: Option<SealView>,
    version: u32,
    architecture: &'static str,
    blocks: u32,
    experts: u32,
    vocabulary: u32,
    tensors: usize,
    file_bytes: u64,
    parts: Vec<PartView>,
    pages: Vec<PagesView>,
    writer: String,
    map: Option<String>,
}

#[derive(Serialize)]
struct SealView {
    fingerprint: String,
    source_aggregate: String,
    salt: String,
}

/// A part of the file.
#[derive(Serialize)]
struct PartView {
    part: &'static str,
    offset: u64,
    bytes: u64,
    pages: u64,
    page_bytes: u64,
}

/// Consecutive pages that are equally full.
#[derive(Serialize)]
struct PagesView {
    array: &'static str,
    first: u64,
    last: u64,
    offset: u64,
    page_bytes: u64,
    bytes_in_use: u64,
}

fn info(file: &ContainerFile, map: Option<&Path>) -> Result<Outcome> {
    let (container, sealed) = structure(file)?;
    let sealed = sealed.map(|header| SealView {
        fingerprint: header.fingerprint().to_string(),
        source_aggregate: header.aggregate().to_string(),
        salt: hex::encode(header.salt()),
    });
    if let Some(path) = map {
        let mut staged = StagedFile::create(path)?;
        staged
            .writer()
            .write_all(jlm::map_svg(&container, file.name()).as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        staged.finish()?;
    }
    let config = container.config();
    let view = InfoView {
        sealed,
        version: container.header().version.number(),
        architecture: config.arch.name(),
        blocks: config.n_layer,
        experts: container.experts(),
        vocabulary: config.n_vocab,
        tensors: container.tensors().len(),
        file_bytes: file.length(),
        parts: part_views(&container),
        pages: page_views(&container),
        writer: container.fingerprint().writer.clone(),
        map: map.map(|path| path.display().to_string()),
    };
    Ok(Outcome::new(&view, info_text(&view)))
}

fn part_views(container: &Container) -> Vec<PartView> {
    let parts = jlm::parts(container).into_iter();
    parts
        .map(|(part, span, page_bytes)| PartView {
            part,
            offset: span.offset,
            bytes: span.length,
            pages: span.length.checked_div(page_bytes).unwrap_or(0),
            page_bytes,
        })
        .collect()
}

fn page_views(container: &Container) -> Vec<PagesView> {
    let runs = jlm::page_runs(container).into_iter();
    runs.map(|run| {
        let page_bytes = container.page_len(run.region);
        PagesView {
            array: run.region.name(),
            first: run.first,
            last: run.first + run.count - 1,
            offset: container.region(run.region).offset + run.first * page_bytes,
            page_bytes,
            bytes_in_use: run.in_use,
        }
    })
    .collect()
}

fn info_text(view: &InfoView) -> String {
    let fact = |name: &str, value: String| vec![name.to_owned(), value];
    let mut facts = vec![
        fact("version", view.version.to_string()),
        fact("architecture", view.architecture.to_owned()),
        fact("blocks", view.blocks.to_string()),
    ];
    if view.experts > 0 {
        facts.push(fact("experts", format!("{} a block", view.experts)));
    }
    facts.extend([
        fact("vocabulary", view.vocabulary.to_string()),
        fact("tensors", view.tensors.to_string()),
        fact("file", bytes(view.file_bytes)),
        fact("written by", view.writer.clone()),
    ]);
    if let Some(seal) = &view.sealed {
        facts.push(fact("sealed under", seal.fingerprint.clone()));
        facts.push(fact("source", seal.source_aggregate.clone()));
    }
    if let Some(map) = &view.map {
        facts.push(fact("map", map.clone()));
    }
    let mut parts = vec![heading(&["part", "offset", "bytes", "pages", "page bytes"])];
    parts.extend(view.parts.iter().map(|part| {
        vec![
            part.part.to_owned(),
            part.offset.to_string(),
            part.bytes.to_string(),
            part.pages.to_string(),
            part.page_bytes.to_string(),
        ]
    }));
    let mut text = format!("{}\n{}", table(&facts), table(&parts));
    if !view.pages.is_empty() {
        let mut pages = vec![heading(&["pages", "offset", "bytes in use", "of", "full"])];
        pages.extend(view.pages.iter().map(|run| {
            let numbers = match run.last - run.first {
                0 => run.first.to_string(),
                _ => format!("{} to {}", run.first, run.last),
            };
            let percent = 100.0 * run.bytes_in_use as f64 / run.page_bytes as f64;
            vec![
                format!("{} {numbers}", run.array),
                run.offset.to_string(),
                run.bytes_in_use.to_string(),
                run.page_bytes.to_string(),
                format!("{percent:.1}%"),
            ]
        }));
        text.push('\n');
        text.push_str(&table(&pages));
    }
    text
}

#[derive(Serialize)]
struct DiffView {
    same: bool,
    differences: Vec<DifferenceView>,
}

#[derive(Serialize)]
struct DifferenceView {
    part: &'static str,
    name: String,
    left: String,
    right: String,
}

fn diff(left: &ContainerFile, right: &ContainerFile) -> Result<Outcome> {
    let (a, sealed_a) = structure(left)?;
    let (b, sealed_b) = structure(right)?;
    let mut found = jlm::compare_structure(&a, &b);
    let mut differences = compare_seals(sealed_a.as_ref(), sealed_b.as_ref());
    let mut read = |side, span: Span, out: &mut [u8]| -> Result<()> {
        let file = match side {
            Side::Left => left,
            Side::Right => right,
        };
        file.read(span, out)
            .with_context(|| format!("cannot read {}", file.name()))
    };
    // What is sealed differs in every byte unless it is the same file: planes say nothing then.
    if sealed_a.is_none() && sealed_b.is_none() {
        found.extend(jlm::compare_planes(&a, &b, &mut read)?);
    }
    if sealed_a.is_some() == sealed_b.is_some() {
        found.extend(jlm::compare_pages(&a, &b, &mut read)?);
    }
    differences.extend(found.into_iter().map(|difference| DifferenceView {
        part: difference.part.name(),
        name: difference.name,
        left: difference.left,
        right: difference.right,
    }));
    let view = DiffView {
        same: differences.is_empty(),
        differences,
    };
    if view.same {
        return Ok(Outcome::new(&view, "no difference"));
    }
    let mut rows = vec![heading(&["part", "name", "left", "right"])];
    rows.extend(view.differences.iter().map(|difference| {
        vec![
            difference.part.to_owned(),
            difference.name.clone(),
            difference.left.clone(),
            difference.right.clone(),
        ]
    }));
    let count = view.differences.len();
    let reason = format!(
        "{} and {} differ: {count} difference{}",
        left.name(),
        right.name(),
        if count == 1 { "" } else { "s" }
    );
    Ok(Outcome::new(&view, table(&rows)).refused(reason))
}

fn compare_seals(left: Option<&SealedHeader>, right: Option<&SealedHeader>) -> Vec<DifferenceView> {
    let fields = |header: Option<&SealedHeader>| {
        header.map_or([ABSENT; 4].map(str::to_owned), |header| {
            [
                header.fingerprint().to_string(),
                header.aggregate().to_string(),
                hex::encode(header.salt()),
                header.chunk().bytes().to_string(),
            ]
        })
    };
    let names = ["fingerprint", "source aggregate", "salt", "chunk"];
    let pairs = fields(left).into_iter().zip(fields(right));
    names
        .into_iter()
        .zip(pairs)
        .filter(|(_, (left, right))| left != right)
        .map(|(name, (left, right))| DifferenceView {
            part: "seal",
            name: name.to_owned(),
            left,
            right,
        })
        .collect()
}

/// A container's structure, and its seal when it is sealed.
fn structure(file: &ContainerFile) -> Result<(Container, Option<SealedHeader>)> {
    if !is_sealed(file)? {
        return Ok((plain_container(file)?.0, None));
    }
    let header = sealed_header(file)?;
    Ok((header.container().clone(), Some(header)))
}

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

fn seal(path: &Path, output: &Path, aggregate: Option<&str>, key: &KeyArgs) -> Result<Outcome> {
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

fn open(path: &Path, output: &Path, key: &KeyArgs) -> Result<Outcome> {
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

#[derive(Serialize)]
struct VerifyView {
    sealed: bool,
    chunk_root: String,
    sha256: String,
    /// Units that were opened with the key; `None` without one.
    units_opened: Option<u64>,
    findings: Vec<String>,
}

fn verify(file: &ContainerFile, key: &OptionalKeyArgs) -> Result<Outcome> {
    let sealed = is_sealed(file)?;
    let mut view = VerifyView {
        sealed,
        chunk_root: String::new(),
        sha256: String::new(),
        units_opened: None,
        findings: Vec::new(),
    };
    if sealed {
        let header = sealed_header(file)?;
        if let Some(key) = files::open_optional_key(key)? {
            let findings = sealed_jlm::verify(
                file.length(),
                &mut |span, out: &mut [u8]| file.read(span, out),
                &key,
            )?;
            view.units_opened = Some(header.container().units().count() as u64);
            view.findings = findings.iter().map(Finding::to_string).collect();
        }
    } else {
        let (container, meta) = plain_container(file)?;
        container.vocab(&meta)?;
    }
    let (sha256, chunk_root) = digests(file)?;
    view.sha256 = hex::encode(sha256);
    view.chunk_root = chunk_root;
    let checked = match (sealed, view.units_opened) {
        (true, Some(units)) => format!("structure, and {units} units opened"),
        (true, None) => "structure; give --key to open every unit".to_owned(),
        (false, _) => "structure and vocabulary of a plain container".to_owned(),
    };
    let mut rows = vec![
        vec!["checked".to_owned(), checked],
        vec!["sha256".to_owned(), view.sha256.clone()],
        vec!["chunk root".to_owned(), view.chunk_root.clone()],
    ];
    rows.extend(
        view.findings
            .iter()
            .map(|finding| vec!["wrong".to_owned(), finding.clone()]),
    );
    let outcome = Outcome::new(&view, table(&rows));
    Ok(match view.findings.first() {
        None => outcome,
        Some(first) => outcome.refused(format!("{}: {first}", file.name())),
    })
}

/// Whether the file begins as a sealed container.
fn is_sealed(file: &ContainerFile) -> Result<bool> {
    let start = file.start(HEADER_LEN)?;
    match SealedHeader::refuse_plain(&start) {
        Ok(()) => Ok(true),
        Err(SealedJlmError::Plain(_)) => Ok(false),
        // Whatever else it is, the plain decoder says it best.
        Err(_) if Header::decode(&start, file.length()).is_ok() => Ok(false),
        Err(error) => Err(anyhow::Error::new(error).context(file.name().to_owned())),
    }
}

fn sealed_header(file: &ContainerFile) -> Result<SealedHeader> {
    match sealed_jlm::fsck(file.length(), &mut |span, out: &mut [u8]| {
        file.read(span, out)
    })? {
        Ok(header) => Ok(header),
        Err(Finding::Structure(error)) => {
            Err(anyhow::Error::new(error).context(file.name().to_owned()))
        }
        Err(finding) => bail!("{}: {finding}", file.name()),
    }
}

/// A plain container and its bytes before the dense region.
fn plain_container(file: &ContainerFile) -> Result<(Container, Vec<u8>)> {
    let read = || -> Result<(Container, Vec<u8>)> {
        let start = file.start(HEADER_LEN)?;
        let header = Header::decode(&start, file.length())?;
        let meta = file.bytes(Span::new(0, header.meta_len()))?;
        let container = Container::decode(&meta, file.length())?;
        Ok((container, meta))
    };
    read().with_context(|| file.name().to_owned())
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

fn digests(file: &ContainerFile) -> Result<([u8; 32], String)> {
    let bar = progress::bytes("hashing", file.length());
    let (mut hash, mut chunks) = (Sha256::new(), ChunkHasher::new());
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < file.length() {
        let step = (buffer.len() as u64).min(file.length() - at);
        let part = &mut buffer[..step as usize];
        file.read(Span::new(at, step), part)?;
        hash.update(&part);
        chunks.update(part);
        at += step;
        bar.inc(step);
    }
    bar.finish_and_clear();
    let root = hex::encode(chunks.finish().root().as_bytes());
    Ok((hash.finalize().into(), format!("sha256:{root}")))
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
        let writer: &mut BufWriter<File> = self.file.writer();
        writer
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

/// Stands for what a container does not have.
const ABSENT: &str = "-";
