//! Storage that lies, and a registry that went back.

use std::fs;
use std::path::{Path, PathBuf};

use chancery_tests::{Suite, data};

use crate::path::{events, seal};

#[test]
fn swapped_and_altered_pages_never_reach_the_engine() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "demo"]);
    seal(&suite, "tiny-qwen3", "demo", "tiny", &["--no-checkpoint"]);
    let blob = container(&suite.state().join("data/storage-node"));
    let good = fs::read(&blob).unwrap();
    let loaded = suite.json(&["model", "load", "tiny"]);
    let page = usize::try_from(loaded["page_bytes"].as_u64().unwrap()).unwrap();
    suite.ok(&["model", "unload", "tiny"]);
    // The page array starts at the header's DataOff (offset 64).
    let start = usize::try_from(u64::from_le_bytes(good[64..72].try_into().unwrap())).unwrap();

    let mut swapped = good.clone();
    let (one, two) = swapped[start..start + 2 * page].split_at_mut(page);
    one.swap_with_slice(two);
    let mut flipped = good.clone();
    flipped[start + page / 2] ^= 1;
    for (bad, what) in [(swapped, "swapped"), (flipped, "flipped")] {
        overwrite(&blob, &bad);
        let refused = attempt(&suite);
        assert!(refused, "{what} pages were accepted");
    }
    overwrite(&blob, &good);
    suite.ok(&["model", "load", "tiny"]);
    suite.ok(&["run", "tiny", "In the beginning", "--max-tokens", "4"]);
    let report = suite.json(&["storage", "scrub"]);
    assert!(!report.to_string().contains("\"intact\":false"), "{report}");
}

#[test]
fn a_registry_restored_from_an_older_state_is_refused() {
    let suite = Suite::start();
    suite.ok(&["keys", "create", "one"]);
    suite.down();
    let postgres = suite.state().join("postgres");
    let backup = suite.state().join("backup");
    copy(&postgres, &backup);
    suite.up(&[&data()]);
    suite.ok(&["keys", "create", "two"]);
    assert_eq!(events(&suite).len(), 2);
    suite.down();
    fs::remove_dir_all(&postgres).unwrap();
    copy(&backup, &postgres);
    let output = suite.try_up(&[&data()]);
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stderr),
        suite.logs()
    );
    assert!(
        !output.status.success(),
        "the suite came up on a log that went back"
    );
    assert!(said.contains("went back"), "{said}");
}

/// Whether loading or running the model is refused.
fn attempt(suite: &Suite) -> bool {
    let load = suite.run(&["model", "load", "tiny"]);
    let run = suite.run(&["run", "tiny", "In the beginning", "--max-tokens", "4"]);
    let refused = !load.status.success() || !run.status.success();
    suite.ok(&["model", "unload", "tiny"]);
    refused
}

/// The stored container: the one file that starts with a container's magic.
fn container(folder: &Path) -> PathBuf {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read(&path).unwrap().starts_with(b"JITLLM") {
                found.push(path);
            }
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn overwrite(path: &Path, bytes: &[u8]) {
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Copies a folder with owners and modes: Postgres refuses data that is not its user's.
fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .arg("-a")
        .args([from, to])
        .status()
        .expect("cp runs");
    assert!(status.success());
}
