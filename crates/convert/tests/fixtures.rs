//! Whole containers equal to the reference writer's, byte for byte.

#![allow(clippy::unwrap_used, reason = "test support")]
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use convert::{Options, SourceFiles, plan};
use jlm::{DType, Flags, Role, WriterFingerprint};

fn fixtures() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if !folder.is_dir() {
        eprintln!("skipped: the fixtures folder is absent");
        return None;
    }
    Some(folder)
}

fn files(folder: &Path) -> SourceFiles {
    SourceFiles::collect(|name| match std::fs::read(folder.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .unwrap()
}

fn convert(folder: &Path, options: &Options) -> Vec<u8> {
    let source = Checkpoint::open(folder).unwrap();
    let plan = plan(&source, &files(folder), options).unwrap_or_else(|e| panic!("{e}: {e:?}"));
    let mut file = plan.meta().to_vec();
    for unit in plan.units() {
        let start = file.len();
        let length = plan.container().unit(unit).unwrap().length;
        file.resize(start + length as usize, 0xee);
        plan.write_unit(unit, &mut file[start..]).unwrap();
    }
    assert!(in_pieces(&plan) == file, "{}", folder.display());
    file
}

/// The file tensor by tensor, the last one first.
fn in_pieces(plan: &convert::Plan<'_>) -> Vec<u8> {
    let mut file = vec![0; plan.container().header().file_len() as usize];
    file[..plan.meta().len()].copy_from_slice(plan.meta());
    for piece in plan.pieces().iter().rev() {
        let mut bytes = vec![0xee; piece.length() as usize];
        plan.write_piece(piece, &mut bytes).unwrap();
        let mut rest = &bytes[..];
        for plane in piece.planes().as_array() {
            let (part, after) = rest.split_at(plane.length as usize);
            file[plane.offset as usize..][..part.len()].copy_from_slice(part);
            rest = after;
        }
        assert!(
            plan.write_piece(piece, &mut vec![0; bytes.len() + 1])
                .is_err()
        );
    }
    file
}

fn oracle(q8: bool) -> Options {
    Options {
        widen_bf16: true,
        q8,
        fingerprint: WriterFingerprint {
            host: "oracle".to_owned(),
            device: "none".to_owned(),
            writer: "jlm-oracle".to_owned(),
            vram: 0,
        },
    }
}

#[test]
fn every_hugging_face_input_converts_to_the_reference_container() {
    let Some(fixtures) = fixtures() else { return };
    let cases = [
        ("hf-llama3-11l-f16", "hf-llama3-11l-f16.v27", false),
        ("hf-llama3-bf16", "hf-llama3-bf16.v27", false),
        ("hf-qwen2-bf16", "hf-qwen2-bf16.v27", false),
        ("hf-qwen3-bf16", "hf-qwen3-bf16.v27", false),
        ("hf-qwen3-bf16", "hf-qwen3-bf16.q8.v27", true),
        ("hf-qwen3-f16", "hf-qwen3-f16.v27", false),
        ("hf-qwen3-f32", "hf-qwen3-f32.v27", false),
        ("hf-qwen3moe-bf16", "hf-qwen3moe-bf16.v27", false),
        ("hf-qwen3moe-bf16", "hf-qwen3moe-bf16.q8.v27", true),
    ];
    for (input, container, q8) in cases {
        let ours = convert(&fixtures.join("jlm/inputs").join(input), &oracle(q8));
        let theirs = fixtures.join(format!("jlm/containers/{container}.jlm"));
        let theirs = std::fs::read(theirs).unwrap();
        let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert_eq!((differs, ours.len()), (None, theirs.len()), "{container}");
    }
}

#[test]
fn bf16_stays_bf16_by_default() {
    let Some(fixtures) = fixtures() else { return };
    let folder = fixtures.join("models/tiny-qwen3");
    let source = Checkpoint::open(&folder).unwrap();
    let plan = plan(&source, &files(&folder), &Options::default()).unwrap();
    assert!(
        plan.container()
            .tensors()
            .iter()
            .all(|entry| entry.dtype == DType::Bf16)
    );
    assert!(plan.container().config().flags.has(Flags::TIED));
    assert_eq!(plan.warnings().len(), 1, "NFC");
}

#[test]
fn llama3_scaling_becomes_rotary_divisors() {
    let Some(fixtures) = fixtures() else { return };
    let folder = fixtures.join("models/tiny-llama3");
    let file = convert(&folder, &Options::default());
    let container = jlm::Container::decode(&file, file.len() as u64).unwrap();
    let entry = container.tensor_of(Role::ROPE_FREQS, -1).unwrap();
    let span = container.planes(entry).qs;
    let bytes = &file[span.offset as usize..span.end().unwrap() as usize];
    let mut divisors = vec![0.0; bytes.len() / 4];
    jlm::floats(DType::F32, bytes, &mut divisors);
    assert_eq!(divisors.len(), 8);
    assert_eq!(
        divisors.first(),
        Some(&1.0),
        "the fastest pair is not slowed"
    );
    assert_eq!(
        divisors.last(),
        Some(&8.0),
        "the slowest pair is slowed by the whole factor"
    );
    assert!(divisors.is_sorted());
}
