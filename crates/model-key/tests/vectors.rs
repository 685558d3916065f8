//! The reference's derivations, streams and permutations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixtures;

use std::num::{NonZeroU64, NonZeroUsize};

use fixtures::{Relabelled, assert_permutation, assert_signs, folder, json, key};
use model_key::{
    CatalogEntry, Component, DrawError, Exponents, KeyStream, Label, LockVersion, ModelKey, Part,
    Path, Scope, ScopedSite, Site, SubkeyId, SubkeySource, TensorId,
};
use model_key::{Scoped, blocks, grouped, inverse, pairs, permutation, signed_permutation};
use secret::Secret;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Every label of the vectors that a typed id can render to.
fn typed(label: &str) -> Option<Label> {
    let layer = |i, site| Path::scoped(Scope::Layer(i), site);
    let tensor = |name| TensorId::new(name).unwrap();
    Some(match label {
        "perm/vocab" => Label::Permutation(Path::new(Site::Vocab)),
        "perm/residual-perm" => Label::Permutation(Path::new(Site::ResidualPerm)),
        "stream/residual" => Label::Stream(Path::new(Site::Residual)),
        "stream/residual-perm/sign" => {
            Label::Stream(Path::new(Site::ResidualPerm).then(Part::Sign))
        }
        "stream/l0/turns" => Label::Stream(layer(0, ScopedSite::Turns)),
        "stream/l31/ffn-scale" => Label::Stream(layer(31, ScopedSite::Ffn).then(Part::ScaleStream)),
        "stream/l0/e127/ffn-scale" => {
            Label::Stream(layer(0, ScopedSite::ExpertFfn(127)).then(Part::ScaleStream))
        }
        "perm/l0/kv-heads" => Label::Permutation(layer(0, ScopedSite::KvHeads)),
        "perm/l10/experts" => Label::Permutation(layer(10, ScopedSite::Experts)),
        "perm/l0/ffn/blocks" => Label::Permutation(layer(0, ScopedSite::Ffn).then(Part::Blocks)),
        "perm/l0/ffn/in3" => Label::Permutation(layer(0, ScopedSite::Ffn).then(Part::In(3))),
        "lock/v1/model.embed_tokens.weight" => {
            Label::Lock(LockVersion::V1, tensor("model.embed_tokens.weight"))
        }
        "lock/v2/model.embed_tokens.weight" => {
            Label::Lock(LockVersion::V2, tensor("model.embed_tokens.weight"))
        }
        "lock/v2/transformer/blocks.0.attn.qkv_proj.weight" => Label::Lock(
            LockVersion::V2,
            tensor("transformer/blocks.0.attn.qkv_proj.weight"),
        ),
        "l1/trusted-blob/00000000000000000000000000000000" => Label::TrustedBlob([0; 16]),
        _ => return None,
    })
}

#[test]
fn typed_labels_derive_the_reference_subkeys() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/derive.json");
    let mut compared = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let key = key(&folder, case["key"].as_str().unwrap());
        let label = case["label"].as_str().unwrap();
        let expected = case["hex"].as_str().unwrap();
        let mut apart = vec![0; case["length"].as_u64().unwrap() as usize];
        fixtures::derive(key.expose(), label, &mut apart);
        assert_eq!(hex::encode(apart), expected, "{label}");
        if let Some(label) = typed(label) {
            let component = Component::Model;
            let subkey = key.subkey(&SubkeyId { component, label }).unwrap();
            assert_eq!(hex::encode(subkey.expose()), expected);
            compared += 1;
        }
    }
    assert_eq!(compared, 3 * 15);
}

#[test]
fn fingerprints_and_component_keys_are_the_reference_s() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/derive.json");
    for (name, fingerprint) in vectors["fingerprints"].as_object().unwrap() {
        let key = key(&folder, name);
        assert_eq!(key.fingerprint().to_string(), fingerprint.as_str().unwrap());
        assert_eq!(
            key.component_fingerprint(Component::Model),
            key.fingerprint()
        );
    }
    let transforms = json(&folder, "vectors/transforms.json");
    let key = key(&folder, "a");
    for (component, expected) in [
        (Component::H3Dit, &transforms["h3"]["dit_key"]),
        (Component::H3TextEncoder, &transforms["h3"]["text_key"]),
        (Component::ZImageLatent, &transforms["zimage"]["latent_key"]),
        (
            Component::ZImageTextEncoder,
            &transforms["zimage"]["text_key"],
        ),
    ] {
        let component_key = fixtures::key_from_hex(expected.as_str().unwrap());
        let label = Label::Permutation(Path::new(Site::Vocab));
        let below = key.subkey(&SubkeyId {
            component,
            label: label.clone(),
        });
        let direct = component_key.subkey(&SubkeyId {
            component: Component::Model,
            label,
        });
        assert_eq!(below, direct);
        assert_eq!(
            key.component_fingerprint(component),
            component_key.fingerprint()
        );
    }
}

#[test]
fn catalog_keys_are_the_reference_s() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/derive.json");
    for case in vectors["catalog_keys"].as_array().unwrap() {
        let version = case["key_version"].as_u64().unwrap() as u32;
        let entry = CatalogEntry::new(case["repo_id"].as_str().unwrap(), version).unwrap();
        let key = key(&folder, case["master"].as_str().unwrap()).catalog_key(&entry);
        assert_eq!(hex::encode(key.expose()), case["secret"].as_str().unwrap());
        assert_eq!(
            key.fingerprint().to_string(),
            case["fingerprint"].as_str().unwrap()
        );
    }
    for bad in [
        "", "org", "org/", "/x", "org/a/b", "../x", "org/..", "o rg/x", "org/é",
    ] {
        assert_eq!(CatalogEntry::new(bad, 1), None, "{bad}");
    }
}

#[test]
fn draws_below_a_bound_are_the_reference_s() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/permutations.json");
    for case in vectors["keystream"].as_array().unwrap() {
        let subkey = fixtures::key_from_hex(case["stream_key"].as_str().unwrap());
        let subkey = Secret::fill_with(|bytes| bytes.copy_from_slice(subkey.expose()));
        let mut stream = KeyStream::new(&subkey);
        let number = |value: &Value| match value {
            Value::String(text) => text.parse::<u128>().unwrap(),
            other => u128::from(other.as_u64().unwrap()),
        };
        for pair in case["bounds_and_values"].as_array().unwrap() {
            let (bound, expected) = (number(&pair[0]), number(&pair[1]));
            let drawn = match u64::try_from(bound) {
                Ok(bound) => stream.below(NonZeroU64::new(bound).unwrap()),
                Err(_) => stream.word(),
            };
            assert_eq!(u128::from(drawn), expected, "below {bound}");
        }
        let draws = |field: &str, bound: u64| -> Vec<u64> {
            let mut stream = KeyStream::new(&subkey);
            let bound = NonZeroU64::new(bound).unwrap();
            let count = case[field]["count"].as_u64().unwrap();
            (0..count).map(|_| stream.below(bound)).collect()
        };
        let drawn: Vec<u32> = draws("below_1000", 1000)
            .into_iter()
            .map(|value| value as u32)
            .collect();
        let mut expected = case["below_1000"].clone();
        expected["n"] = expected["count"].clone();
        assert_permutation(&drawn, &expected, "below 1000");
        // Nearly half of the words are rejected.
        let drawn = draws("below_2^63+1", (1 << 63) + 1);
        let bytes: Vec<u8> = drawn.iter().flat_map(|v| v.to_le_bytes()).collect();
        let expected = &case["below_2^63+1"];
        let first: Vec<u128> = expected["first8"]
            .as_array()
            .unwrap()
            .iter()
            .map(number)
            .collect();
        let start: Vec<u128> = drawn.iter().take(8).map(|v| u128::from(*v)).collect();
        assert_eq!(start, first);
        assert_eq!(
            hex::encode(Sha256::digest(bytes)),
            expected["sha256_u64le"].as_str().unwrap()
        );
    }
}

fn block_list(value: &Value) -> Vec<usize> {
    match value {
        Value::Array(sizes) => sizes.iter().map(|v| v.as_u64().unwrap() as usize).collect(),
        other => vec![other.as_u64().unwrap() as usize],
    }
}

#[test]
fn permutations_are_the_reference_s() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/permutations.json");
    for case in vectors["cases"].as_array().unwrap() {
        let kind = case["kind"].as_str().unwrap();
        let name = format!("{kind} {} {}", case["label"], case["n"]);
        if kind == "inverse" {
            let of: Vec<u32> = serde_json::from_value(case["of"].clone()).unwrap();
            assert_permutation(&inverse(&of), case, kind);
            continue;
        }
        let key = key(&folder, case["key"].as_str().unwrap());
        let relabelled = Relabelled {
            key: &key,
            label: case["label"].as_str().unwrap().to_owned(),
        };
        let source = Scoped::new(&relabelled, Component::Model);
        let path = &Relabelled::PATH;
        let n = case["n"].as_u64().unwrap() as usize;
        let group = case["group"].as_u64().map(|group| group as usize);
        let drawn = match kind {
            "permutation" => permutation(&source, path, n),
            "grouped" => grouped(&source, path, n, group),
            "pair" => pairs(&source, path, n, group),
            "block" => blocks(&source, path, n, &block_list(&case["block"])),
            other => panic!("unknown kind {other}"),
        };
        assert_permutation(&drawn.unwrap(), case, &name);
    }
}

#[test]
fn lengths_that_do_not_divide_are_refused() {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)));
    let source = Scoped::new(&key, Component::Model);
    let path = Path::new(Site::Vocab);
    assert_eq!(
        blocks(&source, &path, 100, &[16]).unwrap_err().to_string(),
        "vocab: 100 is not a multiple of the block 16"
    );
    for (n, group) in [(7, None), (0, None), (30, Some(9))] {
        let error = pairs(&source, &path, n, group).unwrap_err();
        assert!(matches!(error, DrawError::OddPairs { .. }), "{error}");
    }
    assert!(matches!(
        permutation(&source, &path, 1 << 32),
        Err(DrawError::TooLong { .. })
    ));
    assert!(matches!(
        grouped(&source, &path, 8, Some(0)),
        Err(DrawError::NotMultiple { .. })
    ));
    assert_eq!(blocks(&source, &path, 0, &[16]), Ok(vec![]));
}

#[test]
fn streams_signs_and_scales_are_the_reference_s() {
    let Some(folder) = folder() else { return };
    let vectors = json(&folder, "vectors/transforms.json");
    let key = key(&folder, vectors["key"].as_str().unwrap());
    let at = |label: &Value| Relabelled {
        key: &key,
        label: label.as_str().unwrap().to_owned(),
    };
    let path = &Relabelled::PATH;
    for case in vectors["keystream"].as_array().unwrap() {
        let relabelled = at(&case["label"]);
        let source = Scoped::new(&relabelled, Component::Model);
        let n = case["n"].as_u64().unwrap() as usize;
        let bytes = model_key::stream(&source, path, n).unwrap();
        assert_eq!(hex::encode(bytes), case["hex"].as_str().unwrap());
    }
    for case in vectors["signs"].as_array().unwrap() {
        let relabelled = at(&case["label"]);
        let source = Scoped::new(&relabelled, Component::Model);
        let n = case["n"].as_u64().unwrap() as usize;
        let signs = model_key::signs(&source, path, n).unwrap();
        assert_signs(&signs, &case["values"], "signs");
    }
    for case in vectors["signed_permutation"].as_array().unwrap() {
        let relabelled = at(&case["label"]);
        let source = Scoped::new(&relabelled, Component::Model);
        let n = case["n"].as_u64().unwrap() as usize;
        let drawn = signed_permutation(&source, path, n, &block_list(&case["block"])).unwrap();
        assert_permutation(&drawn.index, &case["index"], "signed permutation");
        assert_signs(&drawn.sign, &case["signs"], "signed permutation");
    }
    for case in vectors["mlp_transform"].as_array().unwrap() {
        let relabelled = at(&case["label"]);
        let source = Scoped::new(&relabelled, Component::Model);
        let n = case["n"].as_u64().unwrap() as usize;
        let block = case["block"].as_u64().unwrap_or(0) as usize;
        let exponents = match NonZeroUsize::new(block) {
            None if case["fp8"] == true => Exponents::Zero,
            None => Exponents::Each,
            Some(block) => Exponents::PerBlock(block),
        };
        let permutation = blocks(&source, path, n, &[block]).unwrap();
        assert_permutation(&permutation, &case["perm"], "mlp");
        let scales = model_key::scales(&source, path, n, exponents).unwrap();
        assert_signs(&scales.exponent, &case["exponents"], "mlp exponents");
        assert_signs(&scales.sign, &case["signs"], "mlp signs");
    }
}

#[test]
fn words_and_bytes_come_from_one_stream() {
    let subkey = Secret::fill_with(|bytes| bytes.fill(9));
    let whole = model_key::keystream(&subkey, 20_000);
    let mut stream = KeyStream::new(&subkey);
    let mut at = 0;
    for step in [1, 3, 4090, 5, 4096, 0, 7000] {
        let word = stream.word();
        assert_eq!(word.to_le_bytes(), whole[at..at + 8]);
        at += 8;
        let mut part = vec![0; step];
        stream.fill(&mut part);
        assert_eq!(part, whole[at..at + step]);
        at += step;
    }
    let mut part = vec![0; 500];
    model_key::keystream_at(&subkey, 777, &mut part);
    assert_eq!(part, whole[777..1277]);
}
