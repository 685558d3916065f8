//! The supported architectures: each module is a table of name patterns and what they do.

mod decoder;
mod deepseek_v4;
mod glm5;
mod glm5_next;
mod minimax_h3;
mod z_image;

use serde_json::Value;

use crate::axis::{Axis, Experts, Residual};
use crate::config::Config;
use crate::error::PlanError;
use crate::pattern::{Captures, matches};
use crate::plan::{Plan, Transform};
use crate::recipe::{Place, Rule};
use crate::vocabulary::Vocabulary;

pub use minimax_h3::{H3Latent, minimax_h3_text_encoder, minimax_h3_transformer, minimax_h3_vae};
pub use z_image::{z_image_client_transformer, z_image_split_transformer, z_image_text_encoder};

/// The rules of one architecture, or of one component of a pipeline.
pub(crate) trait Family: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;

    /// What becomes of a tensor that is not a scale; `None` where no rule covers it.
    fn rule(&self, name: &str) -> Option<Rule>;

    /// The name of a head that is written from this embedding where the source ties it.
    fn tied_head(&self, _embedding: &str) -> Option<&'static str> {
        None
    }

    /// Endings that turn `<layer>.weight` into the name of its scale.
    fn scale_suffixes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Rows and columns (in codes, where `packed`) under one scale; zeros: not block-wise.
    fn scale_block(&self, _packed: bool) -> (usize, usize) {
        (0, 0)
    }
}

/// The rules for a language model with this `config.json`, sealed with `transform`.
pub fn language_model(
    config: &Value,
    transform: Transform,
    vocabulary: Vocabulary,
) -> Result<Plan, PlanError> {
    let part = Config::new(config);
    if part.get("kllm").is_some() {
        return Err(PlanError::AlreadySealed {
            file: "config.json",
            field: "kllm",
        });
    }
    let name = architecture_name(config)?;
    Ok(match name {
        "Qwen2ForCausalLM" | "Qwen3ForCausalLM" | "Qwen3MoeForCausalLM" | "LlamaForCausalLM" => {
            Plan::new(decoder::Decoder::standard(
                name, &part, transform, vocabulary,
            )?)
        }
        "GlmMoeDsaForCausalLM" => {
            perm_only(name, transform)?;
            Plan::new(glm5::Glm5::new(&part, vocabulary)?)
        }
        "DeepseekV4ForCausalLM" => {
            perm_only(name, transform)?;
            Plan::new(deepseek_v4::DeepseekV4::new(&part, vocabulary)?)
        }
        "Glm5NextForConditionalGeneration" => {
            perm_only(name, transform)?;
            Plan::new(glm5_next::Glm5Next::new(&part, vocabulary)?)
        }
        other => {
            return Err(PlanError::Architecture {
                name: other.to_owned(),
            });
        }
    })
}

/// Rules that leave every tensor as it is, for a component that is only locked.
#[must_use]
pub fn unchanged() -> Plan {
    Plan::new(Unchanged)
}

struct Unchanged;

impl Family for Unchanged {
    fn name(&self) -> &'static str {
        "an unchanged component"
    }

    fn rule(&self, _name: &str) -> Option<Rule> {
        Some(Rule::keep())
    }
}

/// The one entry of `architectures`.
pub fn architecture_name(config: &Value) -> Result<&str, PlanError> {
    let names = config.get("architectures").and_then(Value::as_array);
    match names.map(Vec::as_slice) {
        Some([Value::String(name)]) => Ok(name),
        _ => Err(Config::new(config).error("architectures", "not a list of one name")),
    }
}

fn perm_only(name: &str, transform: Transform) -> Result<(), PlanError> {
    match transform {
        Transform::Perm => Ok(()),
        Transform::Orth => Err(PlanError::PermOnly {
            field: "architectures",
            what: name.to_owned(),
        }),
    }
}

/// One line of an architecture's table. The rule may decline, where a feature is absent.
type Line<F> = (&'static str, fn(&F, &Captures<'_>) -> Option<Rule>);

/// The first line whose pattern is the whole name.
fn look_up<'a, R: Copy>(
    table: &[(&'static str, R)],
    prefix: &str,
    name: &'a str,
) -> Option<(R, Captures<'a>)> {
    table
        .iter()
        .find_map(|(pattern, rule)| Some((*rule, matches(pattern, prefix, name)?)))
}

impl Rule {
    fn new(rows: Axis, columns: Axis) -> Self {
        Self {
            rows,
            columns,
            gain: None,
            place: Place::Same,
            entries: None,
            packed: false,
            kept_aside: false,
        }
    }

    /// The tensor as it is.
    fn keep() -> Self {
        Self::new(Axis::Keep, Axis::Keep)
    }

    /// A vector, or rows whose columns stay.
    fn rows(rows: Axis) -> Self {
        Self::new(rows, Axis::Keep)
    }

    /// Columns read from a residual stream.
    fn reads(residual: &Residual) -> Self {
        Self::new(Axis::Keep, Axis::Residual(residual.clone()))
    }

    /// Rows written to a residual stream.
    fn writes(residual: &Residual) -> Self {
        Self::rows(Axis::Residual(residual.clone()))
    }

    /// A norm gain over a residual stream.
    fn gain(residual: &Residual) -> Self {
        Self::rows(Axis::Gain(residual.clone()))
    }

    fn with_rows(self, rows: Axis) -> Self {
        Self { rows, ..self }
    }

    fn with_columns(self, columns: Axis) -> Self {
        Self { columns, ..self }
    }

    /// Folds a norm gain into the columns, where the transform folds gains.
    fn folding(self, gain: String) -> Self {
        Self {
            gain: Some(gain),
            ..self
        }
    }

    /// The same, where the rule was found under the end of a name that `head` starts.
    fn under(mut self, head: &str) -> Self {
        if let Place::Slot { before, .. } = &mut self.place {
            before.insert_str(0, head);
        }
        self
    }

    /// Stores the tensor under its expert's slot; the expert is the name's `k`-th index.
    fn in_slot(self, experts: Experts, captures: &Captures<'_>, k: usize) -> Self {
        let (before, after) = captures.around(k);
        Self {
            place: Place::Slot {
                experts,
                expert: captures.index(k),
                before: before.to_owned(),
                after: after.to_owned(),
            },
            ..self
        }
    }
}
