//! Why a container is refused.

use codec::DecodeError;

/// Why bytes are not a container that this crate reads, or why a draft cannot be laid out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JlmError {
    /// The file does not start with the container magic.
    #[error("not a .jlm container: the magic is missing")]
    Magic,
    /// A version that this crate does not read.
    #[error("container version {0} is not read here (27 and 28 are)")]
    Version(u32),
    /// A section does not decode.
    #[error("{section} section is malformed")]
    Section {
        /// Which section.
        section: &'static str,
        /// The field, offset (within the section) and fault.
        #[source]
        source: DecodeError,
    },
    /// A header field disagrees with the file or with another field.
    #[error("header field {field}: {reason}")]
    Header {
        /// The field's name in the format.
        field: &'static str,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// A tensor table entry breaks a rule.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// The entry's name.
        name: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// The model as a whole breaks a rule.
    #[error("{0}")]
    Model(&'static str),
    /// Bytes of a packed or source block that have no faithful form.
    #[error("{format} block {block}: {reason}")]
    Block {
        /// The packed format.
        format: &'static str,
        /// Ordinal of the block in its tensor.
        block: u64,
        /// The rule that it breaks.
        reason: &'static str,
    },
}

impl JlmError {
    pub(crate) fn section(section: &'static str) -> impl Fn(DecodeError) -> Self {
        move |source| Self::Section { section, source }
    }

    pub(crate) const fn header(field: &'static str, reason: &'static str) -> Self {
        Self::Header { field, reason }
    }

    pub(crate) fn tensor(name: &str, reason: &'static str) -> Self {
        Self::Tensor {
            name: name.to_owned(),
            reason,
        }
    }
}
