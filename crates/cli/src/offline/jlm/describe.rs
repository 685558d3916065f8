//! What a container is, and what two containers differ in.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use jlm::{Container, Side, Span};
use sealed_jlm::SealedHeader;
use serde::Serialize;

use super::structure;
use crate::files::StagedFile;
use crate::offline::spans::ContainerFile;
use crate::outcome::{Outcome, bytes, heading, table};

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

pub fn info(file: &ContainerFile, map: Option<&Path>) -> Result<Outcome> {
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

pub fn diff(left: &ContainerFile, right: &ContainerFile) -> Result<Outcome> {
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

/// Stands for what a container does not have.
const ABSENT: &str = "-";
