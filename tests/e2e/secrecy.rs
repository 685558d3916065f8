//! No key in storage: neither in the storage node's memory nor on its disk.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use chancery_tests::{Service, Suite, data, for_each_memory_region};
use model_key::{Component, KeyFile, Label, ModelKey, SubkeyId, SubkeySource as _};
use sealing::{SealOptions, SealPlan};
use weight_lock::Version;
use weight_transform::Transform;

use crate::path::{seal, texts};

#[test]
fn the_storage_nodes_memory_and_disk_hold_no_key() {
    let suite = Suite::start();
    let file = suite.state().join("known.key");
    let path = file.to_str().unwrap();
    suite.ok(&["keys", "generate", "-o", path]);
    suite.ok(&["keys", "import", path, "--name", "known"]);
    seal(&suite, "tiny-qwen3", "known", "tiny", &["--lock", "v2"]);
    suite.ok(&["model", "load", "tiny"]);
    assert!(!texts(&suite, "tiny").is_empty());

    let key = KeyFile::parse(&fs::read(&file).unwrap())
        .unwrap()
        .open(None)
        .unwrap();
    let needles = secrets(&suite, &key);
    assert!(needles.len() > 80, "{}", needles.len());

    // The scan finds what is there: a marker in this process.
    let marker: [u8; 32] = *b"a marker that this test can find";
    let mut found_marker = false;
    for_each_memory_region(std::process::id(), |bytes| {
        found_marker |= finds(bytes, &BTreeSet::from([marker]));
    })
    .unwrap();
    assert!(found_marker);

    let mut scanned = 0;
    for_each_memory_region(suite.pid(Service::StorageNode), |bytes| {
        scanned += bytes.len();
        assert!(
            !finds(bytes, &needles),
            "a key is in the storage node's memory"
        );
    })
    .unwrap();
    assert!(scanned > 1 << 20, "{scanned} bytes scanned");
    let (mut files, mut containers) = (0, 0);
    each_file(&suite.state().join("data/storage-node"), &mut |path| {
        files += 1;
        let bytes = fs::read(path).unwrap();
        assert!(!finds(&bytes, &needles), "a key is in {}", path.display());
        // The container's vocabulary is encrypted too.
        if bytes.starts_with(b"JITLLM") {
            containers += 1;
            for text in ["<|im_start|>", "\u{120}LORD"] {
                let plain = bytes
                    .windows(text.len())
                    .any(|window| window == text.as_bytes());
                assert!(!plain, "{text} is in {}", path.display());
            }
        }
    });
    assert!(files > 2, "{files} files");
    assert_eq!(containers, 1);
}

/// The model key and every subkey of the run.
fn secrets(suite: &Suite, key: &ModelKey) -> BTreeSet<[u8; 32]> {
    let options = SealOptions {
        transform: Transform::Perm,
        lock: Some(Version::V2),
        client: false,
        salt: [0; 16],
    };
    let plan = SealPlan::new(&data().join("tiny-qwen3"), options).unwrap();
    let mut ids = plan.subkeys().unwrap();
    let artifact = suite.json(&["artifacts", "show", "tiny"]);
    let container = &artifact["manifest"]["container"];
    let mut salt = [0; 16];
    hex::decode_to_slice(container["salt"].as_str().unwrap(), &mut salt).unwrap();
    for region in container["units"].as_array().unwrap() {
        for unit in 0..region["count"].as_u64().unwrap() {
            let region = u8::try_from(region["region"].as_u64().unwrap()).unwrap();
            ids.push(SubkeyId {
                component: Component::Model,
                label: Label::ContainerUnit { salt, region, unit },
            });
        }
    }
    let mut secrets: BTreeSet<[u8; 32]> = ids
        .iter()
        .map(|id| *key.subkey(id).unwrap().expose())
        .collect();
    secrets.insert(*key.expose());
    secrets
}

/// Whether any of the 32-byte secrets is in `bytes`, at any offset.
fn finds(bytes: &[u8], needles: &BTreeSet<[u8; 32]>) -> bool {
    let mut first = [false; 65536];
    for needle in needles {
        first[usize::from(u16::from_le_bytes([needle[0], needle[1]]))] = true;
    }
    bytes.windows(32).any(|window| {
        first[usize::from(u16::from_le_bytes([window[0], window[1]]))] && needles.contains(window)
    })
}

fn each_file(folder: &Path, see: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            each_file(&path, see);
        } else {
            see(&path);
        }
    }
}
