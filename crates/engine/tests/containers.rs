//! Values and refusals over the fixtures' containers.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

#[allow(dead_code, reason = "tests use parts of it")]
mod support;

use engine::{InMemory, KvPool, Level, Matrix, Model, ModelError, Session};
use jlm::{Config, Container, Draft, Flags, Version};
use sha2::{Digest, Sha256};
use support::{fixtures, json};

/// Every tensor's values, row by row, hash to what a reader of the reference saw: all twelve
/// types, at every level of instructions.
#[test]
fn every_types_values_are_the_references() {
    let Some(fixtures) = fixtures() else { return };
    let mut types = std::collections::BTreeSet::new();
    for file in std::fs::read_dir(fixtures.join("jlm/containers")).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let dump = json(fixtures.join(format!("jlm/dumps/{stem}.json")));
        let expected = dump["tensors"].as_array().unwrap();
        assert_eq!(expected.len(), container.tensors().len());
        for (entry, expected) in container.tensors().iter().zip(expected) {
            let Some(expected) = expected["dequant_f32le_sha256"].as_str() else {
                continue;
            };
            types.insert(entry.dtype);
            for level in Level::available() {
                let mut hash = Sha256::new();
                for sheet in 0..entry.sheets() {
                    let planes = container.sheet(entry, sheet).unwrap();
                    let [qs, d, sc] = planes
                        .as_array()
                        .map(|span| &bytes[span.offset as usize..][..span.length as usize]);
                    let (k, rows) = (entry.k() as usize, entry.rows() as usize);
                    let matrix = Matrix::new(entry.dtype, k, rows, qs, d, sc).unwrap();
                    let mut row = vec![0.0; k];
                    for r in 0..rows {
                        matrix.row(level, r, &mut row);
                        row.iter()
                            .for_each(|value| hash.update(value.to_le_bytes()));
                    }
                }
                let got = hash
                    .finalize()
                    .iter()
                    .map(|b| format!("{b:02x}"))
                    .collect::<String>();
                assert_eq!(got, expected, "{stem} {} {}", entry.name, level.name());
            }
        }
    }
    assert_eq!(types.len(), jlm::DType::ALL.len(), "{types:?}");
}

#[test]
fn every_containers_model_runs_but_scaled_rotary() {
    let Some(fixtures) = fixtures() else { return };
    for file in std::fs::read_dir(fixtures.join("jlm/containers")).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
        if container.config().yarn_factor != 0.0 {
            let error = Model::new(&container).unwrap_err();
            assert!(
                matches!(
                    error,
                    ModelError::Config {
                        field: "YarnFactor",
                        ..
                    }
                ),
                "{error}"
            );
            continue;
        }
        let mut session = session(bytes);
        let logits = session.feed(&[1, 5, 2, 9], &false.into()).unwrap();
        assert!(logits.iter().all(|v| v.is_finite()), "{path:?}");
    }
}

#[test]
fn both_versions_of_a_container_give_the_same_logits() {
    let Some(fixtures) = fixtures() else { return };
    let logits = ["v27", "v28"].map(|version| {
        let name = format!("jlm/containers/gguf-qwen3-kquants.{version}.jlm");
        let bytes = std::fs::read(fixtures.join(name)).unwrap();
        session(bytes)
            .feed(&[3, 1, 4, 1, 5], &false.into())
            .unwrap()
    });
    assert_eq!(logits[0], logits[1]);
}

fn session(bytes: Vec<u8>) -> Session {
    let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
    let model = Model::new(&container).unwrap();
    let weights = InMemory::new(&container, bytes).unwrap();
    let pool = KvPool::new(model.kv_shape(), 16 << 20);
    Session::new(model.into(), std::sync::Arc::new(weights), pool).unwrap()
}

/// The fixture's layout with another config.
fn altered(change: impl FnOnce(&mut Config)) -> Option<Container> {
    let fixtures = fixtures()?;
    let bytes = std::fs::read(fixtures.join("jlm/containers/hf-qwen2-bf16.v27.jlm")).unwrap();
    let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
    let mut config = container.config().clone();
    change(&mut config);
    let draft = Draft {
        version: Version::V27,
        config,
        vision_len: 0,
        vocab_len: 0,
        tensors: container.tensors().to_vec(),
        fingerprint: container.fingerprint().clone(),
    };
    Some(draft.lay_out().unwrap())
}

#[test]
fn what_is_not_computed_exactly_is_refused_by_name() {
    let refused = |field: &str, change: fn(&mut Config)| {
        let Some(container) = altered(change) else {
            return;
        };
        match Model::new(&container).unwrap_err() {
            ModelError::Config { field: named, .. } => assert_eq!(named, field),
            ModelError::Tensor { reason, .. } => assert!(reason.contains(field), "{reason}"),
            ModelError::Missing { role, .. } => assert_eq!(role, field),
        }
    };
    refused("Arch", |c| c.arch = jlm::Arch::from_name("gemma3").unwrap());
    refused("Flags", |c| c.flags = c.flags.with(Flags::SIGMOID_ROUTER));
    refused("SWAWindow", |c| c.swa_window = 128);
    refused("YarnFactor", |c| c.yarn_factor = 4.0);
    refused("FinalSoftcap", |c| c.final_softcap = 30.0);
    refused("NRot", |c| c.n_rot = 3);
    refused("NKVHead", |c| c.n_kv_head = 3);
    refused("NKVHead", |c| c.n_kv_head = 0);
    refused("RMSEps", |c| c.rms_eps = f32::NAN);
    refused("tails", |c| c.tails.scale.residual = 2.0);
    refused("shape", |c| c.n_ffn += 1);
    refused("attn_q", |c| c.n_layer += 1);
    refused("has no part", |c| c.n_layer -= 1);
}
