//! MiniMax H3: a text encoder, a diffusion transformer and two autoencoders
//! (spec: sealed checkpoint, section 4).

use model_key::{Component, Scope, ScopedSite, Site};
use serde_json::Value;

use super::decoder::{Decoder, residual};
use super::{Family, Line, look_up};
use crate::axis::{
    Axis, Heads, Mlp, Permuted, Residual, ResidualForm, Role, Scales, Turns, Values,
};
use crate::config::Config;
use crate::error::PlanError;
use crate::pattern::{Captures, matches};
use crate::plan::{Plan, Transform};
use crate::recipe::Rule;
use crate::vocabulary::Vocabulary;

/// The rules for `text_encoder/`, given its `config.json`.
pub fn minimax_h3_text_encoder(
    config: &Value,
    transform: Transform,
    vocabulary: Vocabulary,
) -> Result<Plan, PlanError> {
    let config = Config::new(config).part("text_config")?;
    let place = (
        "MiniMax H3 text encoder",
        "model.language_model.",
        Component::H3TextEncoder,
    );
    let decoder = Decoder::text_encoder(place, true, &config, transform, vocabulary)?;
    Ok(Plan::new(decoder))
}

/// The rules for `transformer/`, given its `config.json` and the text encoder's.
pub fn minimax_h3_transformer(
    config: &Value,
    text_config: &Value,
    transform: Transform,
) -> Result<Plan, PlanError> {
    let text_width = Config::new(text_config)
        .part("text_config")?
        .size("hidden_size")?;
    let part = Config::new(config);
    let head_dim = part.size("attention_head_dim")?;
    if head_dim < 2 * PLANES {
        return Err(part.error("attention_head_dim", "fewer than the 96 rotary dimensions"));
    }
    let patch = part
        .get("patch_size")
        .and_then(Value::as_array)
        .filter(|sides| sides.len() <= 3)
        .and_then(|sides| {
            let side = |side: &Value| side.as_u64().filter(|n| (1..=64).contains(n));
            sides
                .iter()
                .map(|s| side(s).map(|n| n as usize))
                .product::<Option<usize>>()
        })
        .ok_or_else(|| part.error("patch_size", "not up to three sides from 1 to 64"))?;
    Ok(Plan::new(Transformer {
        residual: Residual {
            component: Component::H3Dit,
            width: part.size("hidden_size")?,
            form: ResidualForm::Signed {
                site: Site::Residual,
                blocks: Vec::new(),
            },
        },
        text: residual(Component::H3TextEncoder, text_width, transform, 0),
        heads: part.size("num_attention_heads")?,
        head_dim,
        ffn: part.size("ffn_hidden_size")?,
        video: latent(H3Latent::Video, part.size("latents_dim")?, patch),
        audio: latent(H3Latent::Audio, part.size("audio_latents_dim")?, 1),
        transform,
    }))
}

/// Which latent space an autoencoder has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum H3Latent {
    /// Video.
    Video,
    /// Audio.
    Audio,
}

/// The rules for `video_vae/` or `audio_vae/` with `channels` latent channels.
pub fn minimax_h3_vae(space: H3Latent, channels: usize) -> Plan {
    Plan::new(Vae {
        space,
        latent: latent(space, channels, 1),
    })
}

impl H3Latent {
    /// The protected order of the latent channels: protected `i` holds canonical `order[i]`.
    pub fn order(
        self,
        keys: &dyn model_key::SubkeySource,
        channels: usize,
    ) -> Result<Vec<u32>, model_key::DrawError> {
        let scoped = model_key::Scoped::new(keys, Component::H3Dit);
        model_key::permutation(&scoped, &model_key::Path::new(self.site()), channels)
    }

    /// Latent channels, as the transformer's `config.json` has them.
    pub fn channels(self, config: &Value) -> Result<usize, PlanError> {
        Config::new(config).size(match self {
            Self::Video => "latents_dim",
            Self::Audio => "audio_latents_dim",
        })
    }

    /// The subkey that [`H3Latent::order`] asks for.
    #[must_use]
    pub fn subkey(self) -> model_key::SubkeyId {
        model_key::permutation_id(Component::H3Dit, &model_key::Path::new(self.site()))
    }

    fn site(self) -> Site {
        match self {
            Self::Video => Site::LatentVideo,
            Self::Audio => Site::LatentAudio,
        }
    }
}

fn latent(space: H3Latent, channels: usize, run: usize) -> Permuted {
    Permuted {
        component: Component::H3Dit,
        site: space.site(),
        width: channels,
        pairs: false,
        copies: 1,
        run,
    }
}

struct Transformer {
    residual: Residual,
    text: Residual,
    heads: usize,
    head_dim: usize,
    ffn: usize,
    video: Permuted,
    audio: Permuted,
    transform: Transform,
}

impl Transformer {
    fn writes(&self) -> Option<Rule> {
        Some(Rule::writes(&self.residual))
    }

    fn gain(&self) -> Option<Rule> {
        Some(Rule::gain(&self.residual))
    }

    /// Rows of an AdaLN projection: for each modality, parts that shift or scale.
    fn modulation(&self, modalities: usize, parts: &[Modulation]) -> Option<Rule> {
        let axis = |part: &Modulation| match part {
            Modulation::Shift => Axis::Residual(self.residual.clone()),
            Modulation::Factor => Axis::Gain(self.residual.clone()),
        };
        let all = (0..modalities)
            .flat_map(|_| parts.iter().map(axis))
            .collect();
        Some(Rule::rows(Axis::Concat(all)))
    }
}

#[derive(Clone, Copy)]
enum Modulation {
    Shift,
    Factor,
}

/// A block of the transformer or of the token refiner.
struct Block<'a> {
    model: &'a Transformer,
    scope: Scope,
}

impl Block<'_> {
    fn turns(&self) -> Turns {
        Turns {
            component: Component::H3Dit,
            scope: self.scope,
            head_dim: self.model.head_dim,
            planes: PLANES,
        }
    }

    fn values(&self) -> Values {
        Values {
            component: Component::H3Dit,
            scope: self.scope,
            site: ScopedSite::Heads,
            groups: self.model.heads,
            group: 1,
            head_dim: self.model.head_dim,
            orthogonal: self.model.transform == Transform::Orth,
        }
    }

    fn packed(&self) -> Axis {
        Axis::Packed {
            heads: Heads {
                turns: self.turns(),
                site: ScopedSite::Heads,
                groups: self.model.heads,
                group: 1,
            },
            values: self.values(),
        }
    }

    fn hidden(&self, role: Role) -> Axis {
        let mlp = Mlp {
            component: Component::H3Dit,
            scope: self.scope,
            site: ScopedSite::Ffn,
            width: self.model.ffn,
            block: 0,
            scales: Scales::Powers,
        };
        Axis::Hidden(mlp, role)
    }

    fn gate_and_value(&self) -> Axis {
        Axis::Concat(vec![self.hidden(Role::Gate), self.hidden(Role::Up)])
    }
}

impl Family for Transformer {
    fn name(&self) -> &'static str {
        "MiniMax H3 transformer"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        if let Some((rule, at)) = look_up(TABLE, "", name) {
            return rule(self, &at);
        }
        if name.starts_with("time_embedder.") || name.starts_with("rope.") {
            return Some(Rule::keep());
        }
        let (refiner, rest) = match name.strip_prefix("token_refiner.") {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let (index, rest) = rest.strip_prefix("blocks.")?.split_once('.')?;
        let index = matches("{}", "", index)?.index(0);
        let scope = if refiner {
            Scope::Refiner(index)
        } else {
            Scope::Block(index)
        };
        let (rule, at) = look_up(BLOCK_TABLE, "", rest)?;
        rule(&Block { model: self, scope }, &at)
    }
}

const TABLE: &[Line<Transformer>] = &[
    ("video_patch_proj.weight", |m, _| {
        Some(Rule::writes(&m.residual).with_columns(Axis::Permuted(m.video.clone())))
    }),
    ("audio_patch_proj.weight", |m, _| {
        Some(Rule::writes(&m.residual).with_columns(Axis::Permuted(m.audio.clone())))
    }),
    ("video_patch_proj.bias", |m, _| m.writes()),
    ("audio_patch_proj.bias", |m, _| m.writes()),
    ("condition_proj.weight", |m, _| {
        Some(Rule::writes(&m.residual).with_columns(Axis::Residual(m.text.clone())))
    }),
    ("condition_proj.bias", |m, _| m.writes()),
    ("token_refiner.final_norm.weight", |m, _| m.gain()),
    ("final_layer.norm.weight", |m, _| m.gain()),
    ("final_layer.adaln_proj.linear.weight", |m, _| {
        m.modulation(1, FINAL)
    }),
    ("final_layer.adaln_proj.linear.bias", |m, _| {
        m.modulation(1, FINAL)
    }),
    ("final_layer.video_out.weight", |m, _| {
        Some(Rule::reads(&m.residual).with_rows(Axis::Permuted(m.video.clone())))
    }),
    ("final_layer.video_out.bias", |m, _| {
        Some(Rule::rows(Axis::Permuted(m.video.clone())))
    }),
    ("final_layer.audio_out.weight", |m, _| {
        Some(Rule::reads(&m.residual).with_rows(Axis::Permuted(m.audio.clone())))
    }),
    ("final_layer.audio_out.bias", |m, _| {
        Some(Rule::rows(Axis::Permuted(m.audio.clone())))
    }),
];

/// One line of a table of blocks.
type BlockLine = (
    &'static str,
    for<'a, 'c> fn(&Block<'a>, &Captures<'c>) -> Option<Rule>,
);

const BLOCK_TABLE: &[BlockLine] = &[
    ("norm1.weight", |b, _| b.model.gain()),
    ("norm2.weight", |b, _| b.model.gain()),
    ("attn.qkv_proj.weight", |b, _| {
        Some(Rule::reads(&b.model.residual).with_rows(b.packed()))
    }),
    ("attn.qkv_proj.bias", |b, _| Some(Rule::rows(b.packed()))),
    ("attn.q_norm.weight", |b, _| {
        Some(Rule::rows(Axis::TurnedGain(b.turns())))
    }),
    ("attn.k_norm.weight", |b, _| {
        Some(Rule::rows(Axis::TurnedGain(b.turns())))
    }),
    ("attn.out_proj.weight", |b, _| {
        Some(Rule::writes(&b.model.residual).with_columns(Axis::Rotated(b.values())))
    }),
    ("attn.out_proj.bias", |b, _| b.model.writes()),
    ("mlp.fc1.weight", |b, _| {
        Some(Rule::reads(&b.model.residual).with_rows(b.gate_and_value()))
    }),
    ("mlp.fc1.bias", |b, _| Some(Rule::rows(b.gate_and_value()))),
    ("mlp.fc2.weight", |b, _| {
        Some(Rule::writes(&b.model.residual).with_columns(b.hidden(Role::Down)))
    }),
    ("mlp.fc2.bias", |b, _| b.model.writes()),
    ("adaln_proj.linear.weight", |b, _| {
        b.model.modulation(3, BLOCK)
    }),
    ("adaln_proj.linear.bias", |b, _| {
        b.model.modulation(3, BLOCK)
    }),
];

struct Vae {
    space: H3Latent,
    latent: Permuted,
}

impl Vae {
    fn rows(&self, copies: usize) -> Rule {
        Rule::rows(Axis::Permuted(Permuted {
            copies,
            ..self.latent.clone()
        }))
    }

    fn columns(&self) -> Rule {
        Rule::keep().with_columns(Axis::Permuted(self.latent.clone()))
    }
}

impl Family for Vae {
    fn name(&self) -> &'static str {
        "MiniMax H3 autoencoder"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        Some(match (self.space, name) {
            // Mean, then log variance.
            (H3Latent::Video, "quant_conv.weight" | "quant_conv.bias") => self.rows(2),
            (H3Latent::Video, "post_quant_conv.weight") => self.columns(),
            (
                H3Latent::Audio,
                "mean_proj.weight" | "mean_proj.bias" | "logs_proj.weight" | "logs_proj.bias",
            ) => self.rows(1),
            (H3Latent::Audio, "dec_in_proj.weight") => self.columns(),
            _ => Rule::keep(),
        })
    }
}

const BLOCK: &[Modulation] = &[
    Modulation::Shift,
    Modulation::Factor,
    Modulation::Factor,
    Modulation::Shift,
    Modulation::Factor,
    Modulation::Factor,
];
const FINAL: &[Modulation] = &[Modulation::Shift, Modulation::Factor];
/// The 96 rotary dimensions of a head, as pairs.
const PLANES: usize = 48;
