//! Cloud exports, relocking, catalog manifests and store records.

use std::path::Path;

use checkpoint::{Root, TensorSource};
use model_key::SubkeySource;
use sealing::{
    CatalogEntry, Monitor, Outcome, SealMetadata, SealOptions, StoreRecord, UnlockingSource,
    catalog_manifest, check_catalog, cloud_export, relock, seal, show, unlock,
};
use sha2::{Digest, Sha256};
use weight_transform::Transform;

use crate::fixtures;

fn hash_of(path: &Path) -> String {
    hex::encode(Sha256::digest(std::fs::read(path).unwrap()))
}

#[test]
fn cloud_exports_equal_the_references() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let index = fixtures::json(&fixtures.join("cloud/index.json"));
    for export in index["exports"].as_array().unwrap() {
        let id = export["case"].as_str().unwrap();
        let key = fixtures::key(&fixtures, export["key"].as_str().unwrap());
        let sealed = fixtures.join("sealed/cases").join(id);
        let work = tempfile::tempdir().unwrap();
        let target = work.path().join("cloud");
        let keys = Some(&key as &dyn SubkeySource);
        let report = cloud_export(&sealed, keys, &target, &Monitor::none()).unwrap();
        let expected: Vec<&str> = export["written"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_str().unwrap())
            .collect();
        assert_eq!(fixtures::files(&target), expected, "{id}");
        let mut left: Vec<&str> = report
            .left_out
            .iter()
            .map(|(path, _)| path.as_str())
            .collect();
        left.sort_unstable();
        let listed: Vec<&str> = export["left_out"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_str().unwrap())
            .collect();
        assert_eq!(left, listed, "{id}");
        for (path, file) in export["files"].as_object().unwrap() {
            assert_eq!(hash_of(&target.join(path)), file["sha256"], "{id}: {path}");
        }
    }
}

#[test]
fn a_relocked_directory_unlocks_to_the_same_weights() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    for (case, key) in [("qwen3-f32.perm.lock-v1", "b"), ("h3.perm.lock-v1", "b")] {
        let key = fixtures::key(&fixtures, key);
        let sealed = fixtures.join("sealed/cases").join(case);
        let work = tempfile::tempdir().unwrap();
        let [first, again, second] =
            ["first", "again", "second"].map(|name| work.path().join(name));
        unlock(&sealed, &key, &first, &Monitor::none()).unwrap();
        relock(&sealed, &key, &again, &Monitor::none()).unwrap();
        assert_eq!(show(&again).unwrap().lock.as_deref(), Some("v2"));
        unlock(&again, &key, &second, &Monitor::none()).unwrap();
        assert_eq!(fixtures::files(&first), fixtures::files(&second));
        for path in fixtures::files(&first) {
            assert_eq!(
                hash_of(&first.join(&path)),
                hash_of(&second.join(&path)),
                "{path}"
            );
        }
        assert!(relock(&again, &key, &work.path().join("third"), &Monitor::none()).is_err());
    }
}

#[test]
fn an_unlocking_source_reads_what_an_unlocked_copy_holds() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let key = fixtures::key(&fixtures, "b");
    let sealed = fixtures.join("sealed/cases/qwen3-tied.perm.lock-v2");
    let work = tempfile::tempdir().unwrap();
    let copy = work.path().join("copy");
    unlock(&sealed, &key, &copy, &Monitor::none()).unwrap();
    let root = Root::open(&sealed).unwrap();
    let source = UnlockingSource::open(&root, "", &key).unwrap();
    let plain = checkpoint::Checkpoint::open(&copy).unwrap();
    for info in plain.tensors() {
        let mut expected = vec![0; info.bytes as usize];
        plain.read(&info.name, &mut expected).unwrap();
        let mut found = vec![0; info.bytes as usize];
        source.read(&info.name, &mut found).unwrap();
        assert!(found == expected, "{}", info.name);
        for (from, to) in [(0, 1), (3, 17), (5, expected.len())] {
            let mut part = vec![0; to - from];
            source.read_at(&info.name, from as u64, &mut part).unwrap();
            assert!(part == expected[from..to], "{} {from}..{to}", info.name);
        }
    }
    let other = fixtures::key(&fixtures, "a");
    assert!(UnlockingSource::open(&root, "", &other).is_err());
}

#[test]
fn a_catalog_check_lists_what_differs() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let clean = check_catalog(&fixtures.join("catalog/Tiny-kllm")).unwrap();
    assert!(clean.is_clean(), "{clean:?}");
    let index = fixtures::json(&fixtures.join("catalog/index.json"));
    let altered = check_catalog(&fixtures.join("catalog/Tiny-kllm-altered")).unwrap();
    let mut all = [altered.missing, altered.extra, altered.differing].concat();
    all.sort();
    assert_eq!(serde_json::json!(all), index["altered"]["differences"]);
}

#[test]
fn a_catalog_manifest_is_written_as_the_reference_writes_it() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let directory = fixtures.join("catalog/Tiny-kllm");
    let reference = std::fs::read_to_string(directory.join("kllm-manifest.json")).unwrap();
    let entry = CatalogEntry {
        name: "Tiny-kllm".to_owned(),
        repo_id: "org/Tiny".to_owned(),
        revision: "d".repeat(40),
        license: "apache-2.0".to_owned(),
        modality: "text".to_owned(),
        client: true,
        key_version: 1,
        kllm: "0.1.0".to_owned(),
        embargo_days: 0,
        gated: true,
    };
    assert_eq!(catalog_manifest(&directory, &entry).unwrap(), reference);
    let index = fixtures::json(&fixtures.join("catalog/index.json"));
    let digest = hex::encode(Sha256::digest(reference.as_bytes()));
    assert_eq!(index["manifest_sha256"], digest);
}

#[test]
fn sealed_directories_are_recognised_and_others_are_not() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let recognised = |path: &str| {
        let root = Root::open(&fixtures.join("sealed").join(path)).unwrap();
        SealMetadata::recognise(&root).unwrap()
    };
    assert_eq!(recognised("inputs/qwen2"), None);
    assert_eq!(recognised("inputs/h3"), None);
    assert_eq!(recognised("inputs/zimage"), None);
    let model = recognised("cases/qwen2.perm.lock-v2").unwrap();
    assert_eq!(model.file, "config.json");
    let pipeline = recognised("cases/h3.perm.lock-v2").unwrap();
    assert_eq!(pipeline.file, "kllm.json");
}

#[test]
fn a_report_accounts_for_every_file_and_a_record_notices_changes() {
    let Some(fixtures) = fixtures::folder() else {
        return;
    };
    let key = fixtures::key(&fixtures, "a");
    let work = tempfile::tempdir().unwrap();
    let source = work.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let input = fixtures.join("sealed/inputs/qwen3-tied");
    for path in fixtures::files(&input)
        .iter()
        .filter(|path| !path.contains('/'))
    {
        std::fs::copy(input.join(path), source.join(path)).unwrap();
    }
    for name in [
        "w.gguf",
        "w.onnx",
        "w.h5",
        "w.msgpack",
        "consolidated.00.pth",
        "x.safetensors",
    ] {
        std::fs::write(source.join(name), "weights").unwrap();
    }
    let options = SealOptions {
        transform: Transform::Perm,
        lock: None,
        client: false,
        salt: [3; 16],
    };
    let target = work.path().join("sealed");
    let report = seal(&source, &key, options, &target, &Monitor::none()).unwrap();
    for path in fixtures::files(&source) {
        let found = report.files.iter().find(|file| file.path == path).unwrap();
        let copied = target.join(&path).exists();
        let expected = match found.outcome {
            Outcome::Copied | Outcome::Written => true,
            Outcome::Secret | Outcome::LeftOut(_) | Outcome::Sealed => false,
        };
        assert_eq!(copied, expected, "{path}: {:?}", found.outcome);
    }
    for file in &report.written {
        assert_eq!(
            hash_of(&target.join(&file.path)),
            file.sha256.to_hex(),
            "{}",
            file.path
        );
    }
    assert_eq!(report.written.len(), fixtures::files(&target).len());

    let record = StoreRecord::of(&target).unwrap();
    let record = StoreRecord::from_json("record", record.to_json().as_bytes()).unwrap();
    assert!(record.check(&target).unwrap().is_clean());
    std::fs::write(target.join("README.md"), "other").unwrap();
    std::fs::write(target.join("new"), "").unwrap();
    std::fs::remove_file(target.join("merges.txt")).unwrap();
    let check = record.check(&target).unwrap();
    assert_eq!(check.differing, ["README.md"]);
    assert_eq!(check.extra, ["new"]);
    assert_eq!(check.missing, ["merges.txt"]);
}
