//! The reference's blobs, the bad ones, and every altered byte.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says why it is skipped"
)]

use std::path::{Path, PathBuf};

use model_key::{ModelKey, SubkeySource};
use proptest::prelude::*;
use secret::Secret;
use serde_json::Value;
use sha2::{Digest, Sha256};
use trusted_blob::{
    BlobError, BlobOpener, BlobSealer, DEFAULT_CHUNK, Dtype, Payload, PayloadError, PayloadWriter,
    TrustedTensor, decode, encode,
};

fn fixtures() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if !folder.is_dir() {
        eprintln!("skipped: no fixtures at {}", folder.display());
        return None;
    }
    Some(folder)
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn key(folder: &Path, name: &Value) -> ModelKey {
    let index = json(&folder.join("keys/index.json"));
    let text = &index["keys"][name.as_str().unwrap()]["secret"];
    ModelKey::new(Secret::fill_with(|bytes| {
        hex::decode_to_slice(text.as_str().unwrap(), bytes).unwrap()
    }))
}

fn filled(byte: u8) -> ModelKey {
    ModelKey::new(Secret::fill_with(|bytes| bytes.fill(byte)))
}

#[test]
fn the_reference_s_blobs_open_and_are_written_alike() {
    let Some(folder) = fixtures() else { return };
    let index = json(&folder.join("blob/index.json"));
    for case in index["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let read =
            |field: &str| std::fs::read(folder.join("blob").join(case[field].as_str().unwrap()));
        let (blob, payload) = (read("blob").unwrap(), read("payload").unwrap());
        let key = key(&folder, &case["key"]);
        let opened = decode(&key, &blob).unwrap();
        assert_eq!(opened.expose(), payload, "{name}");

        let opener = BlobOpener::new(&key, &blob, blob.len() as u64).unwrap();
        let header = opener.header();
        assert_eq!(header.chunks, case["chunks"].as_u64().unwrap(), "{name}");
        assert_eq!(hex::encode(header.salt), case["salt"].as_str().unwrap());
        let subkey = key.subkey(&header.subkey_id()).unwrap();
        assert_eq!(
            hex::encode(subkey.expose()),
            case["blob_key"].as_str().unwrap()
        );

        let chunk = case["chunk"].as_u64().unwrap();
        let ours = encode(&key, header.salt, chunk, &payload).unwrap();
        assert_eq!(ours, blob, "{name}");
        assert_eq!(
            hex::encode(Sha256::digest(&ours)),
            case["blob_sha256"].as_str().unwrap()
        );

        let Some(entries) = case["entries"].as_object() else {
            assert!(Payload::parse(opened).is_err(), "{name}");
            continue;
        };
        let parsed = Payload::parse(opened).unwrap();
        let listed: Vec<String> = parsed
            .files()
            .map(|(path, _)| format!("file/{path}"))
            .chain(parsed.tensors().map(|(tensor, _)| tensor.to_owned()))
            .collect();
        let named = entries.keys().filter(|name| *name != "_empty");
        assert_eq!(listed.len(), named.clone().count(), "{name}");
        assert!(named.clone().all(|entry| listed.contains(entry)), "{name}");

        let mut writer = PayloadWriter::new();
        for (path, content) in parsed.files() {
            writer.file(path, content).unwrap();
        }
        for (tensor, entry) in parsed.tensors() {
            writer.tensor(tensor, entry).unwrap();
        }
        assert_eq!(writer.finish().unwrap().expose(), payload, "{name}");
    }
}

#[test]
fn the_bad_blobs_are_refused_with_their_reason() {
    let Some(folder) = fixtures() else { return };
    let index = json(&folder.join("bad/index.json"));
    let read_blob = |case: &Value| {
        let blob = std::fs::read(folder.join("bad").join(case["path"].as_str().unwrap())).unwrap();
        let payload = decode(&key(&folder, &case["key"]), &blob).map_err(|e| e.to_string())?;
        Payload::parse(payload).map_err(|e| e.to_string())
    };
    let of_blobs = |list: &'static str| {
        let cases = index[list].as_array().unwrap().clone();
        cases
            .into_iter()
            .filter(|case| case["id"].as_str().unwrap().starts_with("blob/"))
            .collect::<Vec<_>>()
    };
    let controls = of_blobs("controls");
    assert_eq!(controls.len(), 1);
    assert!(controls.iter().all(|case| read_blob(case).is_ok()));

    let cases = of_blobs("cases");
    assert_eq!(cases.len(), 25);
    for case in cases {
        let id = case["id"].as_str().unwrap();
        let reason = read_blob(&case).expect_err(id);
        let expected = match id.strip_prefix("blob/").unwrap() {
            "truncated" => "does not authenticate",
            "last-chunk-dropped" => "its header makes it",
            "swapped-chunks" | "repeated-chunk" | "flipped-header-byte" => "does not authenticate",
            "fewer-chunks" | "trailing-data" | "flipped-ciphertext" | "flipped-tag" => {
                "does not authenticate"
            }
            "header-respaced" => "header at offset 14: is not in the canonical form",
            "cut-in-header" => "header at offset 14: needs",
            "wrong-magic" => "magic at offset 0: is not KLLMBLOB1",
            "empty" => "magic at offset 0: needs 10 bytes, 0 are left",
            "magic-only" => "header length at offset 10: needs 4 bytes",
            "header-length-huge" => "header at offset 14: length",
            "zero-chunks" | "zero-chunks-with-data" | "negative-chunks" => {
                "chunks at offset 14: is absent or not a whole number from 1"
            }
            "chunk-size-huge" => "chunk at offset 14: is absent or not a whole number from 1",
            "header-not-json" => "header at offset 14: is not a JSON object",
            "header-not-utf8" => "header at offset 14: is not UTF-8",
            "header-without-salt" => "salt at offset 14: is absent",
            "wrong-key" => "sealed under the key 02e8-f278-c518-dfcd, not d546-0025-db06-4519",
            "file-outside" => "is not a plain relative path",
            "not-tensors" => "payload header",
            other => panic!("no expectation for {other}"),
        };
        assert!(reason.contains(expected), "{id}: {reason}");
    }
}

#[test]
fn a_blob_is_sealed_and_opened_chunk_by_chunk() {
    let key = filled(1);
    let payload: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
    let mut sealer = BlobSealer::new(&key, [9; 16], 300, 1000).unwrap();
    let mut blob = sealer.preamble();
    while let Some(range) = sealer.next_payload_range() {
        let mut chunk = payload[range.start as usize..range.end as usize].to_vec();
        let tag = sealer.seal_next(&mut chunk).unwrap();
        blob.extend(chunk);
        blob.extend(tag);
    }
    assert!(matches!(
        sealer.seal_next(&mut []),
        Err(BlobError::Chunk { .. })
    ));
    assert_eq!(blob.len() as u64, sealer.sealed_length());
    assert_eq!(blob, encode(&key, [9; 16], 300, &payload).unwrap());

    let opener = BlobOpener::new(&key, &blob[..150], blob.len() as u64).unwrap();
    assert_eq!((opener.chunks(), opener.payload_length()), (4, 1000));
    for index in (0..4).rev() {
        let range = opener.sealed_range(index);
        let mut sealed = blob[range.start as usize..range.end as usize].to_vec();
        let range = opener.payload_range(index);
        let opened = opener.open_chunk(index, &mut sealed).unwrap();
        assert_eq!(opened, &payload[range.start as usize..range.end as usize]);
    }
    let mut other = vec![0; 316];
    assert!(matches!(
        opener.open_chunk(0, &mut other),
        Err(BlobError::Altered {
            index: 0,
            chunks: 4
        })
    ));
    assert!(matches!(
        opener.open_chunk(0, &mut other[..315]),
        Err(BlobError::Chunk { .. })
    ));
}

#[test]
fn every_altered_byte_every_cut_and_every_addition_is_refused() {
    let key = filled(1);
    let payload: Vec<u8> = (0..200).collect();
    let blob = encode(&key, [3; 16], 64, &payload).unwrap();
    assert_eq!(decode(&key, &blob).unwrap().expose(), payload);
    for at in 0..blob.len() {
        for bit in [1, 0x20, 0x80] {
            let mut altered = blob.clone();
            altered[at] ^= bit;
            assert!(decode(&key, &altered).is_err(), "byte {at}");
        }
        assert!(decode(&key, &blob[..at]).is_err(), "cut at {at}");
    }
    for extra in 1..100 {
        let longer = [&blob[..], &vec![0; extra]].concat();
        assert!(decode(&key, &longer).is_err(), "{extra} more");
    }
}

#[test]
fn other_keys_and_chunk_sizes_are_refused() {
    let blob = encode(&filled(1), [3; 16], 64, b"payload").unwrap();
    assert!(matches!(
        decode(&filled(2), &blob),
        Err(BlobError::Fingerprint { .. })
    ));
    for chunk in [0, (1 << 30) + 1, u64::MAX] {
        let refused = encode(&filled(1), [3; 16], chunk, b"payload").map(|_| ());
        assert_eq!(refused, Err(BlobError::ChunkSize(chunk)));
    }
}

#[test]
fn payload_names_and_shapes_are_checked() {
    let bytes = [1, 2, 3, 4];
    let mut writer = PayloadWriter::new();
    for bad in [
        "",
        "/etc/passwd",
        "../x",
        "a/../b",
        "a//b",
        "a/",
        ".",
        "./a",
        "a\\b",
        "C:x",
        "a\nb",
        "a\0",
    ] {
        assert_eq!(
            writer.file(bad, &bytes),
            Err(PayloadError::Path(bad.to_owned()))
        );
    }
    writer.file("a", &bytes).unwrap();
    assert!(matches!(
        writer.file("a", &bytes),
        Err(PayloadError::Repeated(_))
    ));
    let tensor = TrustedTensor {
        dtype: Dtype::F32,
        shape: &[2],
        data: &bytes,
    };
    assert!(matches!(
        writer.tensor("t", tensor),
        Err(PayloadError::Tensor(_))
    ));
    for reserved in ["_empty", "file/x", "__metadata__"] {
        let tensor = TrustedTensor {
            shape: &[1],
            ..tensor
        };
        assert!(writer.tensor(reserved, tensor).is_err());
    }
    writer.file("a/b", &bytes).unwrap();
    assert!(matches!(
        writer.finish().map(|_| ()),
        Err(PayloadError::FileAndFolder(folder)) if folder == "a"
    ));

    let archive = |header: &str, data: &[u8]| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        Payload::parse(secret::SecretBytes::new(bytes)).map(|_| ())
    };
    let file = |name: &str, dtype: &str, shape: &str| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,4]}}"#)
    };
    let one = |entry: &str| archive(&format!("{{{entry}}}"), &bytes);
    assert_eq!(one(&file("file/a", "U8", "[4]")), Ok(()));
    assert!(matches!(
        one(&file("file/a", "I8", "[4]")),
        Err(PayloadError::NotBytes(_))
    ));
    assert!(matches!(
        one(&file("file/a", "U8", "[2,2]")),
        Err(PayloadError::NotBytes(_))
    ));
    assert!(matches!(
        one(&file("file/../a", "U8", "[4]")),
        Err(PayloadError::Path(_))
    ));
    assert_eq!(one(&file("_empty", "U8", "[4]")), Err(PayloadError::Empty));
    let twice = format!("{},{}", file("t", "U8", "[4]"), file("t", "U8", "[4]"));
    assert!(matches!(one(&twice), Err(PayloadError::Decode(_))));
    // A hole, and bytes after the last tensor.
    assert!(archive(&format!("{{{}}}", file("t", "U8", "[4]")), &[0; 5]).is_err());
    assert!(archive("{}", &bytes).is_err());
}

#[test]
fn printing_a_payload_shows_names_only() {
    let mut writer = PayloadWriter::new();
    writer.file("tokenizer.json", b"MARKER").unwrap();
    let payload = Payload::parse(writer.finish().unwrap()).unwrap();
    let text = format!("{payload:?}");
    assert!(
        text.contains("tokenizer.json") && !text.contains("MARK"),
        "{text}"
    );
    assert!(!text.contains("77, 65"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encoding_round_trips(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        chunk in prop_oneof![1..40u64, Just(DEFAULT_CHUNK)],
        salt in any::<[u8; 16]>(),
    ) {
        let key = filled(1);
        let blob = encode(&key, salt, chunk, &payload).unwrap();
        let opened = decode(&key, &blob).unwrap();
        prop_assert_eq!(opened.expose(), payload);
    }
}
