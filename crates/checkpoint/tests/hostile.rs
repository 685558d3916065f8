//! Hostile directories and headers.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use checkpoint::header::{self, MAX_HEADER};
use checkpoint::{Checkpoint, CheckpointError, Dtype, FileKind, Header, HeaderError, Root};
use proptest::prelude::*;

fn shard(tensors: &[(&str, u64)]) -> Vec<u8> {
    let shapes: Vec<[u64; 1]> = tensors.iter().map(|(_, n)| [*n]).collect();
    let listed = tensors.iter().zip(&shapes);
    let listed = listed.map(|((name, n), shape)| (*name, Dtype::U8, shape.as_slice(), *n));
    let mut file = header::encode(&[], listed, 0);
    let length: u64 = tensors.iter().map(|(_, n)| n).sum();
    file.extend((0..length).map(|at| at as u8));
    file
}

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap();
}

fn text(error: &CheckpointError) -> String {
    let source = std::error::Error::source(error);
    source.map_or(error.to_string(), |source| format!("{error}: {source}"))
}

#[test]
fn a_stray_shard_is_reported_and_never_read() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.safetensors", &shard(&[("x", 3)]));
    write(folder.path(), "stray.safetensors", b"not even a header");
    let index = br#"{"weight_map": {"x": "a.safetensors"}}"#;
    write(folder.path(), "model.safetensors.index.json", index);
    let opened = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(opened.strays(), ["stray.safetensors"]);
    assert_eq!(opened.shards().len(), 1);
}

#[test]
fn links_pipes_and_swapped_names_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "secret.safetensors", &shard(&[("x", 3)]));
    write(outside.path(), "config.json", b"{}");
    let folder = tempfile::tempdir().unwrap();
    let target = outside.path().join("secret.safetensors");
    symlink(&target, folder.path().join("model.safetensors")).unwrap();
    symlink(outside.path(), folder.path().join("transformer")).unwrap();
    symlink("model.safetensors", folder.path().join("inner")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(text(&error).contains("model.safetensors"), "{error}");
    assert!(
        matches!(error, CheckpointError::NotRegular { .. }),
        "{error}"
    );
    let error = Checkpoint::open_component(folder.path(), "transformer").unwrap_err();
    assert!(
        matches!(error, CheckpointError::NotRegular { .. }),
        "{error:?}"
    );
    let error = Checkpoint::open_component(folder.path(), "../x").unwrap_err();
    assert!(matches!(error, CheckpointError::Path { .. }), "{error:?}");

    let pipe = folder.path().join("config.json");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    let root = Root::open(folder.path()).unwrap();
    let error = root.read_json("config.json").unwrap_err();
    assert!(text(&error).contains("pipe"), "{error}");
    let error = root.read_json("transformer/config.json").unwrap_err();
    assert!(
        matches!(error, CheckpointError::NotRegular { .. }),
        "{error:?}"
    );
    let kinds: Vec<_> = root
        .list()
        .unwrap()
        .into_iter()
        .map(|e| (e.path, e.kind))
        .collect();
    let kind = |path: &str| kinds.iter().find(|(p, _)| p == path).unwrap().1;
    assert_eq!(kind("config.json"), FileKind::Special);
    assert_eq!(kind("transformer"), FileKind::Symlink);
    assert_eq!(kinds.len(), 4, "nothing behind the links is listed");
}

#[test]
fn index_values_are_plain_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "../x.safetensors",
        "/x.safetensors",
        "a/x.safetensors",
        "a\\\\x.safetensors",
        "x.bin",
        "",
    ] {
        let index = format!(r#"{{"weight_map": {{"t": "{name}"}}}}"#);
        write(
            folder.path(),
            "model.safetensors.index.json",
            index.as_bytes(),
        );
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(
            text(&error).contains("tensor \"t\" is in"),
            "{name}: {}",
            text(&error)
        );
    }
    for (index, message) in [
        ("[]", "invalid type"),
        (r#"{"weight_map": {}}"#, "empty"),
        (r#"{"weight_map": {"a": 1}}"#, "tensor \"a\""),
        (
            r#"{"weight_map": {"a": "a.safetensors", "a": "a.safetensors"}}"#,
            "appears twice",
        ),
        ("{}", "missing field `weight_map`"),
    ] {
        write(
            folder.path(),
            "model.safetensors.index.json",
            index.as_bytes(),
        );
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(text(&error).contains(message), "{index}: {}", text(&error));
    }
}

#[test]
fn shards_must_agree_with_each_other_and_with_their_numbers() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "model-00001-of-00002.safetensors",
        &shard(&[("x", 3)]),
    );
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        text(&error).contains("model-00002-of-00002.safetensors"),
        "{error}"
    );
    write(
        folder.path(),
        "model-00002-of-00002.safetensors",
        &shard(&[("x", 3)]),
    );
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        matches!(error, CheckpointError::TwoShards { .. }),
        "{error}"
    );
    let index = br#"{"weight_map": {"x": "model-00001-of-00002.safetensors",
        "y": "model-00001-of-00002.safetensors"}}"#;
    write(folder.path(), "model.safetensors.index.json", index);
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        matches!(error, CheckpointError::NotInShard { .. }),
        "{error}"
    );
}

#[test]
fn a_file_that_shrinks_or_grows_fails_the_read() {
    use checkpoint::TensorSource;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "model.safetensors", &shard(&[("x", 300)]));
    let opened = Checkpoint::open(folder.path()).unwrap();
    let before = opened.shards()[0].digest(|_| {}).unwrap();
    assert_eq!(before.bytes, opened.shards()[0].file().length());
    let path = folder.path().join("model.safetensors");
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(before.bytes + 1).unwrap();
    let error = opened.shards()[0].digest(|_| {}).unwrap_err();
    assert!(matches!(error, CheckpointError::Changed { .. }), "{error}");
    file.set_len(before.bytes - 1).unwrap();
    let error = opened.read("x", &mut [0; 300]).unwrap_err();
    assert!(matches!(error, CheckpointError::Changed { .. }), "{error}");
}

#[test]
fn header_bombs_are_refused_before_anything_is_allocated() {
    let folder = tempfile::tempdir().unwrap();
    // A sparse file that really is as long as its header claims.
    let path = folder.path().join("model.safetensors");
    write(
        folder.path(),
        "model.safetensors",
        &(MAX_HEADER + 1).to_le_bytes(),
    );
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(MAX_HEADER * 10).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(
        text(&error).contains("above the maximum"),
        "{}",
        text(&error)
    );

    let refused = |json: &str, message: &str| {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        let error = Header::parse_file(&bytes).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    };
    let huge = u64::MAX;
    refused(
        &format!(r#"{{"t":{{"dtype":"F32","shape":[{huge},{huge}],"data_offsets":[0,0]}}}}"#),
        "does not fit",
    );
    refused(
        r#"{"t":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#,
        "past the file",
    );
    refused(
        r#"{"t":{"dtype":"U8","shape":[],"data_offsets":[1,0]}}"#,
        "end before they start",
    );
    refused(
        r#"{"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}}"#,
        "tensor \"t\"",
    );
    refused(
        r#"{"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}"#,
        "unknown field `x`",
    );
    refused(
        r#"{"t":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
        "duplicate",
    );
    refused(
        r#"{"t":{"dtype":"U8","shape":[0]}}"#,
        "missing field `data_offsets`",
    );
    refused(
        r#"{"__metadata__":{"a":"1","a":"2"}}"#,
        "__metadata__: \"a\" appears twice",
    );
    refused(r#"{"__metadata__":{"a":1}}"#, "__metadata__");
    refused(&format!("{{\"{}\":1}}", "x".repeat(5000)), "5000 bytes");
    refused("{\"a\\nb\":1}", "control character");
    refused(&"[".repeat(100_000), "does not start with an object");
    refused(&format!("{{\"t\":{}", "[".repeat(100_000)), "tensor \"t\"");
    let dimensions = vec!["1"; 100].join(",");
    refused(
        &format!(r#"{{"t":{{"dtype":"U8","shape":[{dimensions}],"data_offsets":[0,1]}}}}"#),
        "more than 32 dimensions",
    );
    refused(r#"{"t":["U8",[0],[0,0]]}"#, "tensor \"t\": invalid type");
    refused(r#"{} x"#, "trailing");
}

#[test]
fn data_after_the_last_tensor_is_refused() {
    let mut file = shard(&[("x", 3)]);
    file.push(0);
    assert_eq!(
        Header::parse_file(&file),
        Err(HeaderError::Trailing { bytes: 1 })
    );
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let file = shard(&[("x", 3), ("y", 5)]);
    for length in 0..file.len() {
        assert!(
            Header::parse_file(&file[..length]).is_err(),
            "cut at {length}"
        );
    }
}

proptest! {
    #[test]
    fn what_is_accepted_the_reference_reader_accepts_too(
        bytes in prop::collection::vec(any::<u8>(), 0..40),
        at in any::<prop::sample::Index>(),
    ) {
        let mut file = shard(&[("x", 3), ("yy", 5)]);
        let at = at.index(file.len());
        let end = (at + bytes.len()).min(file.len());
        file[at..end].copy_from_slice(&bytes[..end - at]);
        if let Ok(header) = Header::parse_file(&file) {
            let reference = safetensors::SafeTensors::deserialize(&file).unwrap();
            prop_assert_eq!(header.tensors().len(), reference.len());
        }
    }
}
