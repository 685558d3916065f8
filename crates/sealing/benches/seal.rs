//! Sealing beside what bounds it, in one run: `cargo bench -p sealing`.
//!
//! perm gathers against memcpy, orth against the matrix product alone, and whole seals against
//! SHA-256 and a plain file write. Each figure is the best of several runs; sizes are bytes of
//! tensors. Name `gathers`, `products` or `whole` after `--` to run only these. `SEAL_BENCH_MIB`
//! sets the size of the generated checkpoint (default 512).

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark"
)]

use std::fs;
use std::hint::black_box;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use faer::linalg::matmul::matmul;
use faer::{Accum, Mat, Par};
use model_key::ModelKey;
use sealing::{Monitor, SealOptions, seal, unlock};
use secret::Secret;
use serde_json::json;
use sha2::{Digest, Sha256};
use weight_lock::Version;
use weight_transform::{Basis, Element, Recipe, Tensor, Transform, Vocabulary, language_model};

type Part = (&'static str, fn(&ModelKey));

fn main() {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)));
    let threads = rayon::current_num_threads();
    println!("{threads} threads");
    let parts: [Part; 3] = [
        ("gathers", gathers),
        ("products", products),
        ("whole", whole),
    ];
    let named: Vec<String> = std::env::args().skip(1).collect();
    let all = !parts
        .iter()
        .any(|(name, _)| named.iter().any(|n| n == name));
    for (name, part) in parts {
        if all || named.iter().any(|n| n == name) {
            println!();
            part(&key);
        }
    }
}

/// Seconds of the best of `runs`.
fn best(runs: usize, mut work: impl FnMut()) -> f64 {
    (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min)
}

fn rate(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e6
}

const HIDDEN: usize = 4096;
const FFN: usize = 12288;

fn config(hidden: usize, ffn: usize, vocab: usize, layers: usize) -> serde_json::Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_attention_heads": hidden / 128,
        "num_key_value_heads": (hidden / 512).max(1),
        "head_dim": 128,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "tie_word_embeddings": false,
    })
}

fn recipes(transform: Transform, hidden: usize, ffn: usize) -> Vec<Recipe> {
    let vocabulary = Vocabulary {
        start: 0,
        regular: 16000,
    };
    let plan = language_model(&config(hidden, ffn, 16384, 1), transform, vocabulary).unwrap();
    plan.recipes(&tensors(hidden, ffn, 16384, 1)).unwrap()
}

fn tensors(hidden: usize, ffn: usize, vocab: usize, layers: usize) -> Vec<Tensor> {
    let heads = hidden / 128 * 128;
    let kv = (hidden / 512).max(1) * 128;
    let mut out = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("lm_head.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
    ];
    for layer in 0..layers {
        let parts = [
            ("input_layernorm", vec![hidden]),
            ("post_attention_layernorm", vec![hidden]),
            ("self_attn.q_norm", vec![128]),
            ("self_attn.k_norm", vec![128]),
            ("self_attn.q_proj", vec![heads, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, heads]),
            ("mlp.gate_proj", vec![ffn, hidden]),
            ("mlp.up_proj", vec![ffn, hidden]),
            ("mlp.down_proj", vec![hidden, ffn]),
        ];
        for (part, shape) in parts {
            out.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    out.into_iter()
        .map(|(name, shape)| Tensor {
            name,
            element: Element::Bf16,
            shape: shape.into_iter().map(|d| d as u64).collect(),
        })
        .collect()
}

/// Finite bfloat16 values of ordinary size.
fn weights(bytes: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    (0..bytes / 2)
        .flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bits = (state >> 16) as u16;
            let exponent = 0x3C00 + ((bits >> 9) & 3) * 0x80;
            ((bits & 0x8000) | exponent | (bits & 0x7F)).to_le_bytes()
        })
        .collect()
}

fn gathers(key: &ModelKey) {
    println!("perm, bf16, hidden {HIDDEN}, MLP {FFN}");
    let recipes = recipes(Transform::Perm, HIDDEN, FFN);
    let basis = Basis::new(key);
    for name in [
        "embed_tokens",
        "q_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ] {
        let recipe = recipes
            .iter()
            .find(|r| r.tensor().name.contains(name))
            .unwrap();
        let bytes = recipe.tensor().shape.iter().product::<u64>() as usize * 2;
        let source = weights(bytes, 1);
        let mut out = vec![0; bytes];
        let prepared = basis.prepare(recipe).unwrap();
        let single = rayon::ThreadPoolBuilder::new()
            .num_threads(1)
            .build()
            .unwrap();
        let copy = best(5, || out.copy_from_slice(black_box(&source)));
        let one = best(5, || {
            single.install(|| prepared.apply(&source, None, &mut out).unwrap())
        });
        let all = best(5, || prepared.apply(&source, None, &mut out).unwrap());
        println!(
            "  {name:<13} {:>6.0} MB/s a core, {:>6.0} on all; memcpy {:>6.0}: ratio {:.2}",
            rate(bytes, one),
            rate(bytes, all),
            rate(bytes, copy),
            copy / one
        );
    }
}

fn products(key: &ModelKey) {
    let (hidden, ffn) = (2048, 4096);
    println!("orth, bf16, hidden {hidden}, MLP {ffn}");
    let recipes = recipes(Transform::Orth, hidden, ffn);
    let basis = Basis::new(key);
    let start = Instant::now();
    basis.prepare(&recipes[0]).unwrap();
    println!(
        "  residual matrix (Gaussian and QR) {:.2} s",
        start.elapsed().as_secs_f64()
    );
    let gain = weights(hidden * 2, 9);
    for name in ["q_proj", "up_proj", "down_proj", "o_proj"] {
        let recipe = recipes
            .iter()
            .find(|r| r.tensor().name.contains(name))
            .unwrap();
        let [rows, columns] = recipe.tensor().shape[..] else {
            continue;
        };
        let (rows, columns) = (rows as usize, columns as usize);
        let source = weights(rows * columns * 2, 1);
        let mut out = vec![0; source.len()];
        let prepared = basis.prepare(recipe).unwrap();
        let gain = recipe.gain().map(|_| (Element::Bf16, gain.as_slice()));
        let ours = best(3, || prepared.apply(&source, gain, &mut out).unwrap());
        let other = rows * columns / hidden;
        let left = Mat::<f64>::from_fn(other, hidden, |i, j| (i * 7 + j) as f64 * 1e-3);
        let right = Mat::<f64>::from_fn(hidden, hidden, |i, j| (i + j * 3) as f64 * 1e-3);
        let mut product = Mat::<f64>::zeros(other, hidden);
        let raw = best(3, || {
            matmul(
                product.as_mut(),
                Accum::Replace,
                left.as_ref(),
                right.as_ref(),
                1.0,
                Par::rayon(0),
            );
        });
        let flops = 2.0 * other as f64 * hidden as f64 * hidden as f64;
        println!(
            "  {name:<10} {:>6.1} GFLOP/s; matrix product alone {:>6.1}: ratio {:.2} ({:.0} MB/s)",
            flops / ours / 1e9,
            flops / raw / 1e9,
            raw / ours,
            rate(source.len(), ours)
        );
    }
}

fn whole(key: &ModelKey) {
    let mib: usize = std::env::var("SEAL_BENCH_MIB")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(512);
    let (hidden, ffn, vocab) = (2048, 8192, 16384);
    let layer: usize = tensors(hidden, ffn, vocab, 1)
        .iter()
        .skip(3)
        .map(|t| t.shape.iter().product::<u64>() as usize * 2)
        .sum();
    let layers = ((mib << 20).saturating_sub(2 * vocab * hidden * 2) / layer).max(1);
    let work = tempfile::tempdir().unwrap();
    let source = work.path().join("source");
    let bytes = generate(&source, hidden, ffn, vocab, layers);
    println!(
        "whole checkpoint, {} MB, {layers} layers",
        bytes / 1_000_000
    );

    let data = weights(256 << 20, 3);
    let hash = best(2, || {
        black_box(Sha256::digest(&data));
    });
    let hash = rate(data.len(), hash);
    let file = work.path().join("plain");
    let disk = best(2, || {
        let mut file = fs::File::create(&file).unwrap();
        file.write_all(&data).unwrap();
        file.sync_all().unwrap();
    });
    let disk = rate(data.len(), disk);
    fs::remove_file(&file).unwrap();
    println!("  SHA-256 {hash:.0} MB/s a core, synced write {disk:.0} MB/s");

    let target = work.path().join("sealed");
    for (transform, lock) in [
        (Transform::Perm, None),
        (Transform::Perm, Some(Version::V2)),
        (Transform::Perm, Some(Version::V1)),
        (Transform::Orth, Some(Version::V2)),
    ] {
        let options = SealOptions {
            transform,
            lock,
            client: false,
            salt: [1; 16],
        };
        let runs = if transform == Transform::Orth { 1 } else { 2 };
        let seconds = best(runs, || {
            let _ = fs::remove_dir_all(&target);
            seal(&source, key, options, &target, &Monitor::none()).unwrap();
        });
        let name = lock.map_or("none".to_owned(), |version| version.to_string());
        println!(
            "  seal {:<4} lock {name:<4} {:>6.0} MB/s; of the slower of SHA-256 and the disk: {:.2}",
            transform.name(),
            rate(bytes, seconds),
            rate(bytes, seconds) / hash.min(disk)
        );
        if lock.is_some() {
            let copy = work.path().join("copy");
            let seconds = best(2, || {
                let _ = fs::remove_dir_all(&copy);
                unlock(&target, key, &copy, &Monitor::none()).unwrap();
            });
            println!("  unlock {name:<12} {:>6.0} MB/s", rate(bytes, seconds));
        }
    }
}

fn generate(source: &Path, hidden: usize, ffn: usize, vocab: usize, layers: usize) -> usize {
    fs::create_dir(source).unwrap();
    let config = config(hidden, ffn, vocab, layers).to_string();
    fs::write(source.join("config.json"), config).unwrap();
    let tokens = (0..vocab - 384).map(|i| (format!("t{i}"), json!(i)));
    let vocabulary: serde_json::Map<_, _> = tokens.collect();
    let tokenizer = json!({"added_tokens": [], "model": {"vocab": vocabulary}});
    fs::write(source.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let tensors = tensors(hidden, ffn, vocab, layers);
    let longest = tensors
        .iter()
        .map(|t| t.shape.iter().product::<u64>())
        .max();
    let pattern = weights(2 * longest.unwrap() as usize, 5);
    let mut bytes = 0;
    let mut index = serde_json::Map::new();
    let of = tensors.len().div_ceil(SHARD_TENSORS);
    for (number, tensors) in tensors.chunks(SHARD_TENSORS).enumerate() {
        let file = format!("model-{:05}-of-{of:05}.safetensors", number + 1);
        let specs = tensors.iter().map(|tensor| checkpoint::TensorSpec {
            name: tensor.name.clone(),
            dtype: checkpoint::Dtype::BF16,
            shape: tensor.shape.clone(),
        });
        let plan = checkpoint::PlannedShard::new(&file, specs.collect()).unwrap();
        let mut writer = checkpoint::ShardWriter::create(source, &plan, &[]).unwrap();
        for info in plan.tensors() {
            let part = &pattern[..info.bytes as usize];
            writer.write(&info.name, part).unwrap();
            index.insert(info.name.clone(), json!(file));
        }
        writer.finish().unwrap();
        bytes += plan.data_length();
    }
    let index = json!({"metadata": {"total_size": bytes}, "weight_map": index});
    fs::write(
        source.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    bytes as usize
}

/// Tensors in a shard, so that a checkpoint has some.
const SHARD_TENSORS: usize = 12;
