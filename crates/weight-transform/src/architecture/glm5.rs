//! GLM-5 (spec: sealed checkpoint, section 4).

use model_key::{Component, Scope, ScopedSite};

use super::decoder::{SCALES, mlp, residual};
use super::{Family, Line, look_up};
use crate::axis::{Axis, Experts, Residual, Role, Tokens};
use crate::config::{Config, Quantization};
use crate::error::PlanError;
use crate::pattern::Captures;
use crate::plan::Transform;
use crate::recipe::Rule;
use crate::vocabulary::Vocabulary;

pub(super) struct Glm5 {
    residual: Residual,
    tokens: Tokens,
    intermediate: usize,
    expert_intermediate: usize,
    shared_experts: usize,
    experts: usize,
    quantization: Quantization,
}

impl Glm5 {
    pub(super) fn new(config: &Config<'_>, vocabulary: Vocabulary) -> Result<Self, PlanError> {
        let quantization = Quantization::of(config)?;
        let width = config.size("hidden_size")?;
        let block = quantization.block();
        Ok(Self {
            residual: residual(Component::Model, width, Transform::Perm, block),
            tokens: vocabulary.tokens(Component::Model, config.size("vocab_size")?)?,
            intermediate: config.size("intermediate_size")?,
            expert_intermediate: config.size("moe_intermediate_size")?,
            shared_experts: config.count("n_shared_experts")?,
            experts: config.size("n_routed_experts")?,
            quantization,
        })
    }

    fn experts_of(&self, layer: u32) -> Experts {
        Experts {
            component: Component::Model,
            scope: Scope::Layer(layer),
            count: self.experts,
        }
    }

    fn mlp(&self, layer: u32, site: ScopedSite, width: usize, role: Role) -> Rule {
        let mlp = mlp(Component::Model, layer, site, width, self.quantization);
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

    fn reads(&self) -> Option<Rule> {
        Some(Rule::reads(&self.residual))
    }

    fn gain(&self) -> Option<Rule> {
        Some(Rule::gain(&self.residual))
    }
}

impl Family for Glm5 {
    fn name(&self) -> &'static str {
        "GlmMoeDsaForCausalLM"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        let (rule, at) = look_up(TABLE, "model.", name)?;
        rule(self, &at)
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

const TABLE: &[Line<Glm5>] = &[
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
        let half = Axis::Residual(g.residual.clone());
        let halves = Axis::Concat(vec![half.clone(), half]);
        Some(Rule::writes(&g.residual).with_columns(halves))
    }),
    ("@layers.{}.self_attn.q_a_proj.weight", |g, _| g.reads()),
    ("@layers.{}.self_attn.kv_a_proj_with_mqa.weight", |g, _| {
        g.reads()
    }),
    ("@layers.{}.self_attn.indexer.wk.weight", |g, _| g.reads()),
    (
        "@layers.{}.self_attn.indexer.weights_proj.weight",
        |g, _| g.reads(),
    ),
    ("@layers.{}.self_attn.o_proj.weight", |g, _| {
        Some(Rule::writes(&g.residual))
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
