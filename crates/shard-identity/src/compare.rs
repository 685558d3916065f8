use crate::ShardManifest;

/// What someone wants to conclude from comparing two base-weight records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// "These model directories contain the same base weights."
    SameWeights,
    /// "This adapter was trained from these base bytes."
    AdapterBase,
    /// "This evaluation used the resident base."
    EvaluationBase,
    /// "This checkpoint can resume exactly."
    ExactResume,
}

/// The answer the two records can give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// The base-weight bytes differ: the answer is no.
    Different,
    /// The base-weight bytes are the same; the question also needs these identities.
    SameBytes {
        /// Identities to compare besides, empty when none is needed.
        also_needed: &'static [&'static str],
    },
    /// A record without a complete manifest proves nothing about its shards: fail closed.
    Unproven,
}

/// Compares two records by content; `None` stands for a record that has no complete manifest.
#[must_use]
pub fn compare(
    question: Question,
    ours: Option<&ShardManifest>,
    theirs: Option<&ShardManifest>,
) -> Comparison {
    let (Some(ours), Some(theirs)) = (ours, theirs) else {
        return Comparison::Unproven;
    };
    if ours.aggregate() != theirs.aggregate() {
        return Comparison::Different;
    }
    Comparison::SameBytes {
        also_needed: match question {
            Question::SameWeights => &[],
            Question::AdapterBase => &["model config", "tokenizer and template", "adapter lineage"],
            Question::EvaluationBase => {
                &["execution", "tokenizer and template", "request", "adapter"]
            }
            Question::ExactResume => &[
                "checkpoint",
                "execution",
                "data",
                "optimizer",
                "scheduler",
                "random generator",
                "adapter",
                "tokenizer",
                "configuration",
            ],
        },
    }
}
