//! `config.json` to the config record (spec: container, C.4).

use jlm::{Arch, Config, Flags};
use serde_json::Value;

use crate::error::ConvertError;

/// A model class and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class {
    pub(crate) arch: Arch,
    flags: Flags,
    /// Query and key rows are stored permuted, for rotary pairs (2i, 2i + 1).
    pub(crate) interleaved: bool,
    pub(crate) mixture: Option<MixtureNames>,
    pub(crate) qk_norm: bool,
}

/// How a mixture's tensors are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixtureNames {
    /// `mlp.gate`, `mlp.experts.E.{gate,up,down}_proj`.
    Mlp,
    /// `block_sparse_moe.gate`, `block_sparse_moe.experts.E.{w1,w3,w2}`.
    BlockSparse,
}

/// The config record, and what else the tensors need to know.
pub(crate) struct Model {
    pub(crate) class: Class,
    /// Without the tied flag and `n_vocab` of the tokenizer: those depend on more than the config.
    pub(crate) config: Config,
    /// `tie_word_embeddings`.
    pub(crate) tied: bool,
    /// Rotary divisors of llama3 scaling, one per pair.
    pub(crate) rope_divisors: Option<Vec<f32>>,
}

impl Model {
    pub(crate) fn new(json: &Value) -> Result<Self, ConvertError> {
        let class = class_of(json)?;
        refuse_unsupported(json)?;
        let mut config = Config::new(class.arch);
        config.n_layer = positive(json, "num_hidden_layers")?;
        config.n_embd = positive(json, "hidden_size")?;
        config.n_head = positive(json, "num_attention_heads")?;
        config.n_kv_head = or(count(json, "num_key_value_heads")?, config.n_head);
        config.head_dim = or(count(json, "head_dim")?, config.n_embd / config.n_head);
        config.n_rot = config.head_dim;
        config.n_ffn = positive(json, "intermediate_size")?;
        config.n_vocab = positive(json, "vocab_size")?;
        config.n_ctx = or(count(json, "max_position_embeddings")?, 2048);
        config.rms_eps = or_float(number(json, "rms_norm_eps")?, 1e-5);
        config.attn_factor = 1.0;
        config.embd_scale = 1.0;
        config.flags = class.flags;
        if config.head_dim == 0 || !config.head_dim.is_multiple_of(2) {
            return Err(ConvertError::config(
                "head_dim",
                "is not a positive even number",
            ));
        }
        if !config.n_head.is_multiple_of(config.n_kv_head) {
            let reason = "does not divide num_attention_heads";
            return Err(ConvertError::config("num_key_value_heads", reason));
        }
        if let Some(names) = class.mixture {
            mixture(json, names, &mut config)?;
        }
        let parameters = &json["rope_parameters"];
        let base = match number(json, "rope_theta")? {
            Some(base) => Some(base),
            None => number(parameters, "rope_theta")?,
        };
        config.rope_base = or_float(base, 10_000.0);
        let scaling = [&json["rope_scaling"], parameters]
            .into_iter()
            .find(|scaling| !scaling.is_null());
        let rope_divisors = match scaling {
            Some(scaling) => rope_divisors(scaling, &config)?,
            None => None,
        };
        Ok(Self {
            class,
            config,
            tied: flag(json, "tie_word_embeddings")?.unwrap_or(false),
            rope_divisors,
        })
    }
}

fn class_of(json: &Value) -> Result<Class, ConvertError> {
    let classes = json["architectures"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let names = || classes.iter().filter_map(Value::as_str);
    names().find_map(known_class).ok_or_else(|| {
        let listed = names().collect::<Vec<_>>().join(", ");
        ConvertError::config("architectures", format!("none of [{listed}] is converted"))
    })
}

fn known_class(name: &str) -> Option<Class> {
    let neox = Flags::ROPE_NEOX;
    let class = |arch, flags, mixture| Class {
        arch,
        flags,
        interleaved: arch == Arch::LLAMA,
        mixture,
        qk_norm: flags.has(Flags::QK_NORM),
    };
    Some(match name {
        "LlamaForCausalLM" => class(Arch::LLAMA, Flags::default(), None),
        "Qwen2ForCausalLM" => class(Arch::QWEN2, neox, None),
        "Qwen3ForCausalLM" => class(Arch::QWEN3, neox.with(Flags::QK_NORM), None),
        "Qwen3MoeForCausalLM" => class(
            Arch::QWEN3_MOE,
            neox.with(Flags::QK_NORM),
            Some(MixtureNames::Mlp),
        ),
        "MixtralForCausalLM" => class(
            Arch::LLAMA,
            Flags::default(),
            Some(MixtureNames::BlockSparse),
        ),
        "OlmoeForCausalLM" => class(
            Arch::OLMOE,
            neox.with(Flags::QK_NORM).with(Flags::QK_NORM_WHOLE),
            Some(MixtureNames::Mlp),
        ),
        _ => return None,
    })
}

fn refuse_unsupported(json: &Value) -> Result<(), ConvertError> {
    let refuse = |field, reason: &str| Err(ConvertError::config(field, reason));
    if flag(json, "mlp_bias")? == Some(true) {
        return refuse("mlp_bias", "has no form in a container");
    }
    if let Some(act) = text(json, "hidden_act")?
        && !matches!(act, "silu" | "swish")
    {
        return refuse("hidden_act", "is neither silu nor swish");
    }
    let partial = match number(json, "partial_rotary_factor")? {
        Some(factor) => Some(factor),
        None => number(&json["rope_parameters"], "partial_rotary_factor")?,
    };
    if partial.is_some_and(|factor| factor != 1.0) {
        return refuse("partial_rotary_factor", "is not 1");
    }
    let window = count(json, "sliding_window")?;
    if window != 0 && flag(json, "use_sliding_window")? != Some(false) {
        return refuse(
            "sliding_window",
            "is set, and use_sliding_window is not false",
        );
    }
    let sliding = json["layer_types"].as_array().is_some_and(|kinds| {
        kinds
            .iter()
            .any(|kind| kind.as_str() != Some("full_attention"))
    });
    if sliding {
        return refuse("layer_types", "has a layer that is not full_attention");
    }
    if count(json, "decoder_sparse_step")? > 1 {
        return refuse("decoder_sparse_step", "is above 1");
    }
    if json["mlp_only_layers"]
        .as_array()
        .is_some_and(|layers| !layers.is_empty())
    {
        return refuse("mlp_only_layers", "is not empty");
    }
    for field in ["shared_expert_intermediate_size", "n_shared_experts"] {
        if count(json, field)? != 0 {
            return refuse(field, "asks for a shared expert");
        }
    }
    Ok(())
}

fn mixture(json: &Value, names: MixtureNames, config: &mut Config) -> Result<(), ConvertError> {
    config.n_expert = count(json, "num_experts")?.max(count(json, "num_local_experts")?);
    config.n_expert_used = count(json, "num_experts_per_tok")?;
    config.n_ffn_exp = or(count(json, "moe_intermediate_size")?, config.n_ffn);
    if config.n_expert == 0 {
        return Err(ConvertError::config(
            "num_experts",
            "is missing for a mixture",
        ));
    }
    if !(1..=config.n_expert).contains(&config.n_expert_used) {
        let reason = "is not 1 to the number of experts";
        return Err(ConvertError::config("num_experts_per_tok", reason));
    }
    let renormalised =
        names == MixtureNames::BlockSparse || flag(json, "norm_topk_prob")? == Some(true);
    if !renormalised {
        config.flags = config.flags.with(Flags::KEEP_ROUTER_WEIGHTS);
    }
    if let Some(clamp) = number(json, "clip_qkv")? {
        config.tails.clamp.clamp_kqv = clamp as f32;
    }
    Ok(())
}

/// The divisors of each pair's frequency under llama3 scaling; `None` for the default rotary.
fn rope_divisors(scaling: &Value, config: &Config) -> Result<Option<Vec<f32>>, ConvertError> {
    let kind = match text(scaling, "rope_type")? {
        Some(kind) => Some(kind),
        None => text(scaling, "type")?,
    };
    match kind {
        None | Some("default") => return Ok(None),
        Some("llama3") => {}
        Some(other) => {
            let reason = format!("type {other:?} has no form in a container");
            return Err(ConvertError::config("rope_scaling", reason));
        }
    }
    let need = |field| {
        number(scaling, field)?
            .filter(|value| *value > 0.0)
            .ok_or_else(|| ConvertError::config("rope_scaling", format!("needs {field} above 0")))
    };
    let factor = need("factor")?;
    let low = need("low_freq_factor")?;
    let high = need("high_freq_factor")?;
    let original = need("original_max_position_embeddings")?;
    if high <= low {
        let reason = "needs high_freq_factor above low_freq_factor";
        return Err(ConvertError::config("rope_scaling", reason));
    }
    let base = f64::from(config.rope_base);
    let n_rot = config.n_rot;
    let divisors = (0..n_rot / 2).map(|pair| {
        let frequency = base.powf(-2.0 * f64::from(pair) / f64::from(n_rot));
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        let divisor = if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        };
        divisor as f32
    });
    Ok(Some(divisors.collect()))
}

/// A count; 0 when absent or null.
fn count(json: &Value, field: &'static str) -> Result<u32, ConvertError> {
    match &json[field] {
        Value::Null => Ok(0),
        value => value
            .as_u64()
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| ConvertError::config(field, "is not a count")),
    }
}

fn positive(json: &Value, field: &'static str) -> Result<u32, ConvertError> {
    match count(json, field)? {
        0 => Err(ConvertError::config(field, "is missing or 0")),
        value => Ok(value),
    }
}

/// A finite number; `None` when absent or null.
fn number(json: &Value, field: &'static str) -> Result<Option<f64>, ConvertError> {
    match &json[field] {
        Value::Null => Ok(None),
        value => value
            .as_f64()
            .map(Some)
            .ok_or_else(|| ConvertError::config(field, "is not a number")),
    }
}

fn flag(json: &Value, field: &'static str) -> Result<Option<bool>, ConvertError> {
    match &json[field] {
        Value::Null => Ok(None),
        value => value
            .as_bool()
            .map(Some)
            .ok_or_else(|| ConvertError::config(field, "is not a boolean")),
    }
}

fn text<'a>(json: &'a Value, field: &'static str) -> Result<Option<&'a str>, ConvertError> {
    match &json[field] {
        Value::Null => Ok(None),
        value => value
            .as_str()
            .map(Some)
            .ok_or_else(|| ConvertError::config(field, "is not text")),
    }
}

const fn or(value: u32, otherwise: u32) -> u32 {
    if value == 0 { otherwise } else { value }
}

fn or_float(value: Option<f64>, otherwise: f64) -> f32 {
    value.filter(|value| *value != 0.0).unwrap_or(otherwise) as f32
}
