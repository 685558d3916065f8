//! Jobs over registered checkpoints make what the offline commands make of the same folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use chancery_tests::{Service, Suite, data};
use serde_json::Value;

use crate::fetch::stored;
use crate::path::{events, seal};

#[test]
fn copies_are_what_the_offline_commands_write() {
    let suite = Suite::start();
    let path = |name: &str| suite.state().join(name);
    let key = text(&path("model.key"));
    suite.ok(&["keys", "generate", "-o", &key]);
    suite.ok(&["keys", "import", &key, "--name", "demo"]);
    let options = ["--lock", "v1", "--no-container"];
    seal(&suite, "tiny-qwen3", "demo", "tiny", &options);
    let sealed = text(&fetch(&suite, "tiny", &path("sealed")));

    for (operation, checkpoint, lock) in [
        ("relock", "relock", "v2"),
        ("unlock", "unlock", "none"),
        ("cloud", "cloud", "none"),
    ] {
        let model = format!("tiny-{operation}");
        let job = operate(&suite, operation, &["tiny", "--model", &model]);
        let ours = fetch(&suite, &model, &path(&format!("{operation}-by-job")));
        let theirs = path(&format!("{operation}-offline"));
        suite.ok(&[
            "checkpoint",
            checkpoint,
            &sealed,
            "-o",
            &text(&theirs),
            "--key",
            &key,
        ]);
        let mut ours = contents(&ours);
        assert!(ours.remove(Path::new("model.sig")).is_some(), "{operation}");
        assert_eq!(ours, contents(&theirs), "{operation}");
        let shown = suite.json(&["artifacts", "show", digest(&job)]);
        assert_eq!(shown["manifest"]["seal"]["lock"], lock, "{shown:#}");
        assert_eq!(shown["model"], model);
        let left_out = job["files"].as_array().unwrap().iter();
        let left_out = left_out.filter(|file| file["fate"] == "left out").count();
        // The signature of the folder as it was is always among them.
        assert_eq!(left_out > 1, operation == "cloud", "{job:#}");
    }

    let name = "model.embed_tokens.weight";
    let one = ["tiny", "--model", "one", "--tensor", name];
    operate(&suite, "unlock", &one);
    let ours = fetch(&suite, "one", &path("one")).join("tensor.safetensors");
    let theirs = path("one-offline.safetensors");
    let offline = ["checkpoint", "unlock", &sealed, "--tensor", name];
    let more = ["-o", &text(&theirs), "--key", &key];
    suite.ok(&[&offline[..], &more].concat());
    assert_eq!(fs::read(ours).unwrap(), fs::read(theirs).unwrap());

    let derived = events(&suite);
    let derived = derived.iter().filter(|event| *event == "derived").count();
    assert_eq!(derived, 4);
    suite.ok(&["receipts", "verify"]);

    let wrong = ["tiny-relock", "--model", "again"];
    assert!(failed(&suite, "relock", &wrong).contains("only a lock of version v1"));
    let wrong = ["tiny-unlock", "--model", "again"];
    assert!(failed(&suite, "unlock", &wrong).contains("not locked"));
    let wrong = ["tiny", "--model", "again", "--tensor", "absent"];
    assert!(failed(&suite, "unlock", &wrong).contains("absent"));
    suite.ok(&["keys", "disable", "demo"]);
    let refused = failed(&suite, "unlock", &["tiny", "--model", "again"]);
    assert!(refused.contains("key-refused"), "{refused}");
}

#[test]
fn an_artifact_is_compared_with_its_base_and_with_its_manifest() {
    let others = tempfile::tempdir().unwrap();
    let other = altered(&data().join("tiny-qwen3"), &others.path().join("other"));
    let suite = Suite::start_with(&[&data(), others.path()]);
    let path = |name: &str| suite.state().join(name);
    suite.ok(&["keys", "create", "demo"]);
    let options = ["--transform", "orth"];
    seal(&suite, "tiny-qwen3", "demo", "tiny", &options);
    let base = ["tiny", "--base", "tiny-qwen3"];
    let same = operate(&suite, "verify", &base);
    assert!(same["comparison"]["tensors"].as_u64().unwrap() > 10);
    assert!(same["artifacts"].as_array().unwrap().is_empty());
    let wrong = ["tiny", "--base", &other];
    assert!(failed(&suite, "verify", &wrong).contains("source-changed"));

    let catalog = [
        "tiny",
        "--model",
        "published",
        "--name",
        "Tiny",
        "--repo-id",
        "ours/tiny",
        "--revision",
        "1",
        "--license",
        "MIT",
    ];
    operate(&suite, "catalog", &catalog);
    let published = fetch(&suite, "published", &path("published"));
    suite.ok(&["checkpoint", "catalog", "check", &text(&published)]);

    let stored_files = operate(&suite, "check", &["published"]);
    let files = contents(&published).len() as u64;
    assert_eq!(stored_files["comparison"]["files"], files);
    let good = fs::read(published.join("config.json")).unwrap();
    let blob = stored(&path("data/storage-node"), &good);
    let mut bad = good;
    bad[0] ^= 1;
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, bad).unwrap();
    let reason = failed(&suite, "check", &["tiny"]);
    assert!(
        reason.contains("differs") && reason.contains("config.json"),
        "{reason}"
    );
    let reason = failed(&suite, "verify", &base);
    assert!(reason.contains("config.json"), "{reason}");
    let container = suite.json(&["artifacts", "show", "tiny"]);
    let reason = failed(&suite, "check", &[container["digest"].as_str().unwrap()]);
    assert!(reason.contains("container"), "{reason}");
}

#[test]
fn every_kind_of_model_is_sealed_and_compared_by_jobs() {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/sealed/inputs");
    if !inputs.is_dir() {
        eprintln!("skipped: {} is absent", inputs.display());
        return;
    }
    let suite = Suite::start_with(&[&inputs]);
    for (source, options) in [
        ("qwen3-moe-fp8", &["--lock", "v2"][..]),
        ("glm5-fp8", &["--lock", "v2"]),
        ("dsv4", &["--lock", "v2"]),
        ("glm5next", &["--lock", "v2"]),
        ("h3", &["--transform", "orth", "--lock", "v1"]),
        ("zimage", &["--scheme", "client", "--lock", "v2"]),
        ("zimage-d1", &["--scheme", "d1", "--lock", "none"]),
    ] {
        suite.ok(&["keys", "create", source]);
        let options = [options, &["--no-container"]].concat();
        let job = seal(&suite, source, source, source, &options);
        for file in job["files"].as_array().unwrap() {
            let told = file["fate"] != "left out" || file["why"] != "";
            assert!(told, "{source}: {file:#}");
        }
        let seen = operate(&suite, "verify", &[source, "--base", source]);
        assert!(
            seen["comparison"]["tensors"].as_u64().unwrap() > 0,
            "{seen:#}"
        );
    }
    // A pipeline's lock is taken off part by part.
    operate(&suite, "relock", &["h3", "--model", "h3-v2"]);
    operate(&suite, "verify", &["h3-v2", "--base", "h3"]);
}

#[test]
fn a_copy_survives_the_death_of_the_sealer_and_of_storage() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    let options = ["--lock", "v1", "--no-container"];
    seal(&suite, "tiny-qwen3", "demo", "tiny", &options);
    let mut jobs = 0;
    for service in [Service::Sealer, Service::StorageNode, Service::KeyService] {
        for pause in [0, 40, 120] {
            let model = format!("copy{jobs}");
            let request = format!("00000000-0000-7000-8000-{jobs:012}");
            let submission = [
                "seal",
                "relock",
                "tiny",
                "--model",
                &model,
                "--request-id",
                &request,
            ];
            let job = suite.eventually(&submission, |job| job["id"].is_string());
            std::thread::sleep(std::time::Duration::from_millis(pause));
            suite.kill(service);
            let id = job["id"].as_str().unwrap();
            let ended = suite.eventually(&["seal", "show", id], |job| {
                !matches!(job["state"].as_str(), Some("queued" | "running"))
            });
            assert_eq!(ended["state"], "succeeded", "{ended:#}");
            jobs += 1;
        }
    }
    let derived = events(&suite);
    let derived = derived.iter().filter(|event| *event == "derived").count();
    assert_eq!(derived, jobs);
}

/// A copy of a checkpoint with one byte of its weights changed; its folder's name.
fn altered(checkpoint: &Path, copy: &Path) -> String {
    fs::create_dir(copy).unwrap();
    for (name, mut bytes) in contents(checkpoint) {
        if name.extension().is_some_and(|end| end == "safetensors") {
            *bytes.last_mut().unwrap() ^= 1;
        }
        fs::write(copy.join(name), bytes).unwrap();
    }
    copy.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Runs a job to its end; it must succeed.
fn operate(suite: &Suite, operation: &str, arguments: &[&str]) -> Value {
    let job = suite.json(&[&["seal", operation, "--watch"], arguments].concat());
    assert_eq!(job["state"], "succeeded", "{job:#}");
    job
}

/// Why a job failed, or was not accepted.
fn failed(suite: &Suite, operation: &str, arguments: &[&str]) -> String {
    suite.refused(&[&["seal", operation, "--watch"], arguments].concat())
}

fn fetch(suite: &Suite, model: &str, into: &Path) -> PathBuf {
    suite.ok(&["artifacts", "fetch", model, "-o", &text(into)]);
    into.to_owned()
}

fn digest(job: &Value) -> &str {
    job["artifacts"][0]["digest"].as_str().unwrap()
}

/// Every file below a folder.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}
