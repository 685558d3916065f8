//! A container with a vision tower: its pages are laid out, its section is kept byte for byte.

#![allow(clippy::unwrap_used, reason = "test support")]

use jlm::{
    Arch, Config, Container, DType, Draft, JlmError, PROJECTORS, Region, Role, TensorEntry,
    TensorKey, Version, WriterFingerprint,
};

/// Bytes that are no record of any length-prefixed form.
const SECTION: [u8; 37] = [0xc3; 37];

fn tensor(role: &str, block: i32, dims: &[u64]) -> TensorEntry {
    let role = Role::from_name(role).unwrap();
    TensorEntry {
        key: TensorKey {
            role,
            block,
            index: -1,
        },
        dtype: DType::F16,
        dims: dims.to_vec(),
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: format!("{}.{block}", role.name()),
    }
}

fn draft(version: Version) -> Draft {
    Draft {
        version,
        config: Config::new(Arch::from_code(10).unwrap()),
        vision_len: SECTION.len() as u64,
        vocab_len: 0,
        tensors: vec![
            tensor("token_embd", -1, &[64, 8]),
            tensor("v_patch_embd", -1, &[64, 4]),
            tensor("attn_q", 0, &[64, 64]),
            tensor("v_attn_norm", 0, &[64]),
            tensor("v_attn_q", 0, &[64, 64]),
            tensor("v_attn_q", 1, &[64, 64]),
        ],
        fingerprint: WriterFingerprint {
            host: "test".to_owned(),
            device: String::new(),
            writer: "test".to_owned(),
            vram: 0,
        },
    }
}

#[test]
fn a_vision_section_survives_reading_and_writing() {
    for version in [Version::V27, Version::V28] {
        let container = draft(version).lay_out().unwrap();
        assert_eq!(container.unit_count(Region::VisionConfig), 1);
        assert_eq!(container.unit_count(Region::Vision), 2, "a page a block");
        assert_eq!(container.unit_len(Region::Vision), 8192);
        let norm = &container.tensors()[3];
        assert!(norm.is_dense(), "an expanded role of a vision block");

        let meta = container.encode_meta(&SECTION, &[]).unwrap();
        let length = container.header().file_len();
        let read = Container::decode(&meta, length).unwrap();
        assert_eq!(read, container);
        assert_eq!(read.vision(&meta).unwrap(), Some(&SECTION[..]));
        let kept = read.vision(&meta).unwrap().unwrap();
        assert_eq!(read.encode_meta(kept, &[]).unwrap(), meta);
    }
}

#[test]
fn a_section_that_is_cut_or_of_another_length_is_named() {
    let container = draft(Version::V27).lay_out().unwrap();
    let meta = container.encode_meta(&SECTION, &[]).unwrap();
    let span = container.header().vision;
    for end in span.offset..span.offset + span.length {
        let refused = container.vision(&meta[..end as usize]).unwrap_err();
        assert!(
            matches!(
                refused,
                JlmError::Header {
                    field: "VisLen",
                    ..
                }
            ),
            "{refused}"
        );
    }
    let sections = container.header().fingerprint.end().unwrap();
    for length in 0..sections as usize {
        let file = container.header().file_len();
        assert!(
            Container::decode(&meta[..length], file).is_err(),
            "{length}"
        );
    }
    for section in [&SECTION[1..], &[], &[0; 38]] {
        let refused = container.encode_meta(section, &[]).unwrap_err();
        assert!(
            matches!(
                refused,
                JlmError::Header {
                    field: "VisLen",
                    ..
                }
            ),
            "{refused}"
        );
    }
}

#[test]
fn a_dump_shows_where_the_section_is_and_what_it_hashes_to() {
    let container = draft(Version::V27).lay_out().unwrap();
    let mut file = container.encode_meta(&SECTION, &[]).unwrap();
    file.resize(container.header().file_len() as usize, 0);
    let dump = jlm::dump::<std::io::Error>("tower", file.len() as u64, &mut |span, out| {
        let start = span.offset as usize;
        out.copy_from_slice(&file[start..start + out.len()]);
        Ok(())
    })
    .unwrap();
    let shown = &dump["sections"]["vision"];
    assert_eq!(shown["len"], SECTION.len());
    assert_eq!(shown["off"], container.header().vision.offset);
    use sha2::Digest;
    let hash = hex::encode(sha2::Sha256::digest(SECTION));
    assert_eq!(shown["sha256"], hash);
    assert_eq!(dump["header"]["NVisBlocks"], 2);
}

#[test]
fn every_projector_code_has_one_name() {
    assert_eq!(PROJECTORS.len(), 17, "18 codes, of which 0 is none");
    assert!(PROJECTORS.is_sorted_by(|a, b| a.0 < b.0));
}
