//! `chancery jlm`.

mod describe;
mod write;

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use jlm::{Container, HEADER_LEN, Header, Region, Span};
use sealed_jlm::{Finding, SealedHeader, SealedJlmError};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tlog::ChunkHasher;

use self::describe::{diff, info};
use self::write::{open, seal};
use super::spans::ContainerFile;
use crate::args::{JlmCommand, OptionalKeyArgs};
use crate::files;
use crate::outcome::{Outcome, bytes, table};
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

/// A container's structure, and its seal when it is sealed.
fn structure(file: &ContainerFile) -> Result<(Container, Option<SealedHeader>)> {
    if !is_sealed(file)? {
        return Ok((plain_container(file)?.0, None));
    }
    let header = sealed_header(file)?;
    Ok((header.container().clone(), Some(header)))
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
