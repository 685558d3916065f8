use model_key::DrawError;

/// A checkpoint that cannot be sealed, and which of its parts says so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// `config.json` lacks a field, or has it in another form.
    #[error("config.json: {field}: {problem}")]
    Config {
        /// The field's path.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The directory carries seal metadata.
    #[error("the checkpoint is already sealed ({file} has {field})")]
    AlreadySealed {
        /// The file that says so.
        file: &'static str,
        /// The field that says so.
        field: &'static str,
    },
    /// An architecture that no rules are known for.
    #[error("config.json: architectures: {name} is not supported")]
    Architecture {
        /// The architecture's name.
        name: String,
    },
    /// `mlp_bias` is set.
    #[error("config.json: mlp_bias: MLP biases are not supported")]
    MlpBias,
    /// Only a part of each head is rotated.
    #[error("config.json: partial_rotary_factor: partial rotary embeddings are not supported")]
    PartialRotary,
    /// A quantization other than FP8.
    #[error("config.json: quantization_config: {method} is not supported, only fp8 is")]
    Quantization {
        /// The method's name.
        method: String,
    },
    /// FP8 or a perm-only architecture asked to be sealed with orth.
    #[error("config.json: {field}: {what} can only be sealed with perm")]
    PermOnly {
        /// The field that says so.
        field: &'static str,
        /// What allows perm only.
        what: String,
    },
    /// A block-wise scale whose block is not the head.
    #[error("config.json: head_dim {head_dim} differs from the FP8 block {block}")]
    HeadBlock {
        /// The head's dimension.
        head_dim: usize,
        /// The quantization block.
        block: usize,
    },
    /// `tokenizer.json` is not what the vocabulary permutation needs.
    #[error("tokenizer.json: {problem}")]
    Tokenizer {
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor that no rule covers.
    #[error("tensor {tensor}: no rule of {architecture} covers it")]
    UnknownTensor {
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A tensor that a transform reads is not there.
    #[error("tensor {tensor} is missing, and {needed_by} needs it")]
    MissingTensor {
        /// The tensor that is missing.
        tensor: String,
        /// The tensor that needs it.
        needed_by: String,
    },
    /// An FP8 weight without its scale.
    #[error("tensor {tensor}: an FP8 weight without a scale")]
    MissingScale {
        /// The weight.
        tensor: String,
    },
    /// A shape other than the configuration's.
    #[error("tensor {tensor}: shape {found:?} does not fit the configuration: {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<u64>,
        /// What the rule needs.
        expected: String,
    },
    /// An element type that the rule does not take.
    #[error("tensor {tensor}: its element type cannot be transformed")]
    Element {
        /// The tensor.
        tensor: String,
    },
    /// An expert's index is not below the number of experts.
    #[error("tensor {tensor}: expert {expert} of {count}")]
    Expert {
        /// The tensor.
        tensor: String,
        /// The index in its name.
        expert: u32,
        /// How many there are.
        count: usize,
    },
    /// A permutation or stream was not drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

/// A recipe was not applied to a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    /// The tensor's bytes are not what its shape says.
    #[error("tensor {tensor}: {found} bytes where its shape has {expected}")]
    Length {
        /// The tensor.
        tensor: String,
        /// Bytes given.
        found: usize,
        /// Bytes that the shape has.
        expected: usize,
    },
    /// A norm gain that the recipe folds in was not given, or has another length.
    #[error("tensor {tensor}: its norm gain has {found} elements where {expected} are needed")]
    Gain {
        /// The tensor.
        tensor: String,
        /// Elements given.
        found: usize,
        /// Elements needed.
        expected: usize,
    },
    /// After the transform one block would need two scales.
    #[error("tensor {tensor}: a block's scale is not constant after the transform")]
    BlockNotConstant {
        /// The scale tensor.
        tensor: String,
    },
    /// A table names an expert that does not exist.
    #[error("tensor {tensor}: an entry names expert {expert} of {count}")]
    Entry {
        /// The table.
        tensor: String,
        /// The entry.
        expert: i64,
        /// How many experts there are.
        count: usize,
    },
    /// A permutation, stream or matrix was not drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
}
