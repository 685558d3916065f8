//! Z-Image: the client scheme and the split scheme d1-v1 (spec: sealed checkpoint, section 4).

use model_key::{Component, Scope, ScopedSite, Site};
use serde_json::Value;

use super::decoder::Decoder;
use super::{Family, Line, look_up};
use crate::axis::{Axis, Permuted, Residual};
use crate::config::Config;
use crate::error::PlanError;
use crate::pattern::{Captures, matches};
use crate::plan::{Plan, Transform};
use crate::recipe::Rule;
use crate::vocabulary::Vocabulary;

/// The rules for `text_encoder/`, given its `config.json`.
pub fn z_image_text_encoder(
    config: &Value,
    transform: Transform,
    vocabulary: Vocabulary,
) -> Result<Plan, PlanError> {
    Ok(Plan::new(text_encoder(config, transform, vocabulary)?))
}

/// The client scheme's rules for `transformer/`, given its `config.json` and the text encoder's.
pub fn z_image_client_transformer(
    config: &Value,
    text_config: &Value,
    transform: Transform,
    vocabulary: Vocabulary,
) -> Result<Plan, PlanError> {
    let part = Config::new(config);
    let only = |field: &str, value: u64| match part.get(field).and_then(Value::as_array) {
        Some(list) if list.iter().map(Value::as_u64).eq([Some(value)]) => Ok(()),
        _ => Err(part.error(field, format!("only [{value}] is supported"))),
    };
    only("all_patch_size", 2)?;
    only("all_f_patch_size", 1)?;
    if part.get("siglip_feat_dim").is_some() {
        return Err(part.error("siglip_feat_dim", "is not supported in the client scheme"));
    }
    Ok(Plan::new(ClientTransformer {
        text: text_encoder(text_config, transform, vocabulary)?
            .residual()
            .clone(),
        latent: 4 * part.size("in_channels")?.min(MAX_CHANNELS),
    }))
}

/// The split scheme's rules for `transformer/`, given its `config.json`.
pub fn z_image_split_transformer(config: &Value) -> Result<Plan, PlanError> {
    let part = Config::new(config);
    let (dim, heads) = (part.size("dim")?, part.size("n_heads")?);
    if dim % heads != 0 {
        return Err(part.error("n_heads", "does not divide dim"));
    }
    Ok(Plan::new(SplitTransformer {
        dim,
        heads,
        // The reference's int(dim / 3 * 8).
        hidden: (dim as f64 / 3.0 * 8.0) as usize,
    }))
}

fn text_encoder(
    config: &Value,
    transform: Transform,
    vocabulary: Vocabulary,
) -> Result<Decoder, PlanError> {
    let place = ("Z-Image text encoder", "", Component::ZImageTextEncoder);
    Decoder::text_encoder(place, false, &Config::new(config), transform, vocabulary)
}

struct ClientTransformer {
    text: Residual,
    latent: usize,
}

impl ClientTransformer {
    fn basis(&self) -> Axis {
        Axis::LatentBasis { width: self.latent }
    }
}

impl Family for ClientTransformer {
    fn name(&self) -> &'static str {
        "Z-Image transformer"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        match look_up(CLIENT_TABLE, "", name) {
            Some((rule, at)) => rule(self, &at),
            None => Some(Rule::keep()),
        }
    }
}

const CLIENT_TABLE: &[Line<ClientTransformer>] = &[
    ("all_x_embedder.2-1.weight", |t, _| {
        Some(Rule::keep().with_columns(t.basis()))
    }),
    ("all_final_layer.2-1.linear.weight", |t, _| {
        Some(Rule::rows(t.basis()))
    }),
    ("all_final_layer.2-1.linear.bias", |t, _| {
        Some(Rule::rows(t.basis()))
    }),
    ("cap_embedder.0.weight", |t, _| Some(Rule::gain(&t.text))),
    ("cap_embedder.1.weight", |t, _| {
        Some(Rule::reads(&t.text).folding("cap_embedder.0.weight".to_owned()))
    }),
];

struct SplitTransformer {
    dim: usize,
    heads: usize,
    hidden: usize,
}

/// A block of one of the groups.
struct Block<'a> {
    model: &'a SplitTransformer,
    scope: Scope,
}

impl Block<'_> {
    fn axis(&self, site: ScopedSite, width: usize) -> Permuted {
        Permuted {
            component: Component::Model,
            site: Site::Scoped(self.scope, site),
            width,
            pairs: false,
            copies: 1,
            run: 1,
        }
    }

    fn head(&self, copies: usize) -> Axis {
        Axis::Permuted(Permuted {
            pairs: true,
            copies,
            ..self.axis(ScopedSite::AttnHead, self.model.dim / self.model.heads)
        })
    }

    fn heads(&self) -> Axis {
        self.head(self.model.heads)
    }

    fn channels(&self) -> Axis {
        Axis::Permuted(self.axis(ScopedSite::MlpChannels, self.model.dim))
    }

    fn hidden(&self) -> Axis {
        Axis::Permuted(self.axis(ScopedSite::MlpHidden, self.model.hidden))
    }

    fn attention(&self) -> Option<Rule> {
        Some(Rule::new(self.heads(), self.heads()))
    }
}

impl Family for SplitTransformer {
    fn name(&self) -> &'static str {
        "Z-Image transformer"
    }

    fn rule(&self, name: &str) -> Option<Rule> {
        let block = name.split_once('.').and_then(|(group, rest)| {
            let (index, rest) = rest.split_once('.')?;
            let index = matches("{}", "", index)?.index(0);
            let scope = match group {
                "noise_refiner" => Scope::D1NoiseRefiner(index),
                "context_refiner" => Scope::D1ContextRefiner(index),
                "siglip_refiner" => Scope::D1SiglipRefiner(index),
                "layers" => Scope::D1Layer(index),
                _ => return None,
            };
            let (rule, at) = look_up(SPLIT_TABLE, "", rest)?;
            rule(&Block { model: self, scope }, &at)
        });
        block.or_else(|| {
            Some(Rule {
                kept_aside: true,
                ..Rule::keep()
            })
        })
    }
}

/// One line of a table of blocks.
type BlockLine = (
    &'static str,
    for<'a, 'c> fn(&Block<'a>, &Captures<'c>) -> Option<Rule>,
);

const SPLIT_TABLE: &[BlockLine] = &[
    ("attention.to_q.weight", |b, _| b.attention()),
    ("attention.to_k.weight", |b, _| b.attention()),
    ("attention.to_v.weight", |b, _| b.attention()),
    ("attention.to_out.0.weight", |b, _| b.attention()),
    ("attention.norm_q.weight", |b, _| {
        Some(Rule::rows(b.head(1)))
    }),
    ("attention.norm_k.weight", |b, _| {
        Some(Rule::rows(b.head(1)))
    }),
    ("feed_forward.w1.weight", |b, _| {
        Some(Rule::new(b.hidden(), b.channels()))
    }),
    ("feed_forward.w3.weight", |b, _| {
        Some(Rule::new(b.hidden(), b.channels()))
    }),
    ("feed_forward.w2.weight", |b, _| {
        Some(Rule::new(b.channels(), b.hidden()))
    }),
];

const MAX_CHANNELS: usize = 4096;
