//! A sealed checkpoint is downloaded as it was registered, or not at all.

use std::fs;
use std::path::{Path, PathBuf};

use chancery_tests::{Suite, data};
use p256::pkcs8::DecodePublicKey as _;

use crate::path::seal;

#[test]
fn a_fetched_checkpoint_verifies_and_an_altered_blob_is_refused() {
    let suite = Suite::start();
    let path = |name: &str| suite.state().join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let key = text(&path("model.key"));
    suite.ok(&["keys", "generate", "-o", &key]);
    suite.ok(&["keys", "import", &key, "--name", "demo"]);
    let options = ["--lock", "v2", "--no-container"];
    let job = seal(&suite, "tiny-qwen3", "demo", "tiny", &options);

    let fetched = path("fetched");
    let answer = suite.json(&["artifacts", "fetch", "tiny", "-o", &text(&fetched)]);
    assert_eq!(answer["digest"], job["artifacts"][0]["digest"]);
    for file in answer["files"].as_array().unwrap() {
        let name = file["path"].as_str().unwrap();
        let size = fs::metadata(fetched.join(name)).unwrap().len();
        assert_eq!(file["size"], size, "{name}");
    }
    let bundle = fs::read(fetched.join(receipt::MODEL_SIGNATURE)).unwrap();
    let public = fs::read_to_string(path("model-signing.pub")).unwrap();
    let public = p256::ecdsa::VerifyingKey::from_public_key_pem(&public).unwrap();
    let files = answer["files"].as_array().unwrap().iter();
    let files = files.map(|file| receipt::Resource {
        name: file["path"].as_str().unwrap().to_owned(),
        sha256: file["sha256"].as_str().unwrap().parse().unwrap(),
    });
    let mut signed: Vec<_> = files
        .filter(|file| file.name != receipt::MODEL_SIGNATURE)
        .collect();
    receipt::verify_model(&bundle, &signed, &public).unwrap();
    signed.pop();
    receipt::verify_model(&bundle, &signed, &public).unwrap_err();
    let base = text(&data().join("tiny-qwen3"));
    let verify = ["checkpoint", "verify"];
    let more = [&text(&fetched), "--base", &base, "--key", &key];
    suite.ok(&[&verify[..], &more].concat());
    let again = suite.refused(&["artifacts", "fetch", "tiny", "-o", &text(&fetched)]);
    assert!(again.contains("exists"), "{again}");

    let good = fs::read(fetched.join("config.json")).unwrap();
    let blob = stored(&path("data/storage-node"), &good);
    let mut bad = good;
    bad[0] ^= 1;
    fs::remove_file(&blob).unwrap();
    fs::write(&blob, bad).unwrap();
    let before = names(suite.state());
    let reason = suite.refused(&["artifacts", "fetch", "tiny", "-o", &text(&path("altered"))]);
    assert!(reason.contains("config.json"), "{reason}");
    assert_eq!(names(suite.state()), before);
}

/// The stored blob of these bytes.
pub fn stored(folder: &Path, bytes: &[u8]) -> PathBuf {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if fs::read(&path).unwrap() == bytes {
                return path;
            }
        }
    }
    panic!("no blob of these bytes is stored");
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
