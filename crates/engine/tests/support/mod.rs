//! Containers made from the fixtures' checkpoints, and what they should compute.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jlm::{
    Arch, Config, Container, DType, Draft, Flags, Region, Role, TensorEntry, TensorKey, Version,
    WriterFingerprint,
};
use serde_json::Value;

pub fn fixtures() -> Option<PathBuf> {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/fixtures"));
    if path.is_dir() {
        return Some(path.to_owned());
    }
    eprintln!("skipped: {} is absent", path.display());
    None
}

pub fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Tensors of a safetensors file: type, shape and bytes by name.
pub type Tensors = BTreeMap<String, (String, Vec<u64>, Vec<u8>)>;

pub fn safetensors(path: impl AsRef<Path>) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let mut tensors = Tensors::new();
    for (name, info) in header.as_object().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        let ints = |key: &str| -> Vec<u64> {
            let list = info[key].as_array().unwrap();
            list.iter().map(|n| n.as_u64().unwrap()).collect()
        };
        let span = ints("data_offsets");
        let bytes = data[span[0] as usize..span[1] as usize].to_vec();
        let dtype = info["dtype"].as_str().unwrap().to_owned();
        tensors.insert(name.clone(), (dtype, ints("shape"), bytes));
    }
    tensors
}

/// A plain container in memory.
pub struct Made {
    pub container: Container,
    pub bytes: Vec<u8>,
}

/// Converts a checkpoint folder (spec: container, C), keeping its types.
pub fn convert(folder: &Path) -> Made {
    let mut source = Tensors::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "safetensors") {
            source.extend(safetensors(path));
        }
    }
    let hf = json(folder.join("config.json"));
    let (config, rope_freqs) = config(&hf, source.contains_key("lm_head.weight"));
    let mut planned: Vec<(TensorEntry, Vec<u8>)> = Vec::new();
    let mut banks: BTreeMap<(i32, Role), Vec<(u64, String)>> = BTreeMap::new();
    for (name, (dtype, shape, bytes)) in &source {
        let (role, block, expert) = role(name);
        if let Some(expert) = expert {
            banks.entry((block, role)).or_default().push((expert, name.clone()));
            continue;
        }
        let mut bytes = bytes.clone();
        if config.arch == Arch::LLAMA {
            let heads = match role {
                Role::ATTN_Q | Role::ATTN_Q_BIAS => config.n_head,
                Role::ATTN_K | Role::ATTN_K_BIAS => config.n_kv_head,
                _ => 0,
            };
            bytes = pair_rows(bytes, heads as usize, config.head_dim as usize);
        }
        planned.push((entry(role, block, name, dtype, shape), bytes));
    }
    if let Some(divisors) = rope_freqs {
        let shape = [divisors.len() as u64];
        let bytes = divisors.iter().flat_map(|d| d.to_le_bytes()).collect();
        planned.push((entry(Role::ROPE_FREQS, -1, "rope_freqs.weight", "F32", &shape), bytes));
    }
    for ((block, role), mut experts) in banks {
        experts.sort();
        let (dtype, shape, _) = &source[&experts[0].1];
        let shape = [&[experts.len() as u64][..], shape].concat();
        let bytes = experts.iter().flat_map(|(_, name)| source[name].2.clone()).collect();
        planned.push((entry(role, block, &experts[0].1, dtype, &shape), bytes));
    }
    let (tensors, payloads): (Vec<_>, Vec<_>) = planned.into_iter().unzip();
    let container = Draft {
        version: Version::V27,
        config,
        vision_len: 0,
        vocab_len: 0,
        tensors,
        fingerprint: WriterFingerprint::default(),
    }
    .lay_out()
    .unwrap();

    let end = Region::ALL.map(|region| container.region(region).end().unwrap());
    let mut bytes = vec![0; end.into_iter().max().unwrap() as usize];
    let meta = container.encode_meta(&[], &[]).unwrap();
    bytes[..meta.len()].copy_from_slice(&meta);
    for (entry, payload) in container.tensors().iter().zip(&payloads) {
        let sheets = if entry.is_expert_paged() { entry.sheets() } else { 1 };
        let size = payload.len() / sheets as usize;
        for (sheet, part) in payload.chunks(size).enumerate() {
            let place = container.sheet(entry, sheet as u64).unwrap();
            bytes[place.qs.offset as usize..][..size].copy_from_slice(part);
        }
    }
    Made { container, bytes }
}

fn entry(role: Role, block: i32, name: &str, dtype: &str, shape: &[u64]) -> TensorEntry {
    TensorEntry {
        key: TensorKey {
            role,
            block,
            index: -1,
        },
        dtype: match dtype {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::Bf16,
            other => panic!("{other}"),
        },
        dims: shape.iter().rev().copied().collect(),
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: name.to_owned(),
    }
}

fn role(name: &str) -> (Role, i32, Option<u64>) {
    let dense = match name {
        "model.embed_tokens.weight" => Some(Role::TOKEN_EMBD),
        "lm_head.weight" => Some(Role::OUTPUT),
        "model.norm.weight" => Some(Role::OUTPUT_NORM),
        _ => None,
    };
    if let Some(role) = dense {
        return (role, -1, None);
    }
    let rest = name.strip_prefix("model.layers.").unwrap();
    let (block, part) = rest.split_once('.').unwrap();
    let block = block.parse().unwrap();
    if let Some(rest) = part.strip_prefix("mlp.experts.") {
        let (expert, part) = rest.split_once('.').unwrap();
        let role = match part {
            "gate_proj.weight" => Role::EXP_GATE_BANK,
            "up_proj.weight" => Role::EXP_UP_BANK,
            "down_proj.weight" => Role::EXP_DOWN_BANK,
            other => panic!("{other}"),
        };
        return (role, block, Some(expert.parse().unwrap()));
    }
    let role = match part {
        "input_layernorm.weight" => Role::ATTN_NORM,
        "self_attn.q_proj.weight" => Role::ATTN_Q,
        "self_attn.k_proj.weight" => Role::ATTN_K,
        "self_attn.v_proj.weight" => Role::ATTN_V,
        "self_attn.o_proj.weight" => Role::ATTN_OUT,
        "self_attn.q_proj.bias" => Role::ATTN_Q_BIAS,
        "self_attn.k_proj.bias" => Role::ATTN_K_BIAS,
        "self_attn.v_proj.bias" => Role::ATTN_V_BIAS,
        "self_attn.q_norm.weight" => Role::ATTN_Q_NORM,
        "self_attn.k_norm.weight" => Role::ATTN_K_NORM,
        "post_attention_layernorm.weight" => Role::FFN_NORM,
        "mlp.gate_proj.weight" => Role::FFN_GATE,
        "mlp.up_proj.weight" => Role::FFN_UP,
        "mlp.down_proj.weight" => Role::FFN_DOWN,
        "mlp.gate.weight" => Role::ROUTER,
        other => panic!("{other}"),
    };
    (role, block, None)
}

/// Rows of each head from halves to pairs (C.3); unchanged for 0 heads.
fn pair_rows(bytes: Vec<u8>, heads: usize, dim: usize) -> Vec<u8> {
    if heads == 0 {
        return bytes;
    }
    let row = bytes.len() / (heads * dim);
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks(row * dim) {
        for i in 0..dim {
            let source = i % 2 * dim / 2 + i / 2;
            out.extend_from_slice(&head[source * row..][..row]);
        }
    }
    out
}

fn config(hf: &Value, has_head: bool) -> (Config, Option<Vec<f32>>) {
    let int = |key: &str| hf[key].as_u64().unwrap_or(0) as u32;
    let arch = match hf["architectures"][0].as_str().unwrap() {
        "LlamaForCausalLM" => Arch::LLAMA,
        "Qwen2ForCausalLM" => Arch::QWEN2,
        "Qwen3ForCausalLM" => Arch::QWEN3,
        "Qwen3MoeForCausalLM" => Arch::QWEN3_MOE,
        other => panic!("{other}"),
    };
    let mut config = Config::new(arch);
    config.n_layer = int("num_hidden_layers");
    config.n_embd = int("hidden_size");
    config.n_head = int("num_attention_heads");
    config.n_kv_head = int("num_key_value_heads");
    config.head_dim = match int("head_dim") {
        0 => config.n_embd / config.n_head,
        dim => dim,
    };
    config.n_rot = config.head_dim;
    config.n_ffn = int("intermediate_size");
    config.n_vocab = int("vocab_size");
    config.n_ctx = int("max_position_embeddings");
    config.n_expert = int("num_experts");
    config.n_expert_used = int("num_experts_per_tok");
    config.n_ffn_exp = int("moe_intermediate_size");
    config.rms_eps = hf["rms_norm_eps"].as_f64().unwrap() as f32;
    let theta = hf["rope_theta"].as_f64();
    let theta = theta.or(hf["rope_parameters"]["rope_theta"].as_f64()).unwrap();
    config.rope_base = theta as f32;
    config.embd_scale = 1.0;
    config.attn_factor = 1.0;
    if arch != Arch::LLAMA {
        config.flags = config.flags.with(Flags::ROPE_NEOX);
    }
    if arch == Arch::QWEN3 || arch == Arch::QWEN3_MOE {
        config.flags = config.flags.with(Flags::QK_NORM);
    }
    if arch == Arch::QWEN3_MOE && hf["norm_topk_prob"] != true {
        config.flags = config.flags.with(Flags::KEEP_ROUTER_WEIGHTS);
    }
    if !has_head {
        config.flags = config.flags.with(Flags::TIED);
    }
    let scaling = &hf["rope_scaling"];
    let divisors = (scaling["rope_type"] == "llama3").then(|| {
        let number = |key: &str| scaling[key].as_f64().unwrap();
        let (factor, low, high) =
            (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
        let original = number("original_max_position_embeddings");
        (0..config.n_rot / 2)
            .map(|i| {
                let power = theta.powf(f64::from(2 * i) / f64::from(config.n_rot));
                let wavelength = 2.0 * std::f64::consts::PI * power;
                let smooth = (original / wavelength - low) / (high - low);
                let divisor = if wavelength < original / high {
                    1.0
                } else if wavelength > original / low {
                    factor
                } else {
                    1.0 / ((1.0 - smooth) / factor + smooth)
                };
                divisor as f32
            })
            .collect()
    });
    (config, divisors)
}
