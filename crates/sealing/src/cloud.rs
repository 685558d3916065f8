//! The part of a sealed directory that an untrusted machine gets.

use checkpoint::Root;

use crate::copy::CopyPlan;
use crate::error::SealingError;
use crate::files::base_name;
use crate::metadata::{Scheme, SealMetadata};

impl CopyPlan {
    /// A copy of what an untrusted machine gets, without a lock.
    pub fn cloud(sealed: Root) -> Result<Self, SealingError> {
        let metadata = SealMetadata::require(&sealed)?;
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
        Self::without(sealed, metadata, &stays)
    }
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
