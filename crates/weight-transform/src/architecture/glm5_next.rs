//! GLM-5.3-Flash: bits move and flip, nothing is scaled (spec: sealed checkpoint, section 4).

use model_key::{Component, Scope, ScopedSite};

use super::decoder::{SCALES, residual};
use super::{Family, Line, look_up};
use crate::axis::{Axis, Experts, Mlp, Residual, Role, Scales, Tokens};
use crate::config::{Config, Quantization};
use crate::error::PlanError;
use crate::pattern::Captures;
use crate::plan::Transform;
use crate::recipe::Rule;
use crate::vocabulary::Vocabulary;

pub(super) struct Glm5Next {
    residual: Residual,
    tokens: Tokens,
    streams: usize,
    intermediate: usize,
    expert_intermediate: usize,
    shared_experts: usize,
    experts: usize,
    block: usize,
}

impl Glm5Next {
    pub(super) fn new(config: &Config<'_>, vocabulary: Vocabulary) -> Result<Self, PlanError> {
        let text = config.part("text_config")?;
        let block = Quantization::of(config)?.block();
        let width = text.size("hidden_size")?;
        Ok(Self {
            residual: residual(Component::Model, width, Transform::Perm, block),
            tokens: vocabulary.tokens(Component::Model, text.size("vocab_size")?)?,
            streams: text.optional_size("hc_mult")?.unwrap_or(1).min(MAX_STREAMS),
            intermediate: text.size("intermediate_size")?,
            expert_intermediate: text.size("moe_intermediate_size")?,
            shared_experts: text.count("n_shared_experts")?,
            experts: text.size("n_routed_experts")?,
            block,
        })
    }

    fn experts_of(&self, layer: u32) -> Experts {
        Experts {
            component: Component::Model,
            scope: Scope::LayerName(layer),
            count: self.experts,
        }
    }

    fn mlp(&self, layer: u32, site: ScopedSite, width: usize, role: Role) -> Rule {
        let mlp = Mlp {
            component: Component::Model,
            scope: Scope::Layer(layer),
            site,
            width,
            block: self.block,
            scales: Scales::Signs,
        };
        let hidden = Axis::Hidden(mlp, role);
        match role {
            Role::Down => Rule::writes(&self.residual).with_columns(hidden),
            _ => Rule::reads(&self.residual).with_rows(hidden),
        }
    }

    fn dense(&self, at: &Captures<'_>, role: Role) -> Option<Rule> {
        Some(self.mlp(at.index(0), ScopedSite::Ffn, self.intermediate, role))
    }

    fn shared(&self, at: &Captures<'_>, role: Role) -> Option<Rule> {
        let width = self.expert_intermediate * self.shared_experts;
        Some(self.mlp(at.index(0), ScopedSite::SharedFfn, width, role))
    }

    fn expert(&self, at: &Captures<'_>, role: Role) -> Option<Rule> {
        let site = ScopedSite::ExpertFfn(at.index(1));
        let rule = self.mlp(at.index(0), site, self.expert_intermediate, role);
        Some(rule.in_slot(self.experts_of(at.index(0)), at, 1))
    }

    fn streams(&self, count: usize) -> Axis {
        Axis::Concat(vec![Axis::Residual(self.residual.clone()); count])
    }

    fn reads(&self) -> Option<Rule> {
        Some(Rule::reads(&self.residual))
    }

    fn gain(&self) -> Option<Rule> {
        Some(Rule::gain(&self.residual))
    }

    fn all_streams(&self) -> Option<Rule> {
        Some(Rule::keep().with_columns(self.streams(self.streams)))
    }

    fn visual(&self, name: &str) -> Option<Rule> {
        Some(match name.strip_prefix("model.visual.")? {
            "merger.down_proj.weight" | "merger.down_proj.bias" => Rule::writes(&self.residual),
            _ => Rule::keep(),
        })
    }
}

impl Family for Glm5Next {
    fn name(&self) -> &'static str {
        "Glm5NextForConditionalGeneration"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        match look_up(TABLE, "model.language_model.", name) {
            Some((rule, at)) => rule(self, &at),
            None => self.visual(name),
        }
    }

    fn scale_suffixes(&self) -> &'static [&'static str] {
        &SCALES
    }

    fn scale_block(&self, _packed: bool) -> (usize, usize) {
        (self.block, self.block)
    }
}

const TABLE: &[Line<Glm5Next>] = &[
    ("@embed_tokens.weight", |g, _| {
        Some(Rule::reads(&g.residual).with_rows(Axis::Tokens(g.tokens.clone())))
    }),
    ("lm_head.weight", |g, _| {
        Some(Rule::reads(&g.residual).with_rows(Axis::Tokens(g.tokens.clone())))
    }),
    ("@norm.weight", |g, _| g.gain()),
    ("@layers.{}.input_layernorm.weight", |g, _| g.gain()),
    ("@layers.{}.post_attention_layernorm.weight", |g, _| {
        g.gain()
    }),
    ("@layers.{}.enorm.weight", |g, _| g.gain()),
    ("@layers.{}.hnorm.weight", |g, _| g.gain()),
    ("@layers.{}.shared_head.norm.weight", |g, _| g.gain()),
    ("@layers.{}.eh_proj.weight", |g, _| {
        Some(Rule::writes(&g.residual).with_columns(g.streams(2)))
    }),
    ("@layers.{}.hc_attn_fn", |g, _| g.all_streams()),
    ("@layers.{}.hc_ffn_fn", |g, _| g.all_streams()),
    ("@layers.{}.hc_head_fn", |g, _| g.all_streams()),
    ("@hc_head_fn", |g, _| g.all_streams()),
    ("@layers.{}.hc_attn_base", |_, _| Some(Rule::keep())),
    ("@layers.{}.hc_attn_scale", |_, _| Some(Rule::keep())),
    ("@layers.{}.hc_ffn_base", |_, _| Some(Rule::keep())),
    ("@layers.{}.hc_ffn_scale", |_, _| Some(Rule::keep())),
    ("@layers.{}.hc_head_base", |_, _| Some(Rule::keep())),
    ("@layers.{}.hc_head_scale", |_, _| Some(Rule::keep())),
    ("@hc_head_base", |_, _| Some(Rule::keep())),
    ("@hc_head_scale", |_, _| Some(Rule::keep())),
    ("@layers.{}.self_attn.q_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.k_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.v_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.f_a_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.g_a_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.b_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.q_a_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.kv_a_proj_with_mqa.weight", |g, _| {
        g.reads()
    }),
    ("@layers.{}.self_attn.indexer.wk.weight", |g, _| g.reads()),
    (
        "@layers.{}.self_attn.indexer.weights_proj.weight",
        |g, _| g.reads(),
    ),
    (
        "@layers.{}.self_attn.indexer.index_kpool_compress_gate",
        |g, _| g.reads(),
    ),
    ("@layers.{}.self_attn.o_proj.weight", |g, _| {
        Some(Rule::writes(&g.residual))
    }),
    ("@layers.{}.self_attn.A_log", |_, _| Some(Rule::keep())),
    ("@layers.{}.self_attn.dt_bias", |_, _| Some(Rule::keep())),
    ("@layers.{}.self_attn.f_b_proj.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.g_b_proj.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.q_conv1d.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.k_conv1d.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.v_conv1d.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.o_norm.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.q_a_layernorm.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.q_b_proj.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.kv_a_layernorm.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.kv_b_proj.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.indexer.wq_b.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.indexer.k_norm.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("@layers.{}.self_attn.indexer.k_norm.bias", |_, _| {
        Some(Rule::keep())
    }),
    (
        "@layers.{}.self_attn.indexer.index_kpool_compress_ape",
        |_, _| Some(Rule::keep()),
    ),
    ("@layers.{}.mlp.gate.weight", |g, at| {
        let rows = Axis::Experts(g.experts_of(at.index(0)));
        Some(Rule::reads(&g.residual).with_rows(rows))
    }),
    ("@layers.{}.mlp.gate.e_score_correction_bias", |g, at| {
        Some(Rule::rows(Axis::Experts(g.experts_of(at.index(0)))))
    }),
    ("@layers.{}.mlp.gate_proj.weight", |g, at| {
        g.dense(at, Role::Gate)
    }),
    ("@layers.{}.mlp.up_proj.weight", |g, at| {
        g.dense(at, Role::Up)
    }),
    ("@layers.{}.mlp.down_proj.weight", |g, at| {
        g.dense(at, Role::Down)
    }),
    ("@layers.{}.mlp.shared_experts.gate_proj.weight", |g, at| {
        g.shared(at, Role::Gate)
    }),
    ("@layers.{}.mlp.shared_experts.up_proj.weight", |g, at| {
        g.shared(at, Role::Up)
    }),
    ("@layers.{}.mlp.shared_experts.down_proj.weight", |g, at| {
        g.shared(at, Role::Down)
    }),
    ("@layers.{}.mlp.experts.{}.gate_proj.weight", |g, at| {
        g.expert(at, Role::Gate)
    }),
    ("@layers.{}.mlp.experts.{}.up_proj.weight", |g, at| {
        g.expert(at, Role::Up)
    }),
    ("@layers.{}.mlp.experts.{}.down_proj.weight", |g, at| {
        g.expert(at, Role::Down)
    }),
];

const MAX_STREAMS: usize = 64;
