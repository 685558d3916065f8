//! The reference's files: read, refused, and laid out again to the byte.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test may panic and says when it is skipped"
)]

use std::path::{Path, PathBuf};

use checkpoint::json::{self, Style, Value};
use checkpoint::{Checkpoint, CheckpointError, Header, PlannedShard, TensorSource, TensorSpec};

fn fixtures() -> Option<PathBuf> {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if !path.is_dir() {
        eprintln!("skipped: {} is absent", path.display());
        return None;
    }
    Some(path.to_owned())
}

fn read_json(path: &Path) -> Value {
    json::parse(&std::fs::read(path).unwrap()).unwrap()
}

/// The message and its sources, as a caller prints them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        text = format!("{text}: {next}");
        source = next.source();
    }
    text
}

#[test]
fn every_bad_safetensors_file_is_refused_by_name() {
    let Some(fixtures) = fixtures() else { return };
    let cases = [
        ("header-past-end", "past the end of the file"),
        ("header-length-max", "past the end of the file"),
        ("short", "too few for the header length field"),
        ("overlap", "tensor \"b\" overlaps tensor \"a\""),
        ("hole", "hole of 4 bytes before tensor \"b\""),
        ("duplicate", "tensor \"a\" appears twice"),
        ("unknown-dtype", "tensor \"a\": unknown variant `F12`"),
        ("not-utf8", "not UTF-8 (byte 2)"),
        (
            "past-end",
            "tensor \"a\" ends at data byte 16, past the file's 8",
        ),
        (
            "shape-mismatch",
            "tensor \"a\": F32 of shape [3] does not fit its 8 bytes",
        ),
    ];
    for (name, message) in cases {
        let path = fixtures.join(format!("bad/safetensors/{name}.safetensors"));
        let error = Header::parse_file(&std::fs::read(path).unwrap()).unwrap_err();
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
    let valid = fixtures.join("bad/safetensors/valid.safetensors");
    let header = Header::parse_file(&std::fs::read(valid).unwrap()).unwrap();
    assert_eq!(header.tensors()[0].name, "t");
    let listed = std::fs::read_dir(fixtures.join("bad/safetensors")).unwrap();
    assert_eq!(listed.count(), cases.len() + 1);
}

#[test]
fn bad_directories_are_refused_by_name() {
    let Some(fixtures) = fixtures() else { return };
    let cases = [
        (
            "index-missing-shard",
            "names the shard \"model-00002-of-00002.safetensors\"",
        ),
        ("tensor-not-in-index", "holds tensor \"model.norm.weight\""),
        ("index-traversal/model", "it leaves the directory"),
        ("no-weights", "no safetensors files"),
    ];
    for (name, message) in cases {
        let error = Checkpoint::open(&fixtures.join("bad/checkpoint").join(name)).unwrap_err();
        let text = chain(&error);
        assert!(text.contains(message), "{name}: {text}");
    }
    let valid = Checkpoint::open(&fixtures.join("bad/checkpoint/valid")).unwrap();
    assert_eq!(valid.shards().len(), 2);
    assert!(valid.strays().is_empty());
}

#[test]
fn json_is_written_as_python_writes_it() {
    let Some(fixtures) = fixtures() else { return };
    let cases = read_json(&fixtures.join("vectors/json-texts.json"));
    for case in cases.get("cases").unwrap().as_array().unwrap() {
        let text = |name: &str| case.get(name).unwrap().as_str().unwrap();
        let value = json::parse(text("input").as_bytes()).unwrap();
        assert_eq!(json::write(&value, Style::Indented), text("indent2"));
        assert_eq!(json::write(&value, Style::Utf8), text("compact_utf8"));
        assert_eq!(json::write(&value, Style::Sorted), text("sorted"));
    }
}

/// Every file that the reference wrote is laid out by the same rule, and its header and index come
/// out again to the byte.
#[test]
fn sealed_layouts_and_indexes_repeat() {
    let Some(fixtures) = fixtures() else { return };
    let index = read_json(&fixtures.join("sealed/index.json"));
    let mut files = 0;
    for case in index.get("cases").unwrap().as_array().unwrap() {
        let folder = case.get("sealed").unwrap().as_str().unwrap();
        let folder = fixtures.join("sealed").join(folder);
        let root = checkpoint::Root::open(&folder).unwrap();
        for entry in root.list().unwrap() {
            if entry.path.ends_with(".safetensors") {
                let bytes = root.read_file(&entry.path, u64::MAX).unwrap();
                let header = Header::parse_file(&bytes).unwrap();
                if entry.path.contains("vae") || entry.path.contains("diffusion") {
                    continue; // Copied, or rewritten in the source's layout.
                }
                let tensors = header.tensors().iter().map(TensorSpec::from).collect();
                let plan = PlannedShard::new("x", tensors).unwrap();
                let written = plan.header(header.metadata(), 0);
                assert_eq!(
                    written,
                    bytes[..header.data_start() as usize],
                    "{}/{}",
                    folder.display(),
                    entry.path
                );
                files += 1;
            }
            if entry.path == "model.safetensors.index.json" {
                let text = root.read_file(&entry.path, u64::MAX).unwrap();
                let index = checkpoint::Index::parse(&text).unwrap();
                let entries = index.weight_map().iter();
                let again =
                    checkpoint::Index::encode(entries.map(|(t, s)| (t.as_str(), s.as_str())));
                assert_eq!(again.as_bytes(), text, "{}", folder.display());
            }
        }
    }
    assert!(files > 50, "only {files} files");
}

#[test]
fn every_input_opens_and_every_tensor_reads_the_same_from_any_side() {
    let Some(fixtures) = fixtures() else { return };
    let inputs = fixtures.join("sealed/inputs");
    let mut opened = 0;
    for entry in std::fs::read_dir(&inputs).unwrap() {
        let folder = entry.unwrap().path();
        let components = ["", "transformer", "text_encoder", "video_vae", "vae"];
        for component in components {
            if !folder.join(component).join("config.json").exists() {
                continue;
            }
            let source = if component.is_empty() {
                Checkpoint::open(&folder)
            } else {
                Checkpoint::open_component(&folder, component)
            };
            let source = source.unwrap();
            opened += 1;
            for info in source.tensors() {
                let mut whole = vec![0; info.bytes as usize];
                source.read(&info.name, &mut whole).unwrap();
                let mut part = vec![0; whole.len() / 2];
                let offset = (whole.len() - part.len()) as u64;
                source.read_at(&info.name, offset, &mut part).unwrap();
                assert_eq!(part, whole[offset as usize..]);
                let file = std::fs::read(
                    folder
                        .join(component)
                        .join(source.shards()[info.shard].name()),
                )
                .unwrap();
                let parsed = safetensors::SafeTensors::deserialize(&file).unwrap();
                assert_eq!(parsed.tensor(&info.name).unwrap().data(), whole);
            }
        }
    }
    assert!(opened >= 20, "only {opened} opened");
    let missing = Checkpoint::open(&inputs.join("h3")).unwrap_err();
    assert!(matches!(missing, CheckpointError::NoWeights { .. }));
}
