//! The small files of a checkpoint, as bytes.

use serde_json::Value;

use crate::error::ConvertError;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const GENERATION_CONFIG: &str = "generation_config.json";
const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The small files that conversion reads. They may come from a folder, or from memory: a sealed
/// checkpoint's permuted tokenizer.
#[derive(Clone, Default)]
pub struct SourceFiles {
    /// `config.json`, required.
    pub config: Option<Vec<u8>>,
    /// `tokenizer.json`, required.
    pub tokenizer: Option<Vec<u8>>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Vec<u8>>,
    /// `generation_config.json`.
    pub generation_config: Option<Vec<u8>>,
    /// `chat_template.jinja`.
    pub chat_template: Option<Vec<u8>>,
}

impl SourceFiles {
    /// Names of the files, for a caller that reads a folder.
    pub const NAMES: [&'static str; 5] = [
        CONFIG,
        TOKENIZER,
        TOKENIZER_CONFIG,
        GENERATION_CONFIG,
        CHAT_TEMPLATE,
    ];

    /// The files that `get` gives, by name; `None` for one that does not exist.
    pub fn collect<E>(
        mut get: impl FnMut(&'static str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Self, E> {
        Ok(Self {
            config: get(CONFIG)?,
            tokenizer: get(TOKENIZER)?,
            tokenizer_config: get(TOKENIZER_CONFIG)?,
            generation_config: get(GENERATION_CONFIG)?,
            chat_template: get(CHAT_TEMPLATE)?,
        })
    }
}

/// The files, parsed.
pub(crate) struct Parsed {
    pub(crate) config: Value,
    pub(crate) tokenizer: Value,
    /// Null when absent.
    pub(crate) tokenizer_config: Value,
    pub(crate) generation_config: Option<Value>,
    pub(crate) chat_template: Option<String>,
}

impl Parsed {
    pub(crate) fn new(files: &SourceFiles) -> Result<Self, ConvertError> {
        let chat_template = files.chat_template.clone().map(String::from_utf8);
        Ok(Self {
            config: required(CONFIG, files.config.as_deref())?,
            tokenizer: required(TOKENIZER, files.tokenizer.as_deref())?,
            tokenizer_config: optional(TOKENIZER_CONFIG, files.tokenizer_config.as_deref())?
                .unwrap_or(Value::Null),
            generation_config: optional(GENERATION_CONFIG, files.generation_config.as_deref())?,
            chat_template: chat_template.transpose().map_err(|_| ConvertError::Field {
                file: CHAT_TEMPLATE,
                field: "text",
                reason: "is not UTF-8".to_owned(),
            })?,
        })
    }
}

fn required(file: &'static str, bytes: Option<&[u8]>) -> Result<Value, ConvertError> {
    optional(file, bytes)?.ok_or(ConvertError::Missing { file })
}

fn optional(file: &'static str, bytes: Option<&[u8]>) -> Result<Option<Value>, ConvertError> {
    bytes
        .map(serde_json::from_slice)
        .transpose()
        .map_err(|source| ConvertError::Json { file, source })
}
