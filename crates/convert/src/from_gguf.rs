//! GGUF files to containers (spec: container, D.1 and D.2).

use std::collections::BTreeMap;

use gguf::{Array, Gguf, TensorInfo, Value};
use jlm::{Arch, Config, Flags, Role, TensorEntry, TensorKey, WriterFingerprint};

use crate::error::ConvertError;
use crate::gguf_vocab::vocab;
use crate::plan::{Plan, expected_shape};
use crate::produce::{BlockSource, Origin, Recipe, Source};

/// Plans the conversion of a GGUF file: its blocks are packed as they are, nothing is requantized.
pub fn plan_gguf<'a>(
    file: &Gguf,
    source: &'a dyn BlockSource,
    fingerprint: &WriterFingerprint,
) -> Result<Plan<'a>, ConvertError> {
    let collected = Collected::new(file)?;
    let mut config = config(file, &collected)?;
    config.n_vocab = collected
        .rows(Role::TOKEN_EMBD)
        .ok_or_else(|| ConvertError::tensor("token_embd.weight", "is missing"))?;
    if collected.rows(Role::OUTPUT).is_none() {
        config.flags = config.flags.with(Flags::TIED);
    }
    let tensors = collected.into_entries(&config)?;
    let vocab = vocab(file)?;
    let origin = Origin::Gguf(source);
    Plan::lay_out(
        origin,
        config,
        vocab.as_ref(),
        tensors,
        fingerprint,
        Vec::new(),
    )
}

/// Tensors, with single experts stacked into banks.
struct Collected {
    /// In file order, then stacked and single experts by block.
    tensors: Vec<Found>,
}

struct Found {
    key: TensorKey,
    name: String,
    info: TensorInfo,
    /// Offsets of the sheets.
    sheets: Vec<u64>,
    dims: Vec<u64>,
}

impl Collected {
    fn new(file: &Gguf) -> Result<Self, ConvertError> {
        let mut tensors = Vec::new();
        let mut experts: BTreeMap<(i32, Role), BTreeMap<i32, TensorInfo>> = BTreeMap::new();
        for info in file.tensors() {
            let key = named(&info.name)
                .ok_or_else(|| ConvertError::tensor(&info.name, "has a name that is not known"))?;
            if key.index >= 0 {
                let bank = experts.entry((key.block, key.role)).or_default();
                bank.insert(key.index, info.clone());
            } else {
                tensors.push(Found::whole(key, info));
            }
        }
        let blocks: Vec<i32> = experts.keys().map(|(block, _)| *block).collect();
        let mut done = None;
        for block in blocks {
            if done.replace(block) != Some(block) {
                tensors.extend(stack(block, &mut experts)?);
            }
        }
        Ok(Self { tensors })
    }

    fn rows(&self, role: Role) -> Option<u32> {
        let found = self.tensors.iter().find(|found| found.key.role == role)?;
        u32::try_from(*found.dims.get(1)?).ok()
    }

    fn into_entries(
        self,
        config: &Config,
    ) -> Result<(Vec<TensorEntry>, Vec<Recipe>), ConvertError> {
        let mut entries = Vec::new();
        let mut recipes = Vec::new();
        for found in self.tensors {
            let Found {
                key,
                name,
                info,
                sheets,
                dims,
            } = found;
            if i64::from(key.block) >= i64::from(config.n_layer) {
                return Err(ConvertError::tensor(
                    &name,
                    "is of a block past block_count",
                ));
            }
            let mut shape: Vec<u64> = expected_shape(key, config).into_iter().rev().collect();
            if key.role.is_expert_bank() {
                shape.push(config.n_expert.into());
            }
            let factors = matches!(
                key.role,
                Role::ROPE_FREQS | Role::ROPE_FACTORS_LONG | Role::ROPE_FACTORS_SHORT
            );
            if !factors && dims != shape {
                let reason = format!("has dims {dims:?}, the metadata says {shape:?}");
                return Err(ConvertError::tensor(&name, reason));
            }
            recipes.push(Recipe::new(Source::Sheets(sheets), info.dtype, None));
            entries.push(TensorEntry {
                key,
                dtype: info.dtype,
                dims,
                qs_off: 0,
                d_off: 0,
                sc_off: 0,
                name,
            });
        }
        Ok((entries, recipes))
    }
}

impl Found {
    fn whole(key: TensorKey, info: &TensorInfo) -> Self {
        let sheets = info.dims.iter().skip(2).product::<u64>();
        let each = info.bytes / sheets;
        Self {
            key,
            name: info.name.clone(),
            sheets: (0..sheets).map(|at| info.offset + at * each).collect(),
            dims: info.dims.clone(),
            info: info.clone(),
        }
    }
}

/// The experts of a block: banks, or single tensors where the experts of one bank differ in type.
fn stack(
    block: i32,
    experts: &mut BTreeMap<(i32, Role), BTreeMap<i32, TensorInfo>>,
) -> Result<Vec<Found>, ConvertError> {
    let banks: Vec<_> = SINGLE
        .into_iter()
        .filter_map(|(_, single, bank)| Some((single, bank, experts.remove(&(block, single))?)))
        .collect();
    for (_, _, sheets) in &banks {
        for (expected, (expert, info)) in (0..).zip(sheets) {
            if *expert != expected {
                let reason = format!("expert {expected} of its block is missing");
                return Err(ConvertError::tensor(&info.name, reason));
            }
        }
    }
    let alike = banks.iter().all(|(_, _, sheets)| {
        let mut sheets = sheets.values();
        let first = sheets.next();
        sheets.all(|info| {
            first.is_some_and(|first| first.dtype == info.dtype && first.dims == info.dims)
        })
    });
    let mut found = Vec::new();
    for (single, bank, sheets) in banks {
        if !alike {
            for (index, info) in sheets {
                let key = TensorKey {
                    role: single,
                    block,
                    index,
                };
                found.push(Found::whole(key, &info));
            }
            continue;
        }
        let offsets: Vec<u64> = sheets.values().map(|info| info.offset).collect();
        let Some((_, info)) = sheets.into_iter().next() else {
            continue;
        };
        let mut dims = info.dims.clone();
        dims.push(offsets.len() as u64);
        found.push(Found {
            key: key(bank, block, -1),
            name: info.name.replacen(".0.weight", "_exps.weight", 1),
            info,
            sheets: offsets,
            dims,
        });
    }
    Ok(found)
}

fn named(name: &str) -> Option<TensorKey> {
    let of_model = match name {
        "token_embd.weight" => Some(Role::TOKEN_EMBD),
        "output.weight" => Some(Role::OUTPUT),
        "output_norm.weight" => Some(Role::OUTPUT_NORM),
        "rope_freqs.weight" => Some(Role::ROPE_FREQS),
        "rope_factors_long.weight" => Some(Role::ROPE_FACTORS_LONG),
        "rope_factors_short.weight" => Some(Role::ROPE_FACTORS_SHORT),
        _ => None,
    };
    if let Some(role) = of_model {
        return Some(key(role, -1, -1));
    }
    let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let block = number(block)?;
    if let Some((_, role)) = OF_BLOCK.iter().find(|(known, _)| *known == rest) {
        return Some(key(*role, block, -1));
    }
    SINGLE.into_iter().find_map(|(prefix, role, _)| {
        let expert = rest.strip_prefix(prefix)?.strip_suffix(".weight")?;
        Some(key(role, block, number(expert)?))
    })
}

const fn key(role: Role, block: i32, index: i32) -> TensorKey {
    TensorKey { role, block, index }
}

/// A decimal number written the one way.
fn number(text: &str) -> Option<i32> {
    let value: u16 = text.parse().ok()?;
    (value.to_string() == text).then_some(value.into())
}

fn config(file: &Gguf, collected: &Collected) -> Result<Config, ConvertError> {
    let name = file
        .text("general.architecture")?
        .ok_or_else(|| ConvertError::key("general.architecture", "is missing"))?;
    let arch = Arch::from_name(name).filter(|arch| CONVERTED.contains(arch));
    let arch = arch.ok_or_else(|| {
        ConvertError::key("general.architecture", format!("{name:?} is not converted"))
    })?;
    let keys = Keys { file, name };
    let mut config = Config::new(arch);
    config.flags = match arch {
        Arch::LLAMA => Flags::default(),
        Arch::QWEN2 => Flags::ROPE_NEOX,
        Arch::OLMOE => Flags::ROPE_NEOX
            .with(Flags::QK_NORM)
            .with(Flags::QK_NORM_WHOLE),
        _ => Flags::ROPE_NEOX.with(Flags::QK_NORM),
    };
    config.n_layer = keys.positive("block_count")?;
    config.n_embd = keys.positive("embedding_length")?;
    config.n_head = keys.positive("attention.head_count")?;
    config.n_kv_head = match keys.count("attention.head_count_kv")? {
        0 => config.n_head,
        heads => heads,
    };
    config.head_dim = match keys.count("attention.key_length")? {
        0 => config.n_embd / config.n_head,
        length => length,
    };
    let value_length = keys.count("attention.value_length")?;
    if value_length != 0 && value_length != config.head_dim {
        config.head_dim_v = value_length;
        let reason = "differs from the key length, which these families do not";
        return Err(ConvertError::key(
            &keys.full("attention.value_length"),
            reason,
        ));
    }
    config.n_rot = match keys.count("rope.dimension_count")? {
        0 => config.head_dim,
        count => count,
    };
    config.n_ffn = keys.count("feed_forward_length")?;
    config.n_ctx = match keys.count("context_length")? {
        0 => 2048,
        length => length,
    };
    config.rms_eps = keys.float("attention.layer_norm_rms_epsilon", 1e-5)?;
    config.rope_base = keys.float("rope.freq_base", 10_000.0)?;
    config.attn_factor = keys.float("rope.scaling.attn_factor", 1.0)?;
    config.embd_scale = 1.0;
    experts(&keys, collected, &mut config)?;
    rope_scaling(&keys, &mut config)?;
    if keys.count("nextn_predict_layers")? != 0 {
        let reason = "has no form in version 27";
        return Err(ConvertError::key(
            &keys.full("nextn_predict_layers"),
            reason,
        ));
    }
    Ok(config)
}

fn experts(
    keys: &Keys<'_>,
    collected: &Collected,
    config: &mut Config,
) -> Result<(), ConvertError> {
    config.n_expert = keys.count("expert_count")?;
    if config.n_expert == 0 {
        return Ok(());
    }
    config.n_expert_used = keys.count("expert_used_count")?;
    if !(1..=config.n_expert).contains(&config.n_expert_used) {
        let reason = "is not 1 to expert_count";
        return Err(ConvertError::key(&keys.full("expert_used_count"), reason));
    }
    let first_bank = || {
        let roles = [Role::EXP_GATE_BANK, Role::EXP_GATE];
        roles.into_iter().find_map(|role| collected.rows(role))
    };
    config.n_ffn_exp = match keys.count("expert_feed_forward_length")? {
        0 => first_bank().unwrap_or(config.n_ffn / config.n_expert_used),
        length => length,
    };
    config.n_ffn_sh_exp = match keys.count("expert_shared_feed_forward_length")? {
        0 => keys.count("expert_shared_count")? * config.n_ffn_exp,
        length => length,
    };
    config.expert_scale = keys.float("expert_weights_scale", 0.0)?;
    if keys.file.bool(&keys.full("expert_weights_norm"))? == Some(false) {
        config.flags = config.flags.with(Flags::KEEP_ROUTER_WEIGHTS);
    }
    if keys.count("expert_gating_func")? == 2 {
        config.flags = config.flags.with(Flags::SIGMOID_ROUTER);
    }
    config.n_expert_group = keys.count("expert_group_count")?;
    config.n_expert_group_used = keys.count("expert_group_used_count")?;
    config.n_dense_lead = keys.count("leading_dense_block_count")?;
    Ok(())
}

fn rope_scaling(keys: &Keys<'_>, config: &mut Config) -> Result<(), ConvertError> {
    let kind_key = keys.full("rope.scaling.type");
    let factor = keys.float("rope.scaling.factor", 1.0)?;
    match keys.file.text(&kind_key)? {
        None | Some("none") => {}
        Some("linear") => config.rope_linear = factor,
        Some("yarn") if factor > 1.0 => {
            config.yarn_factor = factor;
            config.yarn_orig_ctx = match keys.count("rope.scaling.original_context_length")? {
                0 => config.n_ctx,
                length => length,
            };
            config.yarn_beta_fast = keys.float("rope.scaling.yarn_beta_fast", 32.0)?;
            config.yarn_beta_slow = keys.float("rope.scaling.yarn_beta_slow", 1.0)?;
            config.yarn_log_mul = keys.float("rope.scaling.yarn_log_multiplier", 0.0)?;
            let multiplier = match config.yarn_log_mul {
                0.0 => 0.1,
                multiplier => multiplier.into(),
            };
            let computed = (multiplier * f64::from(factor).ln() + 1.0) as f32;
            config.attn_factor *= keys.float("rope.scaling.yarn_attn_factor", computed)?;
        }
        Some("yarn") => {}
        Some(other) => {
            let reason = format!("{other:?} has no form in a container");
            return Err(ConvertError::key(&kind_key, reason));
        }
    }
    Ok(())
}

/// The keys of an architecture.
struct Keys<'a> {
    file: &'a Gguf,
    name: &'a str,
}

impl Keys<'_> {
    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    /// A count, or a list of one repeated count; 0 when absent.
    fn count(&self, key: &str) -> Result<u32, ConvertError> {
        let full = self.full(key);
        let value = match self.file.value(&full) {
            None => Some(0),
            Some(Value::Array(Array::Ints(counts))) => {
                let first = counts.first().copied();
                first.filter(|first| counts.iter().all(|count| count == first))
            }
            Some(value) => value.as_int(),
        };
        value
            .and_then(|value| u32::try_from(value).ok())
            .ok_or_else(|| ConvertError::key(&full, "is not one count"))
    }

    fn positive(&self, key: &str) -> Result<u32, ConvertError> {
        match self.count(key)? {
            0 => Err(ConvertError::key(&self.full(key), "is missing or 0")),
            value => Ok(value),
        }
    }

    fn float(&self, key: &str, otherwise: f32) -> Result<f32, ConvertError> {
        Ok(self
            .file
            .float(&self.full(key))?
            .map_or(otherwise, |value| value as f32))
    }
}

const CONVERTED: [Arch; 5] = [
    Arch::LLAMA,
    Arch::QWEN2,
    Arch::QWEN3,
    Arch::QWEN3_MOE,
    Arch::OLMOE,
];

const OF_BLOCK: [(&str, Role); 19] = [
    ("attn_norm.weight", Role::ATTN_NORM),
    ("attn_q.weight", Role::ATTN_Q),
    ("attn_k.weight", Role::ATTN_K),
    ("attn_v.weight", Role::ATTN_V),
    ("attn_output.weight", Role::ATTN_OUT),
    ("attn_q.bias", Role::ATTN_Q_BIAS),
    ("attn_k.bias", Role::ATTN_K_BIAS),
    ("attn_v.bias", Role::ATTN_V_BIAS),
    ("attn_output.bias", Role::ATTN_OUT_BIAS),
    ("attn_q_norm.weight", Role::ATTN_Q_NORM),
    ("attn_k_norm.weight", Role::ATTN_K_NORM),
    ("ffn_norm.weight", Role::FFN_NORM),
    ("ffn_gate.weight", Role::FFN_GATE),
    ("ffn_up.weight", Role::FFN_UP),
    ("ffn_down.weight", Role::FFN_DOWN),
    ("ffn_gate_inp.weight", Role::ROUTER),
    ("ffn_gate_exps.weight", Role::EXP_GATE_BANK),
    ("ffn_up_exps.weight", Role::EXP_UP_BANK),
    ("ffn_down_exps.weight", Role::EXP_DOWN_BANK),
];

/// Prefix of a single expert's name, its role, and the bank's.
const SINGLE: [(&str, Role, Role); 3] = [
    ("ffn_gate.", Role::EXP_GATE, Role::EXP_GATE_BANK),
    ("ffn_up.", Role::EXP_UP, Role::EXP_UP_BANK),
    ("ffn_down.", Role::EXP_DOWN, Role::EXP_DOWN_BANK),
];
