//! Sealing, opening, and every refusal, over small containers that are built here.

#![allow(clippy::unwrap_used, reason = "test support")]

mod model;

use jlm::{Container, JlmError, Region, UnitId, Vocab};
use model::{SealedFile, key, open_all, other_key, plain, seal, seal_with};
use model_key::SubkeySource;
use proptest::prelude::*;
use sealed_jlm::{ChunkSize, Finding, SealedHeader, SealedJlmError, TRAILER_LEN, Trailer};

#[test]
fn opening_a_sealed_container_gives_the_plain_bytes_back() {
    let plain = plain();
    for chunk in [4096, 8192, 1 << 20] {
        let sealed = seal_with(&plain, chunk, &key());
        let header = sealed.header().unwrap();
        assert_eq!(open_all(&sealed, &header).unwrap(), plain, "chunk {chunk}");
        let structure = Container::decode(&plain, plain.len() as u64).unwrap();
        assert_eq!(header.container(), &structure);
    }
}

#[test]
fn nothing_secret_stays_in_clear() {
    let plain = plain();
    let sealed = seal(&plain);
    let container = Container::decode(&plain, plain.len() as u64).unwrap();
    for unit in container.units() {
        let span = container.unit(unit).unwrap();
        let range = span.offset as usize..span.end().unwrap() as usize;
        let same = plain[range.clone()]
            .iter()
            .zip(&sealed.bytes[range.clone()])
            .filter(|(a, b)| a == b)
            .count();
        assert!(
            same * 16 < range.len() + 64,
            "{unit}: {same} of {} bytes stayed",
            range.len()
        );
    }
}

#[test]
fn one_expert_opens_alone() {
    let plain = plain();
    let sealed = seal(&plain);
    let header = sealed.header().unwrap();
    let unit = UnitId::new(Region::Experts, 1);
    let subkey = key().subkey(&header.subkey_id(unit)).unwrap();
    let block = header.container().mixtures()[1];
    for expert in 0..header.container().experts() {
        let span = header.container().expert_page(block, expert).unwrap();
        let range = span.offset as usize..span.end().unwrap() as usize;
        let mut page = sealed.bytes[range.clone()].to_vec();
        header
            .open_expert(unit, expert, &subkey, &mut page)
            .unwrap();
        assert_eq!(page, plain[range]);
        let wrong = (expert + 1) % header.container().experts();
        let mut page = sealed.bytes[span.offset as usize..span.end().unwrap() as usize].to_vec();
        assert!(header.open_expert(unit, wrong, &subkey, &mut page).is_err());
    }
}

#[test]
fn a_page_opens_chunk_by_chunk_in_any_order() {
    let plain = plain();
    let sealed = seal_with(&plain, 8192, &key());
    let header = sealed.header().unwrap();
    let h = header.container().header();
    let text = (
        UnitId::new(Region::Text, 1),
        0,
        h.data_off + h.page_size,
        h.page_size,
    );
    let expert = (
        UnitId::new(Region::Experts, 1),
        2,
        h.exp_data_off + 5 * h.exp_page_size,
        h.exp_page_size,
    );
    for (unit, expert, offset, len) in [text, expert] {
        let subkey = key().subkey(&header.subkey_id(unit)).unwrap();
        let opener = header.page_opener(unit, expert, &subkey).unwrap();
        let range = offset as usize..(offset + len) as usize;
        let mut page = sealed.bytes[range.clone()].to_vec();
        let parts: Vec<_> = page.chunks_mut(8192).enumerate().collect();
        for (index, part) in parts.into_iter().rev() {
            opener.open(index as u64 * 8192, part).unwrap();
        }
        assert_eq!(page, plain[range.clone()]);

        let mut page = sealed.bytes[range].to_vec();
        let mut refused = |at: u64, from: usize, to: usize| {
            let error = opener.open(at, &mut page[from..to]).unwrap_err();
            assert!(page[from..to].iter().all(|byte| *byte == 0), "{error}");
            error
        };
        assert!(matches!(
            refused(4096, 4096, 8192),
            SealedJlmError::NotChunks { .. }
        ));
        assert!(matches!(
            refused(0, 0, 4096),
            SealedJlmError::NotChunks { .. }
        ));
        assert!(matches!(
            refused(8192 << 20, 0, 8192),
            SealedJlmError::NotChunks { .. }
        ));
        assert!(matches!(
            refused(8192, 0, 8192),
            SealedJlmError::Tag { .. } | SealedJlmError::NotChunks { .. }
        ));
    }
    let unit = UnitId::new(Region::Text, 0);
    let subkey = key().subkey(&header.subkey_id(unit)).unwrap();
    assert!(header.page_opener(unit, 1, &subkey).is_err());
    let beyond = UnitId::new(Region::Experts, 2);
    assert!(header.page_opener(beyond, 0, &subkey).is_err());
    let unit = UnitId::new(Region::Experts, 0);
    assert!(header.page_opener(unit, 3, &subkey).is_err());
}

#[test]
fn a_reader_of_plain_containers_refuses_a_sealed_one_by_its_version() {
    let sealed = seal(&plain());
    let error = Container::decode(&sealed.bytes, sealed.bytes.len() as u64).unwrap_err();
    assert_eq!(error, JlmError::Version(0x5EA1_001B));
    assert!(error.to_string().contains("1587609627"), "{error}");
}

#[test]
fn a_plain_container_is_refused_as_plain() {
    let plain = plain();
    let file = SealedFile { bytes: plain };
    let finding = file.fsck().unwrap_err();
    assert!(
        matches!(finding, Finding::Structure(SealedJlmError::Plain(27))),
        "{finding}"
    );
}

#[test]
fn every_part_is_bound_to_its_place_and_file() {
    let plain = plain();
    let sealed = seal(&plain);
    let header = sealed.header().unwrap();
    let page = |index| {
        header
            .container()
            .unit(UnitId::new(Region::Text, index))
            .unwrap()
    };
    // Two pages swapped.
    let mut swapped = sealed.clone();
    let (a, b) = (page(0).offset as usize, page(1).offset as usize);
    let length = page(0).length as usize;
    let first = swapped.bytes[a..a + length].to_vec();
    swapped.bytes.copy_within(b..b + length, a);
    swapped.bytes[b..b + length].copy_from_slice(&first);
    assert_eq!(
        findings(&swapped),
        [
            "text pages unit 0, chunk 0: not authentic",
            "text pages unit 1, chunk 0: not authentic"
        ]
    );
    // A page of the same model sealed another time.
    let again = seal_with(&plain, 4096, &key());
    let mut mixed = sealed.clone();
    mixed.bytes[a..a + length].copy_from_slice(&again.bytes[a..a + length]);
    assert_eq!(
        findings(&mixed),
        ["text pages unit 0, chunk 0: not authentic"]
    );
}

#[test]
fn the_wrong_key_is_refused_by_fingerprint_and_by_tag() {
    let sealed = seal(&plain());
    let header = sealed.header().unwrap();
    let error = header
        .require_fingerprint(other_key().fingerprint())
        .unwrap_err();
    assert!(matches!(error, SealedJlmError::Fingerprint { .. }));
    let unit = UnitId::new(Region::Dense, 0);
    let span = header.container().unit(unit).unwrap();
    let mut bytes = sealed.bytes[span.offset as usize..span.end().unwrap() as usize].to_vec();
    let wrong = other_key().subkey(&header.subkey_id(unit)).unwrap();
    assert!(header.open_unit(unit, &wrong, &mut bytes).is_err());
    assert!(
        bytes.iter().all(|byte| *byte == 0),
        "no unauthenticated byte is left"
    );
}

#[test]
fn a_unit_is_sealed_once_and_none_is_left_out() {
    let plain = plain();
    let mut sealer = model::sealer(&plain, 4096, &key());
    let unit = UnitId::new(Region::Text, 0);
    let span = sealer.container().unit(unit).unwrap();
    let mut bytes = plain[span.offset as usize..span.end().unwrap() as usize].to_vec();
    let subkey = key().subkey(&sealer.subkey_id(unit)).unwrap();
    sealer.seal_unit(unit, &subkey, &mut bytes).unwrap();
    let twice = sealer.seal_unit(unit, &subkey, &mut bytes).unwrap_err();
    assert!(matches!(twice, SealedJlmError::SealedTwice(again) if again == unit));
    assert!(matches!(sealer.finish(), Err(SealedJlmError::NotSealed(_))));
}

#[test]
fn headers_and_sections_that_do_not_fit_are_refused() {
    let sealed = seal(&plain());
    let length = sealed.bytes.len();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut file = sealed.clone();
        change(&mut file.bytes);
        file.fsck().unwrap_err().to_string()
    };
    type Change<'a> = &'a dyn Fn(&mut Vec<u8>);
    let cases: [(Change<'_>, &str); 6] = [
        (&|bytes| bytes[8] = 28, "not read here"),
        (&|bytes| bytes[12] = 2, "seal format version 2"),
        (&|bytes| bytes.truncate(length - 1), "malformed"),
        (&|bytes| bytes[length - 40] = 1, "malformed"),
        (
            &|bytes| bytes[length - 1] ^= 1,
            "not the one the trailer was made for",
        ),
        (&|bytes| bytes.extend([0; 64]), "malformed"),
    ];
    for (change, reason) in cases {
        let text = refused(change);
        assert!(text.contains(reason), "{text} instead of {reason}");
    }
    for bad in [0, 4095, 4097, 2 << 20] {
        assert!(ChunkSize::new(bad).is_err());
    }
}

#[test]
fn a_seal_header_that_lists_other_regions_is_refused() {
    let sealed = seal(&plain());
    let edits = [
        ("\"id\":3", "\"id\":2", "lists other regions"),
        ("\"chunk\":4096", "\"chunk\":8192", "tag table"),
        ("\"chunk\":4096", "\"chunk\":4095", "power of two"),
        ("\"version\":1", "\"version\":2", "seal format version 2"),
        ("\"salt\":", "\"Salt\":", "expected JSON"),
        ("\"id\":1,", "\"id\":01,", "expected JSON"),
        ("\"version\":1}", "\"version\":1 }", "canonical"),
    ];
    for (from, to, reason) in edits {
        let text = sealed.with_header(from, to).fsck().unwrap_err().to_string();
        assert!(text.contains(reason), "{from} to {to}: {text}");
    }
}

#[test]
fn every_truncation_is_refused_without_reading_past_the_end() {
    let sealed = seal(&plain());
    for length in (0..sealed.bytes.len())
        .step_by(97)
        .chain(sealed.bytes.len() - 200..sealed.bytes.len())
    {
        let cut = SealedFile {
            bytes: sealed.bytes[..length].to_vec(),
        };
        assert!(cut.fsck().is_err(), "cut to {length}");
    }
    let trailer = &sealed.bytes[sealed.bytes.len() - TRAILER_LEN as usize..];
    for length in 0..trailer.len() {
        assert!(Trailer::decode(&trailer[..length], sealed.bytes.len() as u64).is_err());
    }
}

fn findings(file: &SealedFile) -> Vec<String> {
    file.verify(&key())
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_sound_file_has_no_findings() {
    assert!(findings(&seal(&plain())).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_changed_byte_is_found(class in 0..8usize, at in any::<prop::sample::Index>(), flip in 1..=255u8) {
        let file = model::cached();
        let range = file.class(class);
        let mut changed = file.clone();
        changed.bytes[range.start + at.index(range.len())] ^= flip;
        prop_assert!(!findings(&changed).is_empty());
    }
}

#[test]
fn the_vocab_opens_from_its_unit() {
    let plain = plain();
    let sealed = seal(&plain);
    let header: SealedHeader = sealed.header().unwrap();
    let unit = UnitId::new(Region::Vocab, 0);
    let span = header.container().unit(unit).unwrap();
    let mut bytes = sealed.bytes[span.offset as usize..span.end().unwrap() as usize].to_vec();
    assert!(Vocab::decode(&bytes).is_err());
    let subkey = key().subkey(&header.subkey_id(unit)).unwrap();
    header.open_unit(unit, &subkey, &mut bytes).unwrap();
    assert_eq!(Vocab::decode(&bytes).unwrap().tokens, ["a", "b", "c"]);
}
