//! What becomes of the files beside the weights.

use checkpoint::{CheckpointError, FileEntry, FileKind};

use crate::store::MODEL_SIGNATURE;

/// What became of one source file, or how an output file came about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its tensors were transformed, or locked.
    Sealed,
    /// Copied unchanged.
    Copied,
    /// Written anew, or rewritten.
    Written,
    /// In the trusted blob only.
    Secret,
    /// Not in the output.
    LeftOut(&'static str),
}

/// Refuses what is not a regular file.
pub(crate) fn require_regular(entry: &FileEntry) -> Result<(), CheckpointError> {
    let reason = match entry.kind {
        FileKind::Regular => return Ok(()),
        FileKind::Symlink => "it is a symbolic link",
        FileKind::Special => "it is a device, pipe or socket",
    };
    Err(CheckpointError::NotRegular {
        file: entry.path.clone(),
        reason,
    })
}

/// Why a file beside the weights may not be copied in clear, if so.
pub(crate) fn withheld(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase();
    let ends = |ends: &[&str]| ends.iter().any(|end| lower.ends_with(end));
    if ends(&[".safetensors"]) {
        return Some("safetensors outside the index");
    }
    if ends(WEIGHTS) || (lower.starts_with("consolidated.") && !lower.ends_with(".json")) {
        return Some("weights of another kind");
    }
    if matches!(name, "tokenizer.model" | "spiece.model") {
        return Some("lists the vocabulary in canonical order");
    }
    if name == MODEL_SIGNATURE {
        return Some("signs the files as they were before sealing");
    }
    if name == "kllm.key" || lower.ends_with(".key") {
        return Some("a key");
    }
    None
}

/// The name without its folders.
pub(crate) fn base_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

/// The folder that a file is in; "" at the top.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Whether shards under this folder are never locked.
pub(crate) fn is_never_locked(folder: &str) -> bool {
    let top = folder.split('/').next().unwrap_or_default();
    matches!(top, "tokenizer" | "processor" | "vae")
}

/// Whether a path is below a cache folder.
pub(crate) fn is_cache(path: &str) -> bool {
    folder_of(path).split('/').any(|part| part == ".cache")
}

const WEIGHTS: &[&str] = &[
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".ggml",
    ".onnx",
    ".onnx_data",
    ".h5",
    ".msgpack",
    ".ckpt",
    ".npz",
    ".tflite",
    ".pb",
    ".mlmodel",
    ".ot",
    ".llamafile",
];
