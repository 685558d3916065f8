//! `chancery serve-view`: a private folder in memory with the permuted tokenizer, for a stock engine
//! that loads the sealed weights as they are.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use checkpoint::{FileEntry, FileKind, Root};
use sealing::{SealMetadata, TrustedFiles, open_trusted};
use serde::Serialize;
use tempfile::TempDir;

use crate::args::ServeViewArgs;
use crate::files;
use crate::offline::blob::write_private;
use crate::outcome::Outcome;

/// The view, and how to serve from it.
#[derive(Serialize)]
struct ServeView {
    /// The folder that was made.
    view: String,
    /// The folder that the engine takes the weights from.
    weights: String,
    /// What is in the view.
    files: Vec<String>,
    /// The command line of vLLM.
    vllm: Vec<String>,
    /// The command line of SGLang.
    sglang: Vec<String>,
    /// What takes the view away again.
    remove: Vec<String>,
}

/// Prepares the view.
pub fn execute(arguments: &ServeViewArgs) -> Result<Outcome> {
    let folder = fs::canonicalize(&arguments.folder)
        .with_context(|| format!("cannot read {}", arguments.folder.display()))?;
    let root = Root::open(&folder)?;
    let metadata = SealMetadata::require(&root)?;
    ensure!(
        !metadata.is_pipeline(),
        "{}: a pipeline is not served by a text engine",
        metadata.file
    );
    if let Some(lock) = metadata.lock {
        bail!(
            "{}: locked with {lock}, which no engine reads: run chancery checkpoint unlock first",
            metadata.file
        );
    }
    let parent = match &arguments.parent {
        Some(parent) => {
            ensure!(
                is_in_memory(parent),
                "{} is not in memory",
                parent.display()
            );
            parent.clone()
        }
        None => memory_folder()?,
    };
    let key = files::open_key(&arguments.key)?;
    let trusted = open_trusted(&root, &key)?;
    let linked = arguments.link_weights || is_multimodal(&metadata);

    // Taken away again unless everything is there.
    let view = tempfile::Builder::new()
        .prefix("chancery-view-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&parent)
        .with_context(|| format!("cannot write in {}", parent.display()))?;
    let files = fill(&view, &root, &trusted, linked)?;
    let path = view
        .path()
        .to_str()
        .context("the view's path is not UTF-8")?;
    let source = folder.to_str().context("the folder's path is not UTF-8")?;
    let answer = ServeView::new(path, source, files, linked);
    let text = answer.text();
    let _ = view.keep();
    Ok(Outcome::new(&answer, text))
}

impl ServeView {
    fn new(view: &str, folder: &str, files: Vec<String>, linked: bool) -> Self {
        let weights = if linked { view } else { folder };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            view: view.to_owned(),
            weights: weights.to_owned(),
            files,
            vllm: words(&["vllm", "serve", weights, "--tokenizer", view]),
            sglang: words(&[
                "python3",
                "-m",
                "sglang.launch_server",
                "--model-path",
                weights,
                "--tokenizer-path",
                view,
            ]),
            remove: words(&["rm", "-r", view]),
        }
    }

    fn text(&self) -> String {
        format!(
            "{} files in {}\nvLLM:   {}\nSGLang: {}\nafterwards: {}",
            self.files.len(),
            self.view,
            line(&self.vllm),
            line(&self.sglang),
            line(&self.remove)
        )
    }
}

/// Writes the trusted files and copies the small files beside the weights; the weights are linked
/// when the engine takes one folder only.
fn fill(view: &TempDir, root: &Root, trusted: &TrustedFiles, linked: bool) -> Result<Vec<String>> {
    let mut written = Vec::new();
    for (path, bytes) in trusted.files() {
        write_private(view.path(), path, bytes)?;
        written.push(path.to_owned());
    }
    for entry in root.list()? {
        let path = entry.path.as_str();
        if trusted.file(path).is_some() || is_withheld(&entry) {
            continue;
        }
        if is_weights(path) {
            if linked {
                let target = root.path().join(path);
                symlink(&target, view.path().join(path))
                    .with_context(|| format!("cannot link {}", target.display()))?;
                written.push(path.to_owned());
            }
            continue;
        }
        write_private(view.path(), path, &root.read_file(path, MAX_SMALL_FILE)?)?;
        written.push(path.to_owned());
    }
    written.sort();
    Ok(written)
}

/// Whether a file stays out of the view: keys, the blob itself, and what is not a small regular file
/// at the top.
fn is_withheld(entry: &FileEntry) -> bool {
    let path = entry.path.as_str();
    let secret = path == "trusted.kllm" || path.to_ascii_lowercase().ends_with(".key");
    let large = !is_weights(path) && entry.bytes > MAX_SMALL_FILE;
    secret || large || path.contains('/') || entry.kind != FileKind::Regular
}

fn is_weights(path: &str) -> bool {
    path.ends_with(".safetensors") || path == "model.safetensors.index.json"
}

/// Whether engines load a processor from the model's own folder.
fn is_multimodal(metadata: &SealMetadata) -> bool {
    metadata.architecture.ends_with("ForConditionalGeneration")
}

/// The first folder in memory that this user may have.
fn memory_folder() -> Result<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let shared = PathBuf::from("/dev/shm");
    runtime
        .into_iter()
        .chain([shared])
        .find(|folder| is_in_memory(folder))
        .context("no folder in memory: neither XDG_RUNTIME_DIR nor /dev/shm; name one with --in")
}

fn is_in_memory(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|system| {
        matches!(
            u64::from_ne_bytes(system.f_type.to_ne_bytes()),
            TMPFS | RAMFS
        )
    })
}

/// Words as a shell takes them.
fn line(words: &[String]) -> String {
    let quoted = words.iter().map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@,".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Larger files beside the weights are no part of a tokenizer.
const MAX_SMALL_FILE: u64 = 64 << 20;
/// `TMPFS_MAGIC` of statfs(2).
const TMPFS: u64 = 0x0102_1994;
/// `RAMFS_MAGIC` of statfs(2).
const RAMFS: u64 = 0x8584_58f6;

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn words_that_a_shell_would_take_apart_are_quoted() {
        let words = ["vllm", "serve", "/models/a b", "it's"].map(str::to_owned);
        assert_eq!(line(&words), r"vllm serve '/models/a b' 'it'\''s'");
    }
}
