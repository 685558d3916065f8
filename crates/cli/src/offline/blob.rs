//! `chancery blob`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use jlm::Span;
use secret::SecretBytes;
use serde::Serialize;
use sha2::{Digest, Sha256};
use trusted_blob::{BlobOpener, Payload};

use super::spans::ContainerFile;
use crate::args::{BlobCommand, KeyArgs};
use crate::files::{self, parent};
use crate::offline::interruptible;
use crate::outcome::{Outcome, heading, table};

/// Runs a command.
pub fn execute(command: BlobCommand) -> Result<Outcome> {
    match command {
        BlobCommand::List { file, key } => list(&file, &key),
        BlobCommand::Extract { file, output, key } => extract(&file, &output, &key),
    }
}

#[derive(Serialize)]
struct BlobView {
    files: Vec<FileView>,
    tensors: Vec<TensorView>,
}

#[derive(Serialize)]
struct FileView {
    path: String,
    bytes: usize,
    sha256: String,
}

#[derive(Serialize)]
struct TensorView {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    sha256: String,
}

impl BlobView {
    fn of(payload: &Payload) -> Self {
        Self {
            files: payload
                .files()
                .map(|(path, bytes)| FileView {
                    path: path.to_owned(),
                    bytes: bytes.len(),
                    sha256: hex::encode(Sha256::digest(bytes)),
                })
                .collect(),
            tensors: payload
                .tensors()
                .map(|(name, tensor)| TensorView {
                    name: name.to_owned(),
                    dtype: tensor.dtype.to_string(),
                    shape: tensor.shape.to_vec(),
                    sha256: hex::encode(Sha256::digest(tensor.data)),
                })
                .collect(),
        }
    }

    fn text(&self) -> String {
        let mut rows = vec![heading(&["PAYLOAD", "SIZE", "SHA-256"])];
        rows.extend(self.files.iter().map(|file| {
            vec![
                file.path.clone(),
                file.bytes.to_string(),
                file.sha256.clone(),
            ]
        }));
        rows.extend(self.tensors.iter().map(|tensor| {
            vec![
                tensor.name.clone(),
                format!("{} {:?}", tensor.dtype, tensor.shape),
                tensor.sha256.clone(),
            ]
        }));
        table(&rows)
    }
}

fn list(file: &Path, key: &KeyArgs) -> Result<Outcome> {
    let view = BlobView::of(&open(file, key)?);
    Ok(Outcome::new(&view, view.text()))
}

fn open(file: &Path, key: &KeyArgs) -> Result<Payload> {
    let blob = ContainerFile::open(file)?;
    let name = || blob.name().to_owned();
    let key = files::open_key(key)?;
    let start = blob.start(trusted_blob::MAX_PREAMBLE as u64)?;
    let opener = BlobOpener::new(&key, &start, blob.length()).with_context(name)?;
    let mut payload = Vec::new();
    let opened = open_chunks(&blob, &opener, &mut payload);
    // Wiped in the end, also when a chunk was refused.
    let payload = SecretBytes::new(payload);
    opened.with_context(name)?;
    Payload::parse(payload).with_context(name)
}

/// Opens chunk after chunk, so that a file that is no blob is refused at its first.
fn open_chunks(blob: &ContainerFile, opener: &BlobOpener, payload: &mut Vec<u8>) -> Result<()> {
    let room = opener.payload_length().saturating_add(TAG);
    payload
        .try_reserve_exact(usize::try_from(room)?)
        .context("its payload does not fit the memory")?;
    for index in 0..opener.chunks() {
        let range = opener.sealed_range(index);
        let start = payload.len();
        payload.resize(start + (range.end - range.start) as usize, 0);
        let sealed = &mut payload[start..];
        blob.read(Span::new(range.start, range.end - range.start), sealed)?;
        let opened = opener.open_chunk(index, sealed)?.len();
        payload.truncate(start + opened);
    }
    Ok(())
}

/// Writes the files, and the tensors as one safetensors file, to a folder that only its owner
/// enters. It appears whole or not at all.
fn extract(file: &Path, output: &Path, key: &KeyArgs) -> Result<Outcome> {
    files::refuse_existing(output)?;
    let payload = open(file, key)?;
    interruptible(|cancel| write(&payload, output, cancel))
}

fn write(payload: &Payload, output: &Path, cancel: &AtomicBool) -> Result<Outcome> {
    let staged = tempfile::Builder::new()
        .prefix(".blob-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent(output))
        .with_context(|| format!("cannot write beside {}", output.display()))?;
    for (path, bytes) in payload.files() {
        write_private(staged.path(), path, bytes)?;
        if cancel.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
    }
    let view = BlobView::of(payload);
    if !view.tensors.is_empty() {
        write_private(staged.path(), TENSORS, &tensors(payload)?)?;
    }
    fs::rename(staged.path(), output)
        .with_context(|| format!("cannot write {}", output.display()))?;
    // It is there no more: only a folder that could not be moved is removed.
    let _ = staged.keep();
    Ok(Outcome::new(&view, view.text()))
}

/// Writes a file that only its owner reads; folders on the way are private too. A payload's paths
/// were checked to stay inside when it was parsed.
pub(super) fn write_private(folder: &Path, relative: &str, bytes: &[u8]) -> Result<()> {
    let path: PathBuf = folder.join(relative);
    let context = || format!("cannot write {}", path.display());
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .with_context(context)?;
    }
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .with_context(context)?;
    file.write_all(bytes).with_context(context)?;
    file.sync_all().with_context(context)
}

/// The tensors of a payload as a safetensors file.
fn tensors(payload: &Payload) -> Result<Vec<u8>> {
    if payload.file(TENSORS).is_some() {
        bail!("the blob has a file {TENSORS} and tensors");
    }
    let mut header = serde_json::Map::new();
    let mut offset = 0;
    for (name, tensor) in payload.tensors() {
        let end = offset + tensor.data.len();
        let entry = serde_json::json!({
            "dtype": tensor.dtype.to_string(),
            "shape": tensor.shape,
            "data_offsets": [offset, end],
        });
        header.insert(name.to_owned(), entry);
        offset = end;
    }
    let mut text = serde_json::to_vec(&header)?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(&text);
    for (_, tensor) in payload.tensors() {
        file.extend_from_slice(tensor.data);
    }
    Ok(file)
}

/// Bytes of a chunk's authentication tag.
const TAG: u64 = 16;
const TENSORS: &str = "trusted-tensors.safetensors";
