//! The reference's fixtures, read in place.

use std::path::{Path, PathBuf};

use model_key::ModelKey;
use secret::Secret;
use serde_json::Value;

/// The fixtures' folder; `None`, with a message, where it is absent.
pub fn folder() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures");
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: {} is absent", path.display());
    None
}

/// A JSON file of the fixtures.
pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A key by its name in `keys/index.json`.
pub fn key(fixtures: &Path, name: &str) -> ModelKey {
    let index = json(&fixtures.join("keys/index.json"));
    let keys = index["keys"].as_object().map_or_else(
        || {
            let list = index["keys"].as_array().unwrap();
            list.iter().find(|key| key["name"] == name).unwrap().clone()
        },
        |keys| keys[name].clone(),
    );
    let text = ["key", "hex", "secret"]
        .iter()
        .find_map(|field| keys[*field].as_str())
        .unwrap();
    let bytes = hex::decode(text).unwrap();
    ModelKey::new(Secret::fill_with(|out| out.copy_from_slice(&bytes)))
}

/// The paths of all files below a folder.
pub fn files(root: &Path) -> Vec<String> {
    fn walk(root: &Path, at: &Path, out: &mut Vec<String>) {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, out);
            } else {
                let relative = path.strip_prefix(root).unwrap();
                out.push(relative.to_str().unwrap().to_owned());
            }
        }
    }
    let mut out = Vec::new();
    walk(root, root, &mut out);
    out.sort();
    out
}
