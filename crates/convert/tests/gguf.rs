//! GGUF files convert to the reference writer's containers, byte for byte.

#![allow(clippy::unwrap_used, reason = "test support")]
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::path::PathBuf;

use convert::{BlockSource, plan_gguf};
use gguf::{Gguf, GgufError};
use jlm::WriterFingerprint;

struct File(Vec<u8>);

impl BlockSource for File {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        out.copy_from_slice(&self.0[offset as usize..offset as usize + out.len()]);
        Ok(())
    }
}

fn folder() -> Option<PathBuf> {
    let folder = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures/jlm"
    ));
    if !folder.is_dir() {
        eprintln!("skipped: the fixtures folder is absent");
        return None;
    }
    Some(folder)
}

#[test]
fn every_gguf_input_converts_to_the_reference_container() {
    let Some(folder) = folder() else { return };
    let fingerprint = WriterFingerprint {
        host: "oracle".to_owned(),
        device: "none".to_owned(),
        writer: "jlm-oracle".to_owned(),
        vram: 0,
    };
    for name in [
        "gguf-llama-floats",
        "gguf-llama-from-hf-f16",
        "gguf-llama-legacy-quants",
        "gguf-llama-perexpert",
        "gguf-qwen2-q8",
        "gguf-qwen3-kquants",
        "gguf-qwen3moe-floats",
    ] {
        let file = File(std::fs::read(folder.join(format!("inputs/{name}.gguf"))).unwrap());
        let parsed = Gguf::decode(&file.0, file.0.len() as u64).unwrap();
        let plan =
            plan_gguf(&parsed, &file, &fingerprint).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let mut ours = plan.meta().to_vec();
        for unit in plan.units() {
            let start = ours.len();
            let length = plan.container().unit(unit).unwrap().length;
            ours.resize(start + length as usize, 0xee);
            plan.write_unit(unit, &mut ours[start..]).unwrap();
        }
        let mut pieces = vec![0; ours.len()];
        pieces[..plan.meta().len()].copy_from_slice(plan.meta());
        for piece in plan.pieces() {
            let mut bytes = vec![0xee; piece.length() as usize];
            plan.write_piece(&piece, &mut bytes).unwrap();
            let mut rest = &bytes[..];
            for plane in piece.planes().as_array() {
                let (part, after) = rest.split_at(plane.length as usize);
                pieces[plane.offset as usize..][..part.len()].copy_from_slice(part);
                rest = after;
            }
        }
        assert!(pieces == ours, "{name}: tensor by tensor");
        let theirs = std::fs::read(folder.join(format!("containers/{name}.v27.jlm"))).unwrap();
        let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert_eq!((differs, ours.len()), (None, theirs.len()), "{name}");
    }
}

#[test]
fn every_truncation_and_flipped_byte_of_the_metadata_is_an_error_or_a_read() {
    let Some(folder) = folder() else { return };
    let mut bytes = std::fs::read(folder.join("inputs/gguf-llama-floats.gguf")).unwrap();
    let whole = bytes.len() as u64;
    let first = Gguf::decode(&bytes, whole).unwrap().tensors()[0].offset as usize;
    // Less than the alignment may be padding.
    for length in 0..first - 32 {
        assert!(
            Gguf::decode(&bytes[..length], whole).is_err(),
            "cut to {length}"
        );
    }
    for at in 0..first {
        bytes[at] ^= 0xff;
        let _ = Gguf::decode(&bytes[..first], whole);
        bytes[at] ^= 0xff;
    }
    bytes[4] = 1;
    assert_eq!(Gguf::decode(&bytes, whole), Err(GgufError::Version(1)));
}
