//! Catalogs, single tensors and serving views of sealed folders, as a script sees them.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use support::{chancery, fixtures, text};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3");

fn answer(arguments: &[&str]) -> Value {
    let output = chancery(&[arguments, &["--json"]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = chancery(arguments);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for name in names(from) {
        fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
}

/// A key file and `MODEL` sealed under it.
fn sealed(folder: &Path, lock: &str) -> (PathBuf, PathBuf) {
    let (key, sealed) = (folder.join("model.key"), folder.join("sealed"));
    answer(&["keys", "generate", "-o", text(&key)]);
    answer(&[
        "checkpoint",
        "seal",
        MODEL,
        "-o",
        text(&sealed),
        "--key",
        text(&key),
        "--transform",
        "perm",
        "--lock",
        lock,
    ]);
    (key, sealed)
}

#[test]
fn a_catalog_manifest_is_written_once_and_checked() {
    let Some(fixtures) = fixtures() else { return };
    let published = fixtures.join("catalog/Tiny-kllm");
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("Tiny-kllm");
    copy(&published, &folder);
    let manifest = folder.join("kllm-manifest.json");
    let reference = fs::read(&manifest).unwrap();
    fs::remove_file(&manifest).unwrap();
    let (folder_text, revision) = (text(&folder), "d".repeat(40));
    let write = [
        "checkpoint",
        "catalog",
        "write",
        folder_text,
        "--name",
        "Tiny-kllm",
        "--repo-id",
        "org/Tiny",
        "--revision",
        &revision,
        "--license",
        "apache-2.0",
        "--client",
        "--gated",
    ];
    let written = answer(&write);
    assert_eq!(fs::read(&manifest).unwrap(), reference);
    assert_eq!(written["sha256"], hex::encode(Sha256::digest(&reference)));
    assert!(refused(&write).contains("exists already"));

    let check = ["checkpoint", "catalog", "check", folder_text];
    answer(&check);
    fs::write(folder.join("LICENSE"), "another").unwrap();
    fs::write(folder.join("extra.py"), "").unwrap();
    let output = chancery(&[&check[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        report,
        json!({"missing": [], "extra": ["extra.py"], "differing": ["LICENSE"]})
    );
    assert_eq!(
        names(&folder)
            .iter()
            .filter(|name| name.starts_with('.'))
            .count(),
        0
    );
}

#[test]
fn folders_are_recognised() {
    let plain = answer(&["checkpoint", "recognise", MODEL]);
    assert_eq!(plain["sealed"], false);
    assert_eq!(plain["scheme"], Value::Null);
    let Some(fixtures) = fixtures() else { return };
    let pipeline = fixtures.join("sealed/cases/h3.perm.lock-v2");
    let found = answer(&["checkpoint", "recognise", text(&pipeline)]);
    let expected = json!({
        "sealed": true,
        "file": "kllm.json",
        "scheme": "l1",
        "transform": "perm",
        "fingerprint": "02e8-f278-c518-dfcd",
        "architecture": "MiniMaxH3",
        "lock": "v2",
    });
    assert_eq!(found, expected);
}

#[test]
fn one_tensor_is_unlocked_as_in_the_whole_copy() {
    let Some(fixtures) = fixtures() else { return };
    let scratch = tempfile::tempdir().unwrap();
    for (case, key, tensor, shard) in [
        (
            "qwen3-tied.perm.lock-v1",
            "c",
            "model.layers.0.mlp.up_proj.weight",
            "",
        ),
        ("h3.perm.lock-v2", "a", "", "transformer"),
    ] {
        let sealed = fixtures.join("sealed/cases").join(case);
        let key = fixtures.join(format!("keys/{key}.open.key"));
        let whole = scratch.path().join(format!("{case}.whole"));
        let unlock = ["checkpoint", "unlock", text(&sealed), "--key", text(&key)];
        answer(&[&unlock[..], &["-o", text(&whole)]].concat());
        let (name, dtype, bytes) = find(&whole.join(shard), tensor);
        let tensor = if shard.is_empty() {
            name.clone()
        } else {
            format!("{shard}/{name}")
        };
        let one = scratch.path().join(format!("{case}.safetensors"));
        let options = ["-o", text(&one), "--tensor", &tensor];
        let view = answer(&[&unlock[..], &options].concat());
        assert_eq!(view["dtype"], dtype, "{case}");
        let file = fs::read(&one).unwrap();
        assert_eq!(
            view["written"]["sha256"],
            hex::encode(Sha256::digest(&file))
        );
        assert_eq!(tensor_of(&file, &name).1, bytes, "{case}: {tensor}");
    }
}

#[test]
fn a_tensor_that_cannot_be_unlocked_is_refused_and_leaves_nothing() {
    let Some(fixtures) = fixtures() else { return };
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("out.safetensors");
    let attempt = |case: &str, key: &str, tensor: &str| {
        let sealed = fixtures.join("sealed/cases").join(case);
        let key = fixtures.join(format!("keys/{key}.open.key"));
        let error = refused(&[
            "checkpoint",
            "unlock",
            text(&sealed),
            "-o",
            text(&out),
            "--key",
            text(&key),
            "--tensor",
            tensor,
        ]);
        assert_eq!(names(scratch.path()), Vec::<String>::new());
        error
    };
    let norm = "model.norm.weight";
    assert!(attempt("qwen3-tied.perm.lock-v2", "b", "no.such.weight").contains("no.such.weight"));
    assert!(attempt("qwen3-tied.perm.lock-v2", "a", norm).contains("another key"));
    assert!(attempt("qwen3-tied.perm.no-lock", "a", norm).contains("not locked"));
}

#[test]
fn a_serving_view_is_private_in_memory_and_complete() {
    let scratch = tempfile::tempdir().unwrap();
    let (key, sealed) = sealed(scratch.path(), "none");
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let serve = |more: &[&str]| {
        let fixed = [
            "serve-view",
            text(&sealed),
            "--key",
            text(&key),
            "--in",
            text(memory.path()),
        ];
        answer(&[&fixed[..], more].concat())
    };
    let answered = serve(&[]);
    let view = PathBuf::from(answered["view"].as_str().unwrap());
    assert!(view.starts_with(memory.path()));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&view), 0o700);
    let found = names(&view);
    assert_eq!(json!(found), answered["files"]);
    for name in &found {
        assert_eq!(mode(&view.join(name)), 0o600, "{name}");
        assert!(
            !name.ends_with(".safetensors") && !name.ends_with(".key"),
            "{name}"
        );
    }
    assert!(!found.contains(&"trusted.kllm".to_owned()));
    // The tokenizer is the permuted one, and every other small file is the folder's.
    let extracted = scratch.path().join("extracted");
    answer(&[
        "blob",
        "extract",
        text(&sealed.join("trusted.kllm")),
        "-o",
        text(&extracted),
        "--key",
        text(&key),
    ]);
    for name in &found {
        let private = extracted.join(name);
        let expected = if private.exists() {
            private
        } else {
            sealed.join(name)
        };
        assert_eq!(
            fs::read(view.join(name)).unwrap(),
            fs::read(expected).unwrap()
        );
    }
    assert_ne!(
        fs::read(view.join("tokenizer.json")).unwrap(),
        fs::read(Path::new(MODEL).join("tokenizer.json")).unwrap()
    );
    assert!(found.contains(&"config.json".to_owned()));
    let weights = fs::canonicalize(&sealed).unwrap();
    assert_eq!(
        answered["vllm"],
        json!(["vllm", "serve", text(&weights), "--tokenizer", text(&view)])
    );
    assert_eq!(answered["sglang"][6], text(&view));

    // With the weights linked, an engine needs the view alone.
    let answered = serve(&["--link-weights"]);
    let linked = PathBuf::from(answered["view"].as_str().unwrap());
    assert_eq!(answered["weights"], text(&linked));
    assert_eq!(answered["vllm"][2], text(&linked));
    for name in names(&sealed)
        .iter()
        .filter(|name| name.ends_with(".safetensors"))
    {
        assert_eq!(
            fs::read_link(linked.join(name)).unwrap(),
            weights.join(name)
        );
    }
}

#[test]
fn a_view_that_no_engine_could_serve_from_is_refused_and_leaves_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let (key, sealed) = sealed(scratch.path(), "v2");
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let serve = |folder: &Path, key: &Path, parent: &Path| {
        let error = refused(&[
            "serve-view",
            text(folder),
            "--key",
            text(key),
            "--in",
            text(parent),
        ]);
        assert_eq!(names(memory.path()), Vec::<String>::new());
        error
    };
    assert!(serve(&sealed, &key, memory.path()).contains("locked with v2"));
    assert!(serve(Path::new(MODEL), &key, memory.path()).contains("not sealed"));
    let open = scratch.path().join("open");
    answer(&[
        "checkpoint",
        "unlock",
        text(&sealed),
        "-o",
        text(&open),
        "--key",
        text(&key),
    ]);
    let other = scratch.path().join("other.key");
    answer(&["keys", "generate", "-o", text(&other)]);
    assert!(serve(&open, &other, memory.path()).contains("another key"));
    assert!(serve(&open, &key, Path::new("/proc")).contains("not in memory"));
    let Some(fixtures) = fixtures() else { return };
    let pipeline = fixtures.join("sealed/cases/h3.perm.no-lock");
    let key = fixtures.join("keys/c.open.key");
    assert!(serve(&pipeline, &key, memory.path()).contains("pipeline"));
}

/// A tensor of a folder's shards: the one of that name, or the largest.
fn find(folder: &Path, wanted: &str) -> (String, String, Vec<u8>) {
    let mut best = (String::new(), String::new(), Vec::new());
    for shard in names(folder) {
        if !shard.ends_with(".safetensors") {
            continue;
        }
        let file = fs::read(folder.join(shard)).unwrap();
        for name in header(&file).as_object().unwrap().keys() {
            if name == "__metadata__" {
                continue;
            }
            let (dtype, bytes) = tensor_of(&file, name);
            let better = wanted.is_empty() && bytes.len() > best.2.len();
            if better || name == wanted {
                best = (name.clone(), dtype, bytes);
            }
        }
    }
    assert!(!best.2.is_empty(), "{wanted} in {}", folder.display());
    best
}

fn header(file: &[u8]) -> Value {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    serde_json::from_slice(&file[8..8 + length]).unwrap()
}

fn tensor_of(file: &[u8], name: &str) -> (String, Vec<u8>) {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let entry = &header(file)[name];
    let [start, end] =
        [0, 1].map(|at| 8 + length + entry["data_offsets"][at].as_u64().unwrap() as usize);
    let dtype = entry["dtype"].as_str().unwrap().to_owned();
    (dtype, file[start..end].to_vec())
}
