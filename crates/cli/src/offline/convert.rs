//! `chancery convert`.

mod resume;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context as _, Result};
use checkpoint::{Checkpoint, CheckpointError, Root, TensorSource};
use convert::{Options, Plan, SourceFiles};
use gguf::{Gguf, GgufError};
use jlm::{Container, Span, WriterFingerprint};
use resume::Resumable;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::jlm::{RegionView, region_rows, regions};
use super::spans::ContainerFile;
use crate::args::ConvertArgs;
use crate::outcome::{Outcome, WrongUse, bytes, table};
use crate::progress;

/// Runs the command.
pub fn execute(arguments: &ConvertArgs) -> Result<Outcome> {
    let options = Options {
        widen_bf16: arguments.widen_bf16,
        q8: arguments.q8,
        fingerprint: fingerprint(arguments.fingerprint.as_deref())?,
    };
    if arguments.source.is_dir() {
        let source = Checkpoint::open(&arguments.source)?;
        let files = small_files(source.root())?;
        let source: &dyn TensorSource = &source;
        let plan = convert::plan(source, &files, &options)?;
        return produce(arguments, &plan);
    }
    if arguments.q8 || arguments.widen_bf16 {
        let message = "--q8 and --widen-bf16 are for checkpoint folders: a GGUF file's blocks stay";
        return Err(WrongUse(message.to_owned()).into());
    }
    let file = ContainerFile::open(&arguments.source)?;
    let gguf = read_gguf(&file)?;
    let plan = convert::plan_gguf(&gguf, &file, &options.fingerprint)?;
    produce(arguments, &plan)
}

#[derive(Serialize)]
struct PlanView {
    written: Option<String>,
    bytes: u64,
    /// Matrices and vectors that an interrupted run had written.
    resumed: u64,
    tensors: Vec<TensorView>,
    regions: Vec<RegionView>,
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct TensorView {
    role: &'static str,
    block: i32,
    dtype: &'static str,
    dims: Vec<u64>,
}

fn produce(arguments: &ConvertArgs, plan: &Plan<'_>) -> Result<Outcome> {
    let resumed = match arguments.plan {
        true => 0,
        false => write(arguments, plan)?,
    };
    let container = plan.container();
    let view = PlanView {
        written: (!arguments.plan).then(|| arguments.output.display().to_string()),
        bytes: container.header().file_len(),
        resumed,
        tensors: tensors(container),
        regions: regions(container),
        warnings: plan.warnings().iter().map(ToString::to_string).collect(),
    };
    let mut rows = vec![
        vec![
            match &view.written {
                Some(path) => format!("written {path}"),
                None => "would be written".to_owned(),
            },
            bytes(view.bytes),
        ],
        vec!["tensors".to_owned(), view.tensors.len().to_string()],
    ];
    if resumed > 0 {
        let text = format!("{resumed} matrices and vectors were written before");
        rows.push(vec!["resumed".to_owned(), text]);
    }
    rows.extend(region_rows(&view.regions));
    if arguments.plan {
        rows.extend(view.tensors.iter().map(|tensor| {
            vec![
                format!("{} {}", tensor.role, tensor.block),
                format!("{} {:?}", tensor.dtype, tensor.dims),
            ]
        }));
    }
    let mut text = table(&rows);
    for warning in &view.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    Ok(Outcome::new(&view, text))
}

/// Writes the container tensor by tensor and returns how many an interrupted run had written.
fn write(arguments: &ConvertArgs, plan: &Plan<'_>) -> Result<u64> {
    let mut output = Resumable::open(&arguments.output, &identity(&arguments.source, plan)?)?;
    let bar = progress::bytes("converting", plan.container().header().file_len());
    output.write(Span::new(0, plan.meta().len() as u64), plan.meta())?;
    bar.inc(plan.meta().len() as u64);
    let (mut buffer, mut resumed) = (Vec::new(), 0);
    for (index, piece) in plan.pieces().iter().enumerate() {
        let planes = piece.planes().as_array();
        buffer.resize(piece.length() as usize, 0);
        if output.has(index, &planes, &mut buffer) {
            resumed += 1;
        } else {
            plan.write_piece(piece, &mut buffer)?;
            output.put(index, &planes, &buffer)?;
        }
        bar.inc(piece.length());
    }
    output.finish(plan.container().header().file_len())?;
    bar.finish_and_clear();
    Ok(resumed)
}

/// What an interrupted run must have had for this one to continue it: the container's metadata, and
/// the source's files by name, size and time of change.
fn identity(source: &Path, plan: &Plan<'_>) -> Result<String> {
    let in_source = || format!("cannot read {}", source.display());
    let mut files = vec![source.to_owned()];
    if source.is_dir() {
        for entry in source.read_dir().with_context(in_source)? {
            files.push(entry.with_context(in_source)?.path());
        }
    }
    files.sort();
    let mut hash = Sha256::new();
    hash.update(Sha256::digest(plan.meta()));
    for file in files {
        let metadata = file.symlink_metadata().with_context(in_source)?;
        hash.update(Sha256::digest(file.as_os_str().as_bytes()));
        hash.update(metadata.len().to_le_bytes());
        hash.update(metadata.mtime().to_le_bytes());
        hash.update(metadata.mtime_nsec().to_le_bytes());
    }
    Ok(hex::encode(hash.finalize()))
}

fn tensors(container: &Container) -> Vec<TensorView> {
    container
        .tensors()
        .iter()
        .map(|entry| TensorView {
            role: entry.key.role.name(),
            block: entry.key.block,
            dtype: entry.dtype.name(),
            dims: entry.dims.to_vec(),
        })
        .collect()
}

fn small_files(root: &Root) -> Result<SourceFiles> {
    Ok(SourceFiles::collect(|name| {
        if root.has_file(name)? {
            root.read_file(name, MAX_SMALL_FILE).map(Some)
        } else {
            Ok::<_, CheckpointError>(None)
        }
    })?)
}

/// Reads as much of the start as the metadata needs.
fn read_gguf(file: &ContainerFile) -> Result<Gguf> {
    let mut length = FIRST_READ;
    loop {
        let start = file.start(length)?;
        let decoded = Gguf::decode(&start, file.length());
        let missing = decoded.as_ref().err().and_then(GgufError::missing);
        match missing.and_then(|more| (start.len() as u64).checked_add(more)) {
            Some(end) if length < end && end <= file.length().min(MAX_GGUF_METADATA) => {
                length = end.max(length * 2).min(MAX_GGUF_METADATA);
            }
            _ => return decoded.with_context(|| file.name().to_owned()),
        }
    }
}

fn fingerprint(text: Option<&str>) -> Result<WriterFingerprint> {
    let Some(text) = text else {
        return Ok(WriterFingerprint {
            host: String::new(),
            device: "cpu".to_owned(),
            writer: concat!("chancery ", env!("CARGO_PKG_VERSION")).to_owned(),
            vram: 0,
        });
    };
    let parts: Vec<&str> = text.split(',').collect();
    let wrong = || WrongUse("--fingerprint: expected HOST,DEVICE,WRITER,VRAM".to_owned());
    let [host, device, writer, vram] = parts[..] else {
        return Err(wrong().into());
    };
    Ok(WriterFingerprint {
        host: host.to_owned(),
        device: device.to_owned(),
        writer: writer.to_owned(),
        vram: vram.trim().parse().map_err(|_| wrong())?,
    })
}

const MAX_SMALL_FILE: u64 = 256 << 20;
const FIRST_READ: u64 = 1 << 20;
const MAX_GGUF_METADATA: u64 = 128 << 20;
