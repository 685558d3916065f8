//! Why a checkpoint is not converted.

use checkpoint::CheckpointError;
use jlm::{JlmError, UnitId};

/// Why a checkpoint is not converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A file that conversion needs is absent.
    #[error("{file} is missing")]
    Missing {
        /// The file.
        file: &'static str,
    },
    /// A file is not JSON.
    #[error("{file} is not valid JSON")]
    Json {
        /// The file.
        file: &'static str,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A field of a file has no faithful form in a container.
    #[error("{file}: {field}: {reason}")]
    Field {
        /// The file.
        file: &'static str,
        /// The field.
        field: &'static str,
        /// Why it is refused.
        reason: String,
    },
    /// A tensor is refused.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The planned tensors cannot be laid out.
    #[error("the container cannot be laid out")]
    Layout(#[from] JlmError),
    /// The source failed.
    #[error("the checkpoint could not be read")]
    Source(#[from] CheckpointError),
    /// The GGUF file could not be read.
    #[error("the GGUF file could not be read")]
    Read(#[source] std::io::Error),
    /// The GGUF file is refused.
    #[error("the GGUF file is refused")]
    Gguf(#[from] gguf::GgufError),
    /// A GGUF key has no faithful form in a container.
    #[error("key {key}: {reason}")]
    Key {
        /// The key.
        key: String,
        /// Why it is refused.
        reason: String,
    },
    /// The plan has no such unit, or its metadata holds it.
    #[error("{0} is not a unit of the dense region or the page arrays")]
    NoUnit(UnitId),
    /// A buffer of another length than the unit.
    #[error("{unit}: {given} bytes given, it has {needed}")]
    Length {
        /// The unit.
        unit: UnitId,
        /// Bytes given.
        given: u64,
        /// Bytes needed.
        needed: u64,
    },
}

impl ConvertError {
    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Field {
            file: crate::files::CONFIG,
            field,
            reason: reason.into(),
        }
    }

    pub(crate) fn tokenizer(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Field {
            file: crate::files::TOKENIZER,
            field,
            reason: reason.into(),
        }
    }

    pub(crate) fn key(key: &str, reason: impl Into<String>) -> Self {
        Self::Key {
            key: key.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn tensor(name: &str, reason: impl Into<String>) -> Self {
        Self::Tensor {
            name: name.to_owned(),
            reason: reason.into(),
        }
    }
}
