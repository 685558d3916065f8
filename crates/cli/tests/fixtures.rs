//! The offline commands over the reference's files: what it wrote, and what must be refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use support::{chancery, fixtures, text};

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs one entry of `bad/index.json`; what it writes goes to `out`.
fn attempt(folder: &Path, case: &Value, out: &Path, passphrase: &Path) -> Output {
    let bad = folder.join("bad");
    let path = bad.join(case["path"].as_str().unwrap());
    let path = text(&path);
    let key = case["key"]
        .as_str()
        .map(|name| folder.join(format!("keys/{name}.open.key")));
    let key = key.as_deref().map(text);
    let out = text(out);
    let given = |arguments: &[&str]| {
        let mut arguments = arguments.to_vec();
        if let Some(key) = key {
            arguments.extend(["--key", key]);
        }
        chancery(&arguments)
    };
    match case["operation"].as_str().unwrap() {
        "read-blob" => given(&["blob", "list", path]),
        "extract-files" => given(&["blob", "extract", path, "-o", out]),
        "decrypt-tokenizer" => {
            let blob = format!("{path}/trusted.kllm");
            given(&["blob", "extract", &blob, "-o", out])
        }
        "load-key" => {
            let mut arguments = vec!["keys", "inspect", path];
            if let Some(words) = case["passphrase"].as_str() {
                fs::write(passphrase, words).unwrap();
                arguments.extend(["--passphrase-file", text(passphrase)]);
            }
            chancery(&arguments)
        }
        "seal" => {
            let transform = case["transform"].as_str().unwrap_or("perm");
            let lock = case["lock"].as_str().unwrap_or("none");
            given(&[
                "checkpoint",
                "seal",
                path,
                "-o",
                out,
                "--transform",
                transform,
                "--lock",
                lock,
            ])
        }
        "unlock" => given(&["checkpoint", "unlock", path, "-o", out]),
        "cloud-export" => given(&["checkpoint", "cloud", path, "-o", out]),
        "read-safetensors" => chancery(&["identity", "manifest", path]),
        other => panic!("operation {other}"),
    }
}

#[test]
fn every_bad_input_is_refused_in_one_line_and_leaves_nothing() {
    let Some(folder) = fixtures() else { return };
    let index = read_json(&folder.join("bad/index.json"));
    let cases = index["cases"].as_array().unwrap();
    assert!(cases.len() >= 74);
    for case in cases {
        let scratch = tempfile::tempdir().unwrap();
        let passphrase = tempfile::NamedTempFile::new().unwrap();
        let out = scratch.path().join("out");
        let output = attempt(&folder, case, &out, passphrase.path());
        let said = error(&output);
        assert_eq!(output.status.code(), Some(1), "{}: {said}", case["id"]);
        assert_eq!(said.lines().count(), 1, "{}: {said}", case["id"]);
        let left = fs::read_dir(scratch.path()).unwrap().count();
        assert_eq!(left, 0, "{} left something", case["id"]);
    }
}

#[test]
fn every_control_is_accepted() {
    let Some(folder) = fixtures() else { return };
    let index = read_json(&folder.join("bad/index.json"));
    for case in index["controls"].as_array().unwrap() {
        let scratch = tempfile::tempdir().unwrap();
        let passphrase = tempfile::NamedTempFile::new().unwrap();
        let out = scratch.path().join("out");
        let output = attempt(&folder, case, &out, passphrase.path());
        assert!(
            output.status.success(),
            "{}: {}",
            case["id"],
            error(&output)
        );
    }
}

#[test]
fn every_container_dumps_as_the_reference_sees_it() {
    let Some(folder) = fixtures() else { return };
    let mut dumped = 0;
    for entry in fs::read_dir(folder.join("jlm/containers")).unwrap() {
        let container = entry.unwrap().path();
        let name = container.file_stem().unwrap().to_str().unwrap();
        let wanted = read_json(&folder.join(format!("jlm/dumps/{name}.json")));
        let output = chancery(&["jlm", "dump", text(&container), "--json"]);
        assert!(output.status.success(), "{name}: {}", error(&output));
        let dump: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(dump == wanted, "{name} dumps differently");
        dumped += 1;
    }
    assert!(dumped >= 20);
}

#[test]
fn every_input_converts_to_the_reference_s_bytes() {
    let Some(folder) = fixtures() else { return };
    let mut converted = 0;
    for entry in fs::read_dir(folder.join("jlm/inputs")).unwrap() {
        let input = entry.unwrap().path();
        let stem = input.file_name().unwrap().to_str().unwrap();
        let is_gguf = stem.ends_with(".gguf");
        let stem = stem.trim_end_matches(".gguf");
        for (suffix, flags) in [
            ("", &["--widen-bf16"][..]),
            (".q8", &["--widen-bf16", "--q8"]),
        ] {
            let wanted = folder.join(format!("jlm/containers/{stem}{suffix}.v27.jlm"));
            let Ok(wanted) = fs::read(wanted) else {
                continue;
            };
            let scratch = tempfile::tempdir().unwrap();
            let out = scratch.path().join("out.jlm");
            let mut arguments = vec![
                "convert",
                text(&input),
                text(&out),
                "--fingerprint",
                "oracle,none,jlm-oracle,0",
            ];
            if !is_gguf {
                arguments.extend(flags);
            }
            let output = chancery(&arguments);
            assert!(
                output.status.success(),
                "{stem}{suffix}: {}",
                error(&output)
            );
            assert!(fs::read(&out).unwrap() == wanted, "{stem}{suffix} differs");
            converted += 1;
        }
    }
    assert!(converted >= 10);
}

#[test]
fn a_published_directory_is_checked_by_its_manifest() {
    let Some(folder) = fixtures() else { return };
    let good = folder.join("catalog/Tiny-kllm");
    let output = chancery(&["checkpoint", "check", text(&good)]);
    assert!(output.status.success(), "{}", error(&output));
    let altered = folder.join("catalog/Tiny-kllm-altered");
    let output = chancery(&["checkpoint", "check", text(&altered), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["extra"], serde_json::json!(["extra.py"]));
}
