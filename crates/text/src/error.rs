//! Why a tokenizer cannot be made from a vocabulary, or a text be encoded or rendered.

/// A vocabulary that cannot be used, or a text or id it cannot handle.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The vocabulary's kind has no tokenizer here.
    #[error("vocab kind {kind} is not supported")]
    Kind {
        /// The kind's name.
        kind: &'static str,
    },
    /// A pre-tokenizer step has no implementation here.
    #[error("vocab pre-tokenizer step {index} ({kind}): {reason}")]
    PreTokenizer {
        /// Position of the step.
        index: usize,
        /// The step's kind.
        kind: &'static str,
        /// What about it is not supported.
        reason: &'static str,
    },
    /// A field of the vocab record contradicts another.
    #[error("vocab {field}: {reason}")]
    Vocab {
        /// The field.
        field: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer library refused the vocabulary's merges.
    #[error("vocab merges do not fit the tokens")]
    Merges(#[source] tokenizers::Error),
    /// The text is longer than one request may bring.
    #[error("text of {length} bytes is above the maximum {maximum}")]
    TooLong {
        /// Bytes of the text.
        length: usize,
        /// The largest accepted.
        maximum: usize,
    },
    /// The pre-tokenizer or the merges failed on a text.
    #[error("text cannot be encoded")]
    Encode(#[source] tokenizers::Error),
    /// A piece of the text has no token and the vocabulary names no unknown token.
    #[error("text has a piece that no token covers")]
    Uncovered,
    /// An id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {size}")]
    Id {
        /// The id.
        id: u32,
        /// Tokens of the vocabulary.
        size: usize,
    },
}

/// A chat template that cannot be used, or a conversation it refuses.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The container has no template of this name.
    #[error("container has no chat template named {name:?}")]
    Missing {
        /// The name asked for; empty for the default.
        name: String,
    },
    /// The template is not valid Jinja.
    #[error("chat template {name:?} cannot be parsed")]
    Parse {
        /// The template's name.
        name: String,
        /// The parser's error.
        #[source]
        source: minijinja::Error,
    },
    /// The template called `raise_exception`.
    #[error("chat template refuses the conversation: {reason}")]
    Refused {
        /// The template's own message.
        reason: String,
    },
    /// The template ran past its instruction or output bound.
    #[error("chat template exceeds its bound of {bound}")]
    Bound {
        /// Which bound.
        bound: &'static str,
    },
    /// The template failed while it ran.
    #[error("chat template {name:?} failed")]
    Render {
        /// The template's name.
        name: String,
        /// The engine's error.
        #[source]
        source: minijinja::Error,
    },
}
