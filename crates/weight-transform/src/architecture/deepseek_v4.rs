//! DeepSeek V4: bits move and flip, nothing is scaled (spec: sealed checkpoint, section 4).

use model_key::{Component, Scope, ScopedSite, Site};

use super::{Family, Line, look_up};
use crate::axis::{Axis, Experts, Mlp, Residual, ResidualForm, Role, Scales, Tokens};
use crate::config::{Config, Quantization};
use crate::error::PlanError;
use crate::pattern::{Captures, matches};
use crate::recipe::Rule;
use crate::vocabulary::Vocabulary;

pub(super) struct DeepseekV4 {
    residual: Residual,
    tokens: Tokens,
    streams: usize,
    experts: usize,
    expert_intermediate: usize,
    shared_experts: usize,
    block: usize,
    fp4_experts: bool,
}

impl DeepseekV4 {
    pub(super) fn new(config: &Config<'_>, vocabulary: Vocabulary) -> Result<Self, PlanError> {
        let quantization = Quantization::of(config)?;
        let block = quantization.block();
        let fp4_experts = config.text("expert_dtype") == Some("fp4");
        let fp4_block = if fp4_experts { FP4_BLOCK } else { 0 };
        Ok(Self {
            residual: Residual {
                component: Component::Model,
                width: config.size("hidden_size")?,
                form: ResidualForm::Signed {
                    site: Site::ResidualPerm,
                    blocks: vec![block, fp4_block],
                },
            },
            tokens: vocabulary.tokens(Component::Model, config.size("vocab_size")?)?,
            streams: config
                .optional_size("hc_mult")?
                .unwrap_or(1)
                .min(MAX_STREAMS),
            experts: config.size("n_routed_experts")?,
            expert_intermediate: config.size("moe_intermediate_size")?,
            shared_experts: config.count("n_shared_experts")?,
            block,
            fp4_experts,
        })
    }
}

/// A layer or a multi-token-prediction block.
struct Block<'a> {
    model: &'a DeepseekV4,
    /// The scope of the expert order: the prefix as written.
    order: Scope,
    /// The scope of the MLP labels.
    labels: Scope,
}

impl Block<'_> {
    fn experts(&self) -> Experts {
        Experts {
            component: Component::Model,
            scope: self.order,
            count: self.model.experts,
        }
    }

    fn mlp(&self, site: ScopedSite, width: usize, block: usize, role: Role) -> Rule {
        let mlp = Mlp {
            component: Component::Model,
            scope: self.labels,
            site,
            width,
            block,
            scales: Scales::Signs,
        };
        let hidden = Axis::Hidden(mlp, role);
        match role {
            Role::Down => Rule::writes(&self.model.residual).with_columns(hidden),
            _ => Rule::reads(&self.model.residual).with_rows(hidden),
        }
    }

    fn shared(&self, role: Role) -> Option<Rule> {
        let width = self.model.expert_intermediate * self.model.shared_experts;
        Some(self.mlp(ScopedSite::SharedFfn, width, self.model.block, role))
    }

    fn expert(&self, at: &Captures<'_>, role: Role) -> Option<Rule> {
        let (width, packed) = (self.model.expert_intermediate, self.model.fp4_experts);
        let block = if packed { FP4_BLOCK } else { self.model.block };
        let rule = self.mlp(ScopedSite::ExpertFfn(at.index(0)), width, block, role);
        let rule = rule.in_slot(self.experts(), at, 0);
        Some(Rule { packed, ..rule })
    }

    fn reads(&self) -> Option<Rule> {
        Some(Rule::reads(&self.model.residual))
    }

    fn gain(&self) -> Option<Rule> {
        Some(Rule::gain(&self.model.residual))
    }

    fn streams(&self) -> Option<Rule> {
        self.model.streams()
    }
}

impl DeepseekV4 {
    /// Columns over all residual streams side by side.
    fn streams(&self) -> Option<Rule> {
        let stream = Axis::Residual(self.residual.clone());
        Some(Rule::keep().with_columns(Axis::Concat(vec![stream; self.streams])))
    }
}

impl Family for DeepseekV4 {
    fn name(&self) -> &'static str {
        "DeepseekV4ForCausalLM"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        if let Some((rule, at)) = look_up(TABLE, "", name) {
            return rule(self, &at);
        }
        let (scope, rest) = name.split_once('.').and_then(|(scope, rest)| {
            let (index, rest) = rest.split_once('.')?;
            let index = matches("{}", "", index)?.index(0);
            let scopes = match scope {
                "layers" => (Scope::LayerName(index), Scope::Layer(index)),
                "mtp" => (Scope::MtpName(index), Scope::Mtp(index)),
                _ => return None,
            };
            Some((scopes, rest))
        })?;
        let block = Block {
            model: self,
            order: scope.0,
            labels: scope.1,
        };
        let head = &name[..name.len() - rest.len()];
        let (rule, at) = look_up(BLOCK_TABLE, "", rest)?;
        rule(&block, &at).map(|rule| rule.under(head))
    }

    fn scale_suffixes(&self) -> &'static [&'static str] {
        &[".scale"]
    }

    fn scale_block(&self, packed: bool) -> (usize, usize) {
        if packed {
            (1, FP4_BLOCK)
        } else {
            (self.block, self.block)
        }
    }
}

const TABLE: &[Line<DeepseekV4>] = &[
    ("embed.weight", |m, _| {
        Some(Rule::reads(&m.residual).with_rows(Axis::Tokens(m.tokens.clone())))
    }),
    ("head.weight", |m, _| {
        Some(Rule::reads(&m.residual).with_rows(Axis::Tokens(m.tokens.clone())))
    }),
    ("norm.weight", |m, _| Some(Rule::gain(&m.residual))),
    ("hc_head_fn", |m, _| m.streams()),
    ("hc_head_base", |_, _| Some(Rule::keep())),
    ("hc_head_scale", |_, _| Some(Rule::keep())),
];

/// One line of a table of blocks.
type BlockLine = (
    &'static str,
    for<'a, 'c> fn(&Block<'a>, &Captures<'c>) -> Option<Rule>,
);

const BLOCK_TABLE: &[BlockLine] = &[
    ("attn_norm.weight", |b, _| b.gain()),
    ("ffn_norm.weight", |b, _| b.gain()),
    ("enorm.weight", |b, _| b.gain()),
    ("hnorm.weight", |b, _| b.gain()),
    ("norm.weight", |b, _| b.gain()),
    ("hc_attn_fn", |b, _| b.streams()),
    ("hc_ffn_fn", |b, _| b.streams()),
    ("hc_head_fn", |b, _| b.streams()),
    ("hc_attn_base", |_, _| Some(Rule::keep())),
    ("hc_attn_scale", |_, _| Some(Rule::keep())),
    ("hc_ffn_base", |_, _| Some(Rule::keep())),
    ("hc_ffn_scale", |_, _| Some(Rule::keep())),
    ("hc_head_base", |_, _| Some(Rule::keep())),
    ("hc_head_scale", |_, _| Some(Rule::keep())),
    ("attn.wq_a.weight", |b, _| b.reads()),
    ("attn.wkv.weight", |b, _| b.reads()),
    ("attn.compressor.wkv.weight", |b, _| b.reads()),
    ("attn.compressor.wgate.weight", |b, _| b.reads()),
    ("attn.indexer.compressor.wkv.weight", |b, _| b.reads()),
    ("attn.indexer.compressor.wgate.weight", |b, _| b.reads()),
    ("attn.indexer.weights_proj.weight", |b, _| b.reads()),
    ("attn.wq_b.weight", |_, _| Some(Rule::keep())),
    ("attn.wo_a.weight", |_, _| Some(Rule::keep())),
    ("attn.q_norm.weight", |_, _| Some(Rule::keep())),
    ("attn.kv_norm.weight", |_, _| Some(Rule::keep())),
    ("attn.compressor.norm.weight", |_, _| Some(Rule::keep())),
    ("attn.indexer.compressor.norm.weight", |_, _| {
        Some(Rule::keep())
    }),
    ("attn.indexer.wq_b.weight", |_, _| Some(Rule::keep())),
    ("attn.attn_sink", |_, _| Some(Rule::keep())),
    ("attn.compressor.ape", |_, _| Some(Rule::keep())),
    ("attn.indexer.compressor.ape", |_, _| Some(Rule::keep())),
    ("attn.wo_b.weight", |b, _| {
        Some(Rule::writes(&b.model.residual))
    }),
    ("e_proj.weight", |b, _| b.both()),
    ("h_proj.weight", |b, _| b.both()),
    ("ffn.gate.weight", |b, _| {
        Some(Rule::reads(&b.model.residual).with_rows(Axis::Experts(b.experts())))
    }),
    ("ffn.gate.bias", |b, _| {
        Some(Rule::rows(Axis::Experts(b.experts())))
    }),
    ("ffn.gate.tid2eid", |b, _| {
        let rule = Rule::rows(Axis::Tokens(b.model.tokens.clone()));
        Some(Rule {
            entries: Some(b.experts()),
            ..rule
        })
    }),
    ("ffn.shared_experts.w1.weight", |b, _| b.shared(Role::Gate)),
    ("ffn.shared_experts.w3.weight", |b, _| b.shared(Role::Up)),
    ("ffn.shared_experts.w2.weight", |b, _| b.shared(Role::Down)),
    ("ffn.experts.{}.w1.weight", |b, at| b.expert(at, Role::Gate)),
    ("ffn.experts.{}.w3.weight", |b, at| b.expert(at, Role::Up)),
    ("ffn.experts.{}.w2.weight", |b, at| b.expert(at, Role::Down)),
];

impl Block<'_> {
    /// Rows and columns of the residual stream.
    fn both(&self) -> Option<Rule> {
        let columns = Axis::Residual(self.model.residual.clone());
        Some(Rule::writes(&self.model.residual).with_columns(columns))
    }
}

const FP4_BLOCK: usize = 32;
const MAX_STREAMS: usize = 64;
