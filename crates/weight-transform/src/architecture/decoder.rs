//! Qwen2, Qwen2.5, Qwen3, Qwen3-MoE and Llama 3.x (spec: sealed checkpoint, section 3), and the
//! text encoders built like them.

use model_key::{Component, Scope, ScopedSite, Site};

use super::{Family, Line, look_up};
use crate::axis::{
    Axis, Experts, Heads, Mlp, Residual, ResidualForm, Role, Scales, Tokens, Turns, Values,
};
use crate::config::{Config, Quantization};
use crate::error::PlanError;
use crate::pattern::Captures;
use crate::plan::Transform;
use crate::recipe::Rule;
use crate::vocabulary::Vocabulary;

/// A standard decoder.
pub(super) struct Decoder {
    name: &'static str,
    prefix: &'static str,
    component: Component,
    residual: Residual,
    tokens: Tokens,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    experts: Option<ExpertSizes>,
    quantization: Quantization,
    transform: Transform,
    features: Features,
}

/// What sets the architectures apart.
#[derive(Clone, Copy)]
struct Features {
    biases: bool,
    head_norms: bool,
    experts: bool,
    visual: bool,
}

#[derive(Clone, Copy)]
struct ExpertSizes {
    count: usize,
    intermediate: usize,
}

impl Decoder {
    /// A model whose `architectures` has this name.
    pub(super) fn standard(
        name: &str,
        config: &Config<'_>,
        transform: Transform,
        vocabulary: Vocabulary,
    ) -> Result<Self, PlanError> {
        let qwen3 = Features {
            biases: true,
            head_norms: true,
            experts: false,
            visual: false,
        };
        let (name, features) = match name {
            "Qwen2ForCausalLM" => (
                "Qwen2ForCausalLM",
                Features {
                    head_norms: false,
                    ..qwen3
                },
            ),
            "Qwen3MoeForCausalLM" => (
                "Qwen3MoeForCausalLM",
                Features {
                    experts: true,
                    ..qwen3
                },
            ),
            "LlamaForCausalLM" => (
                "LlamaForCausalLM",
                Features {
                    biases: false,
                    head_norms: false,
                    ..qwen3
                },
            ),
            _ => ("Qwen3ForCausalLM", qwen3),
        };
        let place = (name, "model.", Component::Model);
        Self::new(place, features, config, transform, vocabulary)
    }

    /// A Qwen3 text encoder inside a pipeline; with `visual`, of a vision-language model.
    pub(super) fn text_encoder(
        place: (&'static str, &'static str, Component),
        visual: bool,
        config: &Config<'_>,
        transform: Transform,
        vocabulary: Vocabulary,
    ) -> Result<Self, PlanError> {
        let features = Features {
            biases: true,
            head_norms: true,
            experts: false,
            visual,
        };
        Self::new(place, features, config, transform, vocabulary)
    }

    fn new(
        (name, prefix, component): (&'static str, &'static str, Component),
        features: Features,
        config: &Config<'_>,
        transform: Transform,
        vocabulary: Vocabulary,
    ) -> Result<Self, PlanError> {
        if config.flag("mlp_bias") {
            return Err(PlanError::MlpBias);
        }
        refuse_partial_rotary(config)?;
        let quantization = Quantization::of(config)?;
        if quantization.is_fp8() && transform == Transform::Orth {
            return Err(PlanError::PermOnly {
                field: "quantization_config",
                what: "an FP8 checkpoint".to_owned(),
            });
        }
        let width = config.size("hidden_size")?;
        let heads = config.size("num_attention_heads")?;
        let kv_heads = config
            .optional_size("num_key_value_heads")?
            .unwrap_or(heads);
        if heads % kv_heads != 0 {
            return Err(config.error("num_key_value_heads", "does not divide num_attention_heads"));
        }
        let head_dim = match config.optional_size("head_dim")? {
            Some(head_dim) => head_dim,
            None if width % heads == 0 => width / heads,
            None => return Err(config.error("head_dim", "missing, and the heads do not divide")),
        };
        if head_dim % 2 != 0 {
            return Err(config.error("head_dim", "odd"));
        }
        let block = quantization.block();
        if block != 0 && block != head_dim {
            return Err(PlanError::HeadBlock { head_dim, block });
        }
        let experts = if features.experts {
            Some(ExpertSizes {
                count: config.size("num_experts")?,
                intermediate: config.size("moe_intermediate_size")?,
            })
        } else {
            None
        };
        Ok(Self {
            name,
            prefix,
            component,
            residual: residual(component, width, transform, block),
            tokens: vocabulary.tokens(component, config.size("vocab_size")?)?,
            heads,
            kv_heads,
            head_dim,
            intermediate: config.size("intermediate_size")?,
            experts,
            quantization,
            transform,
            features,
        })
    }

    /// The stream that the layers add to.
    pub(super) fn residual(&self) -> &Residual {
        &self.residual
    }

    fn bias(&self, rule: Rule) -> Option<Rule> {
        self.features.biases.then_some(rule)
    }

    /// A projection that reads the residual after the norm called `norm` in the same layer.
    fn reads(&self, layer: u32, norm: &str) -> Rule {
        let gain = format!("{}layers.{layer}.{norm}.weight", self.prefix);
        Rule::reads(&self.residual).folding(gain)
    }

    fn turns(&self, layer: u32) -> Turns {
        Turns {
            component: self.component,
            scope: Scope::Layer(layer),
            head_dim: self.head_dim,
            planes: self.head_dim / 2,
        }
    }

    fn turned(&self, layer: u32, group: usize) -> Axis {
        Axis::Turned(Heads {
            turns: self.turns(layer),
            site: ScopedSite::KvHeads,
            groups: self.kv_heads,
            group,
        })
    }

    fn queries(&self, layer: u32) -> Axis {
        self.turned(layer, self.heads / self.kv_heads)
    }

    fn keys(&self, layer: u32) -> Axis {
        self.turned(layer, 1)
    }

    fn rotated(&self, layer: u32, group: usize) -> Axis {
        Axis::Rotated(Values {
            component: self.component,
            scope: Scope::Layer(layer),
            site: ScopedSite::KvHeads,
            groups: self.kv_heads,
            group,
            head_dim: self.head_dim,
            orthogonal: self.transform == Transform::Orth,
        })
    }

    fn values(&self, layer: u32) -> Axis {
        self.rotated(layer, 1)
    }

    fn outputs(&self, layer: u32) -> Axis {
        self.rotated(layer, self.heads / self.kv_heads)
    }

    fn head_norm(&self, layer: u32) -> Option<Rule> {
        let rule = Rule::rows(Axis::TurnedGain(self.turns(layer)));
        self.features.head_norms.then_some(rule)
    }

    fn hidden(&self, layer: u32, role: Role) -> Axis {
        Axis::Hidden(
            mlp(
                self.component,
                layer,
                ScopedSite::Ffn,
                self.intermediate,
                self.quantization,
            ),
            role,
        )
    }

    fn experts_of(&self, layer: u32) -> Option<Experts> {
        self.experts.map(|sizes| Experts {
            component: self.component,
            scope: Scope::Layer(layer),
            count: sizes.count,
        })
    }

    fn router(&self, layer: u32) -> Option<Rule> {
        let rows = Axis::Experts(self.experts_of(layer)?);
        Some(self.reads(layer, POST_NORM).with_rows(rows))
    }

    fn expert(&self, at: &Captures<'_>, role: Role) -> Option<Rule> {
        let (layer, expert) = (at.index(0), at.index(1));
        let width = self.experts?.intermediate;
        let site = ScopedSite::ExpertFfn(expert);
        let hidden = Axis::Hidden(
            mlp(self.component, layer, site, width, self.quantization),
            role,
        );
        let rule = match role {
            Role::Down => Rule::writes(&self.residual).with_columns(hidden),
            _ => self.reads(layer, POST_NORM).with_rows(hidden),
        };
        Some(rule.in_slot(self.experts_of(layer)?, at, 1))
    }

    fn visual(&self, name: &str) -> Option<Rule> {
        let part = name
            .strip_prefix("model.visual.")
            .filter(|_| self.features.visual)?;
        let merger = part.strip_prefix("merger.").or_else(|| {
            let rest = part.strip_prefix("deepstack_merger_list.")?;
            rest.split_once('.').map(|(_, rest)| rest)
        });
        Some(match merger {
            Some("linear_fc2.weight" | "linear_fc2.bias") => Rule::writes(&self.residual),
            _ => Rule::keep(),
        })
    }
}

impl Family for Decoder {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        match look_up(TABLE, self.prefix, name) {
            Some((rule, at)) => rule(self, &at),
            None => self.visual(name),
        }
    }

    fn tied_head(&self, embedding: &str) -> Option<&'static str> {
        (embedding == "model.embed_tokens.weight").then_some("lm_head.weight")
    }

    fn scale_suffixes(&self) -> &'static [&'static str] {
        &SCALES
    }

    fn scale_block(&self, _packed: bool) -> (usize, usize) {
        (self.quantization.block(), self.quantization.block())
    }
}

/// The residual stream of a model sealed with `transform`.
pub(super) fn residual(
    component: Component,
    width: usize,
    transform: Transform,
    block: usize,
) -> Residual {
    let form = match transform {
        Transform::Orth => ResidualForm::Orthogonal,
        Transform::Perm => ResidualForm::Signed {
            site: Site::ResidualPerm,
            blocks: vec![block],
        },
    };
    Residual {
        component,
        width,
        form,
    }
}

/// An MLP of a layer, with signed powers of two as its quantization allows.
pub(super) fn mlp(
    component: Component,
    layer: u32,
    site: ScopedSite,
    width: usize,
    quantization: Quantization,
) -> Mlp {
    let scales = match quantization {
        Quantization::None => Scales::Powers,
        Quantization::Fp8(Some(_)) => Scales::BlockPowers,
        Quantization::Fp8(None) => Scales::PowerSigns,
    };
    Mlp {
        component,
        scope: Scope::Layer(layer),
        site,
        width,
        block: quantization.block(),
        scales,
    }
}

fn refuse_partial_rotary(config: &Config<'_>) -> Result<(), PlanError> {
    let inner = config.part("rope_parameters").ok();
    let factors = [Some(config), inner.as_ref()];
    for part in factors.into_iter().flatten() {
        if let Some(factor) = part.get("partial_rotary_factor")
            && factor.as_f64() != Some(1.0)
        {
            return Err(PlanError::PartialRotary);
        }
    }
    Ok(())
}

const TABLE: &[Line<Decoder>] = &[
    ("@embed_tokens.weight", |d, _| {
        Some(Rule::reads(&d.residual).with_rows(Axis::Tokens(d.tokens.clone())))
    }),
    ("lm_head.weight", |d, _| {
        let rule = Rule::reads(&d.residual).with_rows(Axis::Tokens(d.tokens.clone()));
        Some(rule.folding(format!("{}norm.weight", d.prefix)))
    }),
    ("@norm.weight", |d, _| Some(Rule::gain(&d.residual))),
    ("@layers.{}.input_layernorm.weight", |d, _| {
        Some(Rule::gain(&d.residual))
    }),
    ("@layers.{}.post_attention_layernorm.weight", |d, _| {
        Some(Rule::gain(&d.residual))
    }),
    ("@layers.{}.self_attn.q_proj.weight", |d, at| {
        Some(
            d.reads(at.index(0), INPUT_NORM)
                .with_rows(d.queries(at.index(0))),
        )
    }),
    ("@layers.{}.self_attn.k_proj.weight", |d, at| {
        Some(
            d.reads(at.index(0), INPUT_NORM)
                .with_rows(d.keys(at.index(0))),
        )
    }),
    ("@layers.{}.self_attn.v_proj.weight", |d, at| {
        Some(
            d.reads(at.index(0), INPUT_NORM)
                .with_rows(d.values(at.index(0))),
        )
    }),
    ("@layers.{}.self_attn.o_proj.weight", |d, at| {
        Some(Rule::writes(&d.residual).with_columns(d.outputs(at.index(0))))
    }),
    ("@layers.{}.self_attn.q_proj.bias", |d, at| {
        d.bias(Rule::rows(d.queries(at.index(0))))
    }),
    ("@layers.{}.self_attn.k_proj.bias", |d, at| {
        d.bias(Rule::rows(d.keys(at.index(0))))
    }),
    ("@layers.{}.self_attn.v_proj.bias", |d, at| {
        d.bias(Rule::rows(d.values(at.index(0))))
    }),
    ("@layers.{}.self_attn.o_proj.bias", |d, _| {
        d.bias(Rule::writes(&d.residual))
    }),
    ("@layers.{}.self_attn.q_norm.weight", |d, at| {
        d.head_norm(at.index(0))
    }),
    ("@layers.{}.self_attn.k_norm.weight", |d, at| {
        d.head_norm(at.index(0))
    }),
    ("@layers.{}.mlp.gate_proj.weight", |d, at| {
        Some(
            d.reads(at.index(0), POST_NORM)
                .with_rows(d.hidden(at.index(0), Role::Gate)),
        )
    }),
    ("@layers.{}.mlp.up_proj.weight", |d, at| {
        Some(
            d.reads(at.index(0), POST_NORM)
                .with_rows(d.hidden(at.index(0), Role::Up)),
        )
    }),
    ("@layers.{}.mlp.down_proj.weight", |d, at| {
        Some(Rule::writes(&d.residual).with_columns(d.hidden(at.index(0), Role::Down)))
    }),
    ("@layers.{}.mlp.gate.weight", |d, at| d.router(at.index(0))),
    ("@layers.{}.mlp.experts.{}.gate_proj.weight", |d, at| {
        d.expert(at, Role::Gate)
    }),
    ("@layers.{}.mlp.experts.{}.up_proj.weight", |d, at| {
        d.expert(at, Role::Up)
    }),
    ("@layers.{}.mlp.experts.{}.down_proj.weight", |d, at| {
        d.expert(at, Role::Down)
    }),
];

const INPUT_NORM: &str = "input_layernorm";
const POST_NORM: &str = "post_attention_layernorm";
pub(super) const SCALES: [&str; 2] = [".weight_scale_inv", ".weight_scale"];
