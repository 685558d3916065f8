//! The memory that sealing and unlocking take is bounded by the largest tensor, whatever the model's
//! size: the commands run as processes over a generated checkpoint, and their peaks are read.
//! `CHANCERY_MEMORY_TEST_MIB` sets its size (default 512).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use checkpoint::{Dtype, PlannedShard, TensorSpec};
use serde_json::json;

const MIB: u64 = 1 << 20;
const HIDDEN: u64 = 1024;
const FFN: u64 = 4096;
const VOCAB: u64 = 4096;
const HEAD: u64 = 64;
const KV_HEADS: u64 = 4;

#[test]
fn the_peak_of_a_seal_and_an_unlock_is_bounded_by_the_largest_tensor() {
    let size = std::env::var("CHANCERY_MEMORY_TEST_MIB")
        .ok()
        .map_or(512, |mib| mib.parse().unwrap())
        * MIB;
    let scratch = tempfile::tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let (source, key, sealed, open) = (
        path("source"),
        path("model.key"),
        path("sealed"),
        path("open"),
    );
    let largest = generate(&source, size);
    let bound = 4 * largest + 256 * MIB;
    assert!(size > bound, "a checkpoint held whole would go unnoticed");

    measure(&["keys", "generate", "-o", key.to_str().unwrap()]);
    let seal = measure(&[
        "checkpoint",
        "seal",
        source.to_str().unwrap(),
        "-o",
        sealed.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
        "--transform",
        "perm",
        "--lock",
        "v2",
    ]);
    fs::remove_dir_all(&source).unwrap();
    let unlock = measure(&[
        "checkpoint",
        "unlock",
        sealed.to_str().unwrap(),
        "-o",
        open.to_str().unwrap(),
        "--key",
        key.to_str().unwrap(),
    ]);
    for (what, peak) in [("seal", seal), ("unlock", unlock)] {
        eprintln!(
            "{what} of {} MiB, largest tensor {} MiB: peak {} MiB of {} allowed",
            size / MIB,
            largest / MIB,
            peak / MIB,
            bound / MIB
        );
        assert!(peak > largest, "{what}: no peak was read");
        assert!(peak < bound, "{what}: {peak} bytes, {bound} allowed");
    }
}

/// Runs the command, which must succeed, and gives its peak resident size in bytes. The kernel keeps
/// the peak, so that only what is above it in the last instant can be missed.
fn measure(arguments: &[&str]) -> u64 {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("chancery"))
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let status_file = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let status = fs::read_to_string(&status_file).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(line) = line {
            let kib = line.trim().strip_suffix(" kB").unwrap();
            peak = peak.max(kib.trim().parse::<u64>().unwrap() * 1024);
        }
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{arguments:?}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A Qwen3 checkpoint of about `size` bytes of bfloat16 zeros in a sparse file; the size of its
/// largest tensor.
fn generate(folder: &Path, size: u64) -> u64 {
    let layer = layer_of(0).iter().map(bytes).sum::<u64>();
    let ends = [
        spec("model.embed_tokens.weight", &[VOCAB, HIDDEN]),
        spec("lm_head.weight", &[VOCAB, HIDDEN]),
        spec("model.norm.weight", &[HIDDEN]),
    ];
    let layers = (size - ends.iter().map(bytes).sum::<u64>()).div_ceil(layer);
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HIDDEN / HEAD,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "num_hidden_layers": layers,
        "vocab_size": VOCAB,
        "tie_word_embeddings": false,
    });
    let words = (0..VOCAB).map(|id| (format!("t{id}"), json!(id)));
    let words: serde_json::Map<_, _> = words.collect();
    let tokenizer = json!({"added_tokens": [], "model": {"vocab": words}});
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();

    let tensors: Vec<_> = ends
        .into_iter()
        .chain((0..layers).flat_map(layer_of))
        .collect();
    let largest = tensors.iter().map(bytes).max().unwrap();
    let plan = PlannedShard::new("model.safetensors", tensors).unwrap();
    let header = plan.header(&[("format".to_owned(), "pt".to_owned())], 0);
    let mut file = File::create(folder.join(plan.file())).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(header.len() as u64 + plan.data_length())
        .unwrap();
    largest
}

fn layer_of(layer: u64) -> Vec<TensorSpec> {
    let kv = KV_HEADS * HEAD;
    let parts: [(&str, &[u64]); 11] = [
        ("input_layernorm", &[HIDDEN]),
        ("post_attention_layernorm", &[HIDDEN]),
        ("self_attn.q_norm", &[HEAD]),
        ("self_attn.k_norm", &[HEAD]),
        ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
        ("self_attn.k_proj", &[kv, HIDDEN]),
        ("self_attn.v_proj", &[kv, HIDDEN]),
        ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
        ("mlp.gate_proj", &[FFN, HIDDEN]),
        ("mlp.up_proj", &[FFN, HIDDEN]),
        ("mlp.down_proj", &[HIDDEN, FFN]),
    ];
    let parts = parts.into_iter();
    parts
        .map(|(part, shape)| spec(&format!("model.layers.{layer}.{part}.weight"), shape))
        .collect()
}

fn spec(name: &str, shape: &[u64]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::BF16,
        shape: shape.to_vec(),
    }
}

fn bytes(tensor: &TensorSpec) -> u64 {
    tensor.shape.iter().product::<u64>() * 2
}
