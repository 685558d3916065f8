//! Why a model cannot be run, or a run cannot go on.

/// A container that describes no model this engine runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The config asks for something the engine does not do.
    #[error("config {field}: {reason}")]
    Config {
        /// The field, by its name in the format.
        field: &'static str,
        /// What is not supported or out of range.
        reason: String,
    },
    /// A tensor of the container has no part in the model, or the wrong shape or type.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The model needs a tensor that the container does not have.
    #[error("tensor of role {role} is missing in block {block}")]
    Missing {
        /// The role's name.
        role: &'static str,
        /// The block, -1 for none.
        block: i32,
    },
}

/// A run that cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is nothing to continue.
    #[error("prompt has no tokens")]
    EmptyPrompt,
    /// A token id outside the embedding.
    #[error("token id {id} is outside the vocabulary of {size}")]
    TokenId {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        size: usize,
    },
    /// More positions than the model was made for.
    #[error("{needed} tokens do not fit the context of {maximum}")]
    Context {
        /// Positions asked for.
        needed: usize,
        /// The model's context length.
        maximum: usize,
    },
    /// The KV pool has no block left.
    #[error("KV budget of {budget} bytes is used up")]
    KvBudget {
        /// The pool's budget.
        budget: u64,
    },
    /// A computed value is infinite or not a number.
    #[error("{place} has a value that is not finite")]
    NotFinite {
        /// Where: a block's output or the logits.
        place: String,
    },
    /// Weights could not be had.
    #[error("weights of {unit} cannot be read")]
    Weights {
        /// The page.
        unit: String,
        /// The cause, as the source of weights says it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A page is shorter than the tensors on it.
    #[error("page of {unit} ends inside tensor {name:?}")]
    ShortPage {
        /// The page.
        unit: String,
        /// The tensor.
        name: String,
    },
    /// A sampling setting is out of range.
    #[error("sampling {field} {reason}")]
    Sampling {
        /// The setting.
        field: &'static str,
        /// What it must be.
        reason: &'static str,
    },
    /// The caller's flag was set.
    #[error("cancelled")]
    Cancelled,
}
