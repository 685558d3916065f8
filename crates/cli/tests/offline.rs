//! The commands that need no services, as a script sees them: output, exit codes, what stays.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use support::{chancery, text};

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/tiny-qwen3");

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn key(&self) -> PathBuf {
        let key = self.path("model.key");
        if !key.exists() {
            done(&["keys", "generate", "-o", text(&key)]);
        }
        key
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn done(arguments: &[&str]) -> String {
    let output = chancery(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&done(arguments)).unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = chancery(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("chancery: "), "{error}");
    error
}

#[test]
fn a_folder_is_sealed_verified_and_unlocked() {
    let folder = Folder::new();
    let (key, sealed, open) = (folder.key(), folder.path("sealed"), folder.path("open"));
    let report = json(&[
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
        "v2",
        "--json",
    ]);
    let aggregate = json(&["identity", "manifest", MODEL, "--json"])["aggregate_sha256"].clone();
    assert_eq!(report["source_aggregate"], aggregate);
    let shown = json(&["checkpoint", "show", text(&sealed), "--json"]);
    assert_eq!(shown["lock"], "v2");
    assert_eq!(shown["fingerprint"], report["fingerprint"]);
    done(&[
        "checkpoint",
        "verify",
        text(&sealed),
        "--base",
        MODEL,
        "--key",
        text(&key),
    ]);
    done(&[
        "checkpoint",
        "unlock",
        text(&sealed),
        "-o",
        text(&open),
        "--key",
        text(&key),
    ]);
    done(&[
        "checkpoint",
        "verify",
        text(&open),
        "--base",
        MODEL,
        "--key",
        text(&key),
    ]);

    done(&["checkpoint", "check", text(&sealed), "--write"]);
    done(&["checkpoint", "check", text(&sealed)]);
    fs::write(sealed.join("README.md"), "altered").unwrap();
    assert!(refused(&["checkpoint", "check", text(&sealed)]).contains("README.md"));

    let blob = sealed.join("trusted.kllm");
    let listed = json(&["blob", "list", text(&blob), "--key", text(&key), "--json"]);
    assert!(!listed["files"].as_array().unwrap().is_empty());
    let private = folder.path("private");
    done(&[
        "blob",
        "extract",
        text(&blob),
        "-o",
        text(&private),
        "--key",
        text(&key),
    ]);
    assert!(private.join("tokenizer.json").is_file());
}

#[test]
fn another_key_is_refused_and_nothing_is_left_behind() {
    let folder = Folder::new();
    let (key, sealed) = (folder.key(), folder.path("sealed"));
    done(&[
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
        "v2",
    ]);
    let other = folder.path("other.key");
    done(&["keys", "generate", "-o", text(&other)]);
    let before = folder.names();
    let open = folder.path("open");
    refused(&[
        "checkpoint",
        "unlock",
        text(&sealed),
        "-o",
        text(&open),
        "--key",
        text(&other),
    ]);
    let blob = sealed.join("trusted.kllm");
    refused(&[
        "blob",
        "extract",
        text(&blob),
        "-o",
        text(&open),
        "--key",
        text(&other),
    ]);
    refused(&[
        "checkpoint",
        "seal",
        text(&sealed),
        "-o",
        text(&open),
        "--key",
        text(&key),
        "--transform",
        "perm",
        "--lock",
        "none",
    ]);
    assert_eq!(folder.names(), before);
}

#[test]
fn an_output_inside_its_source_is_refused() {
    let folder = Folder::new();
    let key = folder.key();
    let source = folder.path("source");
    fs::create_dir(&source).unwrap();
    for entry in fs::read_dir(MODEL).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), source.join(entry.file_name())).unwrap();
    }
    let seal = |source: &str, output: &str| {
        [
            "checkpoint",
            "seal",
            source,
            "-o",
            output,
            "--key",
            text(&key),
            "--transform",
            "perm",
            "--lock",
            "v2",
        ]
        .map(str::to_owned)
    };
    let unlock = |source: &str, output: &str| {
        [
            "checkpoint",
            "unlock",
            source,
            "-o",
            output,
            "--key",
            text(&key),
        ]
        .map(str::to_owned)
    };
    let sealed = folder.path("sealed");
    let arguments = seal(text(&source), text(&sealed));
    done(&arguments.each_ref().map(String::as_str));

    let link = folder.path("link");
    std::os::unix::fs::symlink(&source, &link).unwrap();
    let inside = [source.join("sealed"), link.join("sealed")];
    for output in &inside {
        let arguments = seal(text(&source), text(output));
        let reason = refused(&arguments.each_ref().map(String::as_str));
        assert!(reason.contains("in the directory that is read"), "{reason}");
    }
    let arguments = unlock(text(&sealed), text(&sealed.join("open")));
    let reason = refused(&arguments.each_ref().map(String::as_str));
    assert!(reason.contains("in the directory that is read"), "{reason}");
    assert!(!source.join("sealed").exists() && !sealed.join("open").exists());
}

#[test]
fn a_container_is_converted_sealed_and_opened() {
    let folder = Folder::new();
    let (key, plain) = (folder.key(), folder.path("model.jlm"));
    let planned = json(&["convert", MODEL, text(&plain), "--plan", "--json"]);
    assert!(!plain.exists());
    assert!(planned["written"].is_null());
    done(&["convert", MODEL, text(&plain)]);
    assert_eq!(planned["bytes"], fs::metadata(&plain).unwrap().len());
    assert!(refused(&["convert", MODEL, text(&plain)]).contains("exists already"));

    let (sealed, open) = (folder.path("sealed.jlm"), folder.path("open.jlm"));
    done(&[
        "jlm",
        "seal",
        text(&plain),
        "-o",
        text(&sealed),
        "--key",
        text(&key),
    ]);
    done(&["jlm", "info", text(&sealed)]);
    let verified = json(&[
        "jlm",
        "verify",
        text(&sealed),
        "--key",
        text(&key),
        "--json",
    ]);
    assert_eq!(verified["sealed"], true);
    assert!(verified["units_opened"].as_u64().unwrap() > 2);
    done(&[
        "jlm",
        "open",
        text(&sealed),
        "-o",
        text(&open),
        "--key",
        text(&key),
    ]);
    assert_eq!(fs::read(&open).unwrap(), fs::read(&plain).unwrap());
    done(&["jlm", "verify", text(&open)]);
    let dump = json(&["jlm", "dump", text(&open), "--json"]);
    assert_eq!(dump["file"], "open.jlm");

    let mut bytes = fs::read(&sealed).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let damaged = folder.path("damaged.jlm");
    fs::write(&damaged, bytes).unwrap();
    refused(&["jlm", "verify", text(&damaged), "--key", text(&key)]);
    let nothing = folder.path("nothing.jlm");
    refused(&[
        "jlm",
        "open",
        text(&damaged),
        "-o",
        text(&nothing),
        "--key",
        text(&key),
    ]);
    refused(&["jlm", "dump", text(&sealed)]);
    assert!(!folder.names().iter().any(|name| name.contains("nothing")));
}

#[test]
fn a_sealed_key_file_needs_its_passphrase() {
    let folder = Folder::new();
    let (key, right, wrong) = (folder.path("k"), folder.path("right"), folder.path("wrong"));
    fs::write(&right, "a passphrase of some length\n").unwrap();
    fs::write(&wrong, "another passphrase of some length\n").unwrap();
    done(&[
        "keys",
        "generate",
        "-o",
        text(&key),
        "--passphrase-file",
        text(&right),
    ]);
    let inspected = json(&["keys", "inspect", text(&key), "--json"]);
    assert_eq!(inspected["kind"], "sealed");
    let opened = json(&[
        "keys",
        "inspect",
        text(&key),
        "--passphrase-file",
        text(&right),
        "--json",
    ]);
    assert_eq!(opened["fingerprint"], inspected["fingerprint"]);
    refused(&[
        "keys",
        "inspect",
        text(&key),
        "--passphrase-file",
        text(&wrong),
    ]);
    assert!(refused(&["keys", "generate", "-o", text(&key)]).contains("cannot write"));
}

#[test]
fn wrong_use_is_exit_code_2() {
    for arguments in [
        &["checkpoint", "seal", "somewhere"][..],
        &["nothing"],
        &["convert", "nowhere.gguf", "out.jlm", "--q8"],
        &["convert", MODEL, "out.jlm", "--fingerprint", "one,two"],
    ] {
        let output = chancery(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let folder = Folder::new();
    let key = folder.key();
    for arguments in [
        &["identity", "manifest", "/nowhere"][..],
        &["jlm", "info", "/nowhere"],
        &["blob", "list", "/nowhere", "--key", text(&key)],
        &["checkpoint", "show", "/nowhere"],
    ] {
        assert!(refused(arguments).contains("/nowhere"), "{arguments:?}");
    }
    let state = folder.path("state");
    let error = refused(&["--state", text(&state), "keys", "list"]);
    assert!(error.contains("chancery up"), "{error}");
}

#[test]
fn completions_are_printed_for_a_shell() {
    assert!(done(&["completions", "bash"]).contains("_chancery"));
}
