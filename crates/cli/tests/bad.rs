//! What must be refused, as a script sees it: exit code 1, one line that names what is wrong, little
//! memory, no waiting, and nothing left behind.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use assert_cmd::Command;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

use support::{fixtures, text};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3");

/// Each case of the fixtures and what its refusal must name: the file, the tensor or the field.
const CASES: &[(&str, &[&str])] = &[
    ("blob/truncated", &["truncated.kllm", "chunk 2 of 3"]),
    (
        "blob/last-chunk-dropped",
        &["last-chunk-dropped.kllm", "667 bytes"],
    ),
    ("blob/cut-in-header", &["cut-in-header.kllm", "header"]),
    (
        "blob/swapped-chunks",
        &["swapped-chunks.kllm", "chunk 0 of 3"],
    ),
    (
        "blob/repeated-chunk",
        &["repeated-chunk.kllm", "chunk 1 of 3"],
    ),
    (
        "blob/flipped-header-byte",
        &["flipped-header-byte.kllm", "does not authenticate"],
    ),
    ("blob/header-respaced", &["header-respaced.kllm", "header"]),
    (
        "blob/fewer-chunks",
        &["fewer-chunks.kllm", "does not authenticate"],
    ),
    (
        "blob/flipped-ciphertext",
        &["flipped-ciphertext.kllm", "chunk 0 of 3"],
    ),
    ("blob/flipped-tag", &["flipped-tag.kllm", "chunk 2 of 3"]),
    (
        "blob/trailing-data",
        &["trailing-data.kllm", "chunk 2 of 3"],
    ),
    ("blob/wrong-magic", &["wrong-magic.kllm", "magic"]),
    ("blob/empty", &["empty.kllm", "magic"]),
    ("blob/magic-only", &["magic-only.kllm", "header length"]),
    (
        "blob/header-length-huge",
        &["header-length-huge.kllm", "header", "4294967295"],
    ),
    ("blob/zero-chunks", &["zero-chunks.kllm", "chunks"]),
    (
        "blob/zero-chunks-with-data",
        &["zero-chunks-with-data.kllm", "chunks"],
    ),
    ("blob/negative-chunks", &["negative-chunks.kllm", "chunks"]),
    (
        "blob/chunk-size-huge",
        &["chunk-size-huge.kllm", "chunk at offset 14"],
    ),
    ("blob/header-not-json", &["header-not-json.kllm", "header"]),
    (
        "blob/header-not-utf8",
        &["header-not-utf8.kllm", "header", "UTF-8"],
    ),
    (
        "blob/header-without-salt",
        &["header-without-salt.kllm", "salt"],
    ),
    (
        "blob/wrong-key",
        &["valid.kllm", "02e8-f278-c518-dfcd", "d546-0025-db06-4519"],
    ),
    ("blob/file-outside", &["file-outside.kllm", "../evil.json"]),
    ("blob/not-tensors", &["not-tensors.kllm", "payload header"]),
    (
        "safetensors/header-past-end",
        &["header-past-end.safetensors", "header length"],
    ),
    (
        "safetensors/header-length-max",
        &["header-length-max.safetensors", "header length"],
    ),
    ("safetensors/short", &["short.safetensors", "header length"]),
    (
        "safetensors/overlap",
        &["overlap.safetensors", "\"b\" overlaps"],
    ),
    (
        "safetensors/hole",
        &["hole.safetensors", "before tensor \"b\""],
    ),
    (
        "safetensors/duplicate",
        &["duplicate.safetensors", "\"a\" appears twice"],
    ),
    (
        "safetensors/unknown-dtype",
        &["unknown-dtype.safetensors", "\"a\"", "F12"],
    ),
    ("safetensors/not-utf8", &["not-utf8.safetensors", "UTF-8"]),
    ("safetensors/past-end", &["past-end.safetensors", "\"a\""]),
    (
        "safetensors/shape-mismatch",
        &["shape-mismatch.safetensors", "\"a\"", "[3]"],
    ),
    (
        "checkpoint/index-missing-shard",
        &["model-00002-of-00002.safetensors"],
    ),
    (
        "checkpoint/tensor-not-in-index",
        &["model-00001-of-00002.safetensors", "model.norm.weight"],
    ),
    (
        "checkpoint/index-traversal",
        &["model.safetensors.index.json", "../x.safetensors"],
    ),
    (
        "checkpoint/tokenizer-gap",
        &["tokenizer.json", "model.vocab"],
    ),
    (
        "checkpoint/tokenizer-duplicate-id",
        &["tokenizer.json", "id 3"],
    ),
    (
        "checkpoint/added-token-inside",
        &["tokenizer.json", "added token 7"],
    ),
    ("checkpoint/mlp-bias", &["config.json", "mlp_bias"]),
    (
        "checkpoint/partial-rotary",
        &["config.json", "partial_rotary_factor"],
    ),
    (
        "checkpoint/gptq",
        &["config.json", "quantization_config", "gptq"],
    ),
    (
        "checkpoint/llama",
        &["model.layers.0.self_attn.k_norm.weight"],
    ),
    (
        "checkpoint/other-architecture",
        &["config.json", "MambaForCausalLM"],
    ),
    (
        "checkpoint/fp8-orth",
        &["config.json", "quantization_config", "FP8", "perm"],
    ),
    (
        "checkpoint/fp8-without-scale",
        &["model.layers.0.mlp.up_proj.weight", "scale"],
    ),
    (
        "checkpoint/unknown-tensor",
        &["model.layers.0.self_attn.sinks"],
    ),
    (
        "checkpoint/missing-gain",
        &["model.layers.0.input_layernorm.weight"],
    ),
    (
        "checkpoint/overflow",
        &["model.layers.0.mlp.up_proj.weight", "element 8"],
    ),
    (
        "checkpoint/nan-weight",
        &["model.layers.0.mlp.gate_proj.weight", "element 0"],
    ),
    (
        "checkpoint/already-sealed",
        &["already sealed", "config.json"],
    ),
    (
        "checkpoint/no-weights",
        &["no-weights", "no safetensors files"],
    ),
    ("sealed/lock-v9", &["config.json", "v9"]),
    (
        "sealed/outside-domain",
        &["model-00001-of-00001.safetensors", "lm_head.weight"],
    ),
    (
        "sealed/outside-domain-v1",
        &["model-00001-of-00001.safetensors", "lm_head.weight"],
    ),
    (
        "sealed/absent-tensor",
        &["model-00001-of-00001.safetensors", "model.layers.9.absent"],
    ),
    ("sealed/unknown-format", &["lm_head.weight", "e3m4"]),
    (
        "sealed/wrong-format-for-dtype",
        &["lm_head.weight", "e8m0", "BF16"],
    ),
    (
        "sealed/record-not-json",
        &["model-00001-of-00001.safetensors", "kllm.lock"],
    ),
    ("sealed/not-locked", &["config.json", "not locked"]),
    (
        "sealed/wrong-key",
        &["02e8-f278-c518-dfcd", "d546-0025-db06-4519"],
    ),
    (
        "sealed/export-wrong-key",
        &["02e8-f278-c518-dfcd", "d546-0025-db06-4519"],
    ),
    (
        "sealed/export-without-key",
        &["config.json", "needs the key"],
    ),
    (
        "sealed/serve-wrong-key",
        &["trusted.kllm", "d546-0025-db06-4519"],
    ),
    (
        "keys/wrong-passphrase",
        &["wrong-passphrase.key", "passphrase is wrong"],
    ),
    (
        "keys/fingerprint-altered",
        &["fingerprint-altered.key", "altered"],
    ),
    ("keys/kdf-altered", &["kdf-altered.key", "altered"]),
    ("keys/open-altered", &["open-altered.key", "fingerprint"]),
    ("keys/version-2", &["version-2.key", "version 2"]),
    ("keys/other-format", &["other-format.key", "format field"]),
    ("keys/not-json", &["not-json.key", "not a key file"]),
    ("keys/short-secret", &["short-secret.key", "secret"]),
];

#[test]
fn every_refusal_names_the_file_the_tensor_or_the_field() {
    let Some(folder) = fixtures() else { return };
    let index: Value =
        serde_json::from_slice(&fs::read(folder.join("bad/index.json")).unwrap()).unwrap();
    let cases = index["cases"].as_array().unwrap();
    let named: BTreeSet<&str> = CASES.iter().map(|(id, _)| *id).collect();
    let there: BTreeSet<&str> = cases
        .iter()
        .map(|case| case["id"].as_str().unwrap())
        .collect();
    assert_eq!(named, there);
    for (id, words) in CASES {
        let case = cases.iter().find(|case| case["id"] == *id).unwrap();
        let scratch = Scratch::new();
        let error = scratch.refused(&operation(&folder, case, &scratch));
        for word in *words {
            assert!(error.contains(word), "{id}: {word} is not in: {error}");
        }
        assert_eq!(scratch.names(), scratch.before, "{id} left something");
    }
}

/// The arguments that carry out a case's operation.
fn operation(folder: &Path, case: &Value, scratch: &Scratch) -> Vec<String> {
    let path = folder.join("bad").join(case["path"].as_str().unwrap());
    let path = text(&path).to_owned();
    let out = scratch.path("out");
    let field = |name: &str| case[name].as_str();
    let operation = case["operation"].as_str().unwrap();
    let mut arguments: Vec<&str> = match operation {
        "read-blob" => vec!["blob", "list", &path],
        "extract-files" => vec!["blob", "extract", &path, "-o", &out],
        "decrypt-tokenizer" => vec!["blob", "extract", "-o", &out],
        "load-key" => vec!["keys", "inspect", &path],
        "seal" => vec!["checkpoint", "seal", &path, "-o", &out],
        "unlock" => vec!["checkpoint", "unlock", &path, "-o", &out],
        "cloud-export" => vec!["checkpoint", "cloud", &path, "-o", &out],
        "read-safetensors" => vec!["identity", "manifest", &path],
        other => panic!("operation {other}"),
    };
    let blob = format!("{path}/trusted.kllm");
    let key = field("key").map(|name| folder.join(format!("keys/{name}.open.key")));
    let passphrase = scratch.path("passphrase");
    match operation {
        "decrypt-tokenizer" => arguments.push(&blob),
        "seal" => arguments.extend([
            "--transform",
            field("transform").unwrap_or("perm"),
            "--lock",
            field("lock").unwrap_or("none"),
        ]),
        "load-key" => {
            fs::write(&passphrase, field("passphrase").unwrap()).unwrap();
            arguments.extend(["--passphrase-file", &passphrase]);
        }
        _ => {}
    }
    if let Some(key) = key
        .as_deref()
        .filter(|_| !matches!(operation, "load-key" | "read-safetensors"))
    {
        arguments.extend(["--key", text(key)]);
    }
    arguments.into_iter().map(str::to_owned).collect()
}

#[test]
fn a_pipe_or_an_endless_file_is_neither_waited_for_nor_read_whole() {
    let scratch = Scratch::new();
    let (key, out) = (scratch.key(), scratch.path("out"));
    let pipe = scratch.path("passphrase");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for special in [pipe.as_str(), "/dev/zero"] {
        for arguments in [
            &["blob", "list", special, "--key", &key][..],
            &["blob", "extract", special, "-o", &out, "--key", &key],
            &["keys", "inspect", special],
            &["jlm", "dump", special],
            &["jlm", "info", special],
            &["jlm", "verify", special, "--key", &key],
            &["jlm", "seal", special, "-o", &out, "--key", &key],
            &["jlm", "open", special, "-o", &out, "--key", &key],
            &["convert", special, &out],
            &["identity", "manifest", special],
            &["checkpoint", "show", special],
            &["checkpoint", "check", special],
            &["checkpoint", "unlock", special, "-o", &out, "--key", &key],
        ] {
            let error = scratch.refused(arguments);
            assert!(error.contains(special), "{arguments:?}: {error}");
        }
        let arguments = &["keys", "generate", "-o", &out, "--passphrase-file", special];
        assert!(scratch.refused(arguments).contains("passphrase"));
    }
    assert_eq!(scratch.names(), scratch.before);
}

#[test]
fn a_large_sparse_file_is_refused_at_its_header() {
    let scratch = Scratch::new();
    let (key, out) = (scratch.key(), scratch.path("out"));
    for (name, start) in [
        ("zero", &b""[..]),
        // A GGUF file of 2^64 - 1 tensors and metadata entries.
        (
            "counts.gguf",
            b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ),
        ("blob", b"KLLMBLOB1\n\x02\0\0\0{}"),
    ] {
        let path = scratch.path("passphrase");
        fs::write(&path, start).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(64 << 30).unwrap();
        for arguments in [
            &["blob", "list", &path, "--key", &key][..],
            &["keys", "inspect", &path],
            &["jlm", "verify", &path, "--key", &key],
            &["convert", &path, &out],
            &["identity", "manifest", &path],
        ] {
            let error = scratch.refused(arguments);
            assert!(!error.contains("memory"), "{name} {arguments:?}: {error}");
        }
    }
    assert_eq!(scratch.names(), scratch.before);
}

#[test]
fn an_output_that_is_there_is_kept_as_it_is() {
    let scratch = Scratch::new();
    let key = scratch.key();
    let sealed = scratch.path("sealed");
    scratch.done(&[
        "checkpoint",
        "seal",
        MODEL,
        "-o",
        &sealed,
        "--key",
        &key,
        "--transform",
        "perm",
        "--lock",
        "v2",
    ]);
    let (plain, locked) = (scratch.path("plain.jlm"), scratch.path("locked.jlm"));
    scratch.done(&["convert", MODEL, &plain]);
    scratch.done(&["jlm", "seal", &plain, "-o", &locked, "--key", &key]);
    fs::create_dir(scratch.path("folder")).unwrap();
    fs::write(scratch.path("file"), "kept").unwrap();
    symlink("/nowhere/at/all", scratch.path("link")).unwrap();
    let before = scratch.names();
    let blob = format!("{sealed}/trusted.kllm");
    for name in ["folder", "file", "link"] {
        let out = scratch.path(name);
        for arguments in [
            &[
                "checkpoint",
                "seal",
                MODEL,
                "-o",
                &out,
                "--key",
                &key,
                "--transform",
                "perm",
                "--lock",
                "none",
            ][..],
            &["checkpoint", "unlock", &sealed, "-o", &out, "--key", &key],
            &["checkpoint", "cloud", &sealed, "-o", &out, "--key", &key],
            &["blob", "extract", &blob, "-o", &out, "--key", &key],
            &["convert", MODEL, &out],
            &["jlm", "seal", &plain, "-o", &out, "--key", &key],
            &["jlm", "open", &locked, "-o", &out, "--key", &key],
            &["keys", "generate", "-o", &out],
        ] {
            let error = scratch.refused(arguments);
            assert!(error.contains(&out), "{arguments:?}: {error}");
        }
    }
    assert_eq!(scratch.names(), before);
    assert_eq!(fs::read_dir(scratch.path("folder")).unwrap().count(), 0);
    assert_eq!(fs::read(scratch.path("file")).unwrap(), b"kept");
}

#[test]
fn what_nobody_can_write_to_is_said() {
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin("chancery"))
        .args(["identity", "manifest", MODEL])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot write to standard output"), "{error}");
}

/// A folder for a command's files, with a key and a place for a passphrase in it.
struct Scratch {
    folder: tempfile::TempDir,
    before: Vec<String>,
}

impl Scratch {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let before = vec!["passphrase".to_owned()];
        let mut scratch = Self { folder, before };
        scratch.done(&["keys", "generate", "-o", &scratch.key()]);
        scratch.before.insert(0, "key".to_owned());
        scratch
    }

    fn path(&self, name: &str) -> String {
        text(&self.folder.path().join(name)).to_owned()
    }

    fn key(&self) -> String {
        self.path("key")
    }

    /// What is there, with the passphrase counted as there.
    fn names(&self) -> Vec<String> {
        let mut names: BTreeSet<String> = fs::read_dir(self.folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.insert("passphrase".to_owned());
        names.into_iter().collect()
    }

    fn run(arguments: &[impl AsRef<str>]) -> Output {
        // Of 1.2 GB of addresses, the program, its libraries and its threads' stacks take the most.
        Command::new("sh")
            .args(["-c", "ulimit -v 1200000 && exec \"$0\" \"$@\""])
            .arg(assert_cmd::cargo::cargo_bin("chancery"))
            .args(arguments.iter().map(AsRef::as_ref))
            .timeout(PATIENCE)
            .output()
            .unwrap()
    }

    fn done(&self, arguments: &[&str]) {
        let output = Self::run(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    }

    /// The one line of reason.
    fn refused(&self, arguments: &[impl AsRef<str>]) -> String {
        let output = Self::run(arguments);
        let shown: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{shown:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{shown:?}: {error}");
        assert!(error.starts_with("chancery: "), "{shown:?}: {error}");
        error
    }
}

/// A command that waits for ever is ended, and its test fails.
const PATIENCE: Duration = Duration::from_secs(120);
