//! The part of a sealed directory that an untrusted machine gets.

use std::path::Path;

use checkpoint::Root;
use model_key::SubkeySource;

use crate::error::SealingError;
use crate::files::base_name;
use crate::metadata::{Scheme, SealMetadata};
use crate::monitor::Monitor;
use crate::unlock::{Change, CopyReport, copy};

/// Writes everything of a sealed directory but what stays with the key's holder: the trusted blob,
/// keys, tokenizer files, chat templates and the folders of tokenizer, processor and autoencoder.
/// Locked weights are unlocked on the way, which needs the key.
pub fn cloud_export(
    sealed: &Path,
    keys: Option<&dyn SubkeySource>,
    target: &Path,
    monitor: &Monitor<'_>,
) -> Result<CopyReport, SealingError> {
    let root = Root::open(sealed)?;
    let metadata = SealMetadata::require(&root)?;
    let exportable = match metadata.scheme {
        Scheme::Client => true,
        Scheme::L1 => !metadata.is_pipeline(),
        Scheme::Split => false,
    };
    if !exportable {
        return Err(SealingError::Metadata {
            file: metadata.file,
            field: "scheme",
            problem: "only a client pipeline or a language model has a cloud part".to_owned(),
        });
    }
    if let Some(keys) = keys {
        metadata.check_key(keys)?;
    } else if metadata.lock.is_some() {
        return Err(SealingError::KeyNeeded {
            file: metadata.file,
        });
    }
    let change = Change {
        keys,
        from: metadata.lock,
        to: None,
    };
    copy(&root, &metadata, &change, &stays, target, monitor)
}

/// Why a file stays with the key's holder, if it does.
fn stays(path: &str) -> Option<&'static str> {
    let top = path.split('/').next().unwrap_or_default();
    if path.contains('/') && matches!(top, "tokenizer" | "processor" | "vae") {
        return Some("a folder that stays with the key's holder");
    }
    let name = base_name(path);
    if PRIVATE.contains(&name) || name.starts_with("chat_template") || name.ends_with(".key") {
        return Some("stays with the key's holder");
    }
    None
}

const PRIVATE: &[&str] = &[
    "trusted.kllm",
    "kllm.key",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
];
