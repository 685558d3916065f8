//! Every fixture container decodes, and its decoded form gives back the same bytes.

mod fixtures;

use jlm::{Container, Draft, Header, Region, Span, TensorEntry};

#[test]
fn writing_the_decoded_form_of_every_container_gives_the_same_bytes() {
    for (name, bytes) in fixtures::containers() {
        let file_len = bytes.len() as u64;
        let container =
            Container::decode(&bytes, file_len).unwrap_or_else(|e| panic!("{name}: {e}"));
        let vocab = container
            .vocab(&bytes)
            .unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let vocab = vocab.map_or(Vec::new(), |vocab| vocab.encode());
        let meta = container.encode_meta(&[], &vocab).unwrap();
        assert!(meta == bytes[..meta.len()], "{name}: metadata differs");
    }
}

#[test]
fn laying_out_the_tensors_of_every_container_gives_the_same_places() {
    for (name, bytes) in fixtures::containers() {
        let read = Container::decode(&bytes, bytes.len() as u64).unwrap();
        let strip = |entry: &TensorEntry| TensorEntry {
            qs_off: 0,
            d_off: 0,
            sc_off: 0,
            ..entry.clone()
        };
        let draft = Draft {
            version: read.header().version,
            config: read.config().clone(),
            vision_len: read.header().vision.length,
            vocab_len: read.header().vocab.length,
            tensors: read.tensors().iter().map(strip).collect(),
            fingerprint: read.fingerprint().clone(),
        };
        assert_eq!(draft.lay_out().unwrap(), read, "{name}");
    }
}

#[test]
fn units_cover_everything_after_the_metadata_and_the_secret_sections() {
    for (name, bytes) in fixtures::containers() {
        let container = Container::decode(&bytes, bytes.len() as u64).unwrap();
        let mut at = container.header().meta_len();
        for unit in container
            .units()
            .filter(|unit| unit.region >= Region::Dense)
        {
            let span = container.unit(unit).unwrap();
            assert_eq!(span.offset, at, "{name}: {unit}");
            at = span.end().unwrap();
        }
        assert_eq!(at, bytes.len() as u64, "{name}");
    }
}

#[test]
fn every_truncation_of_a_container_is_refused() {
    let Some((name, bytes)) = fixtures::smallest() else {
        return;
    };
    let whole = bytes.len() as u64;
    let meta_len = Header::decode(&bytes, whole).unwrap().meta_len();
    for length in 0..meta_len {
        let cut = &bytes[..length as usize];
        assert!(
            Container::decode(cut, length).is_err(),
            "{name} cut to {length}"
        );
        if let Ok(container) = Container::decode(cut, whole) {
            assert!(
                container.vocab(cut).is_err() || container.vocab(cut) == container.vocab(&bytes),
                "{name} cut to {length}"
            );
        }
    }
    for length in meta_len..whole {
        let cut = &bytes[..length as usize];
        assert!(
            Container::decode(cut, length).is_err(),
            "{name} cut to {length}"
        );
    }
    assert!(Container::decode(&bytes, whole + 1).is_err());
}

#[test]
fn every_flipped_byte_is_an_error_or_a_faithful_read() {
    let Some((name, bytes)) = fixtures::smallest() else {
        return;
    };
    let whole = bytes.len() as u64;
    let header = Header::decode(&bytes, whole).unwrap();
    let mut meta = bytes[..header.meta_len() as usize].to_vec();
    let sections_end = header.fingerprint.end().unwrap() as usize;
    for at in 0..sections_end {
        for flip in [0x01, 0x80, 0xff] {
            meta[at] ^= flip;
            if let Ok(container) = Container::decode(&meta, whole)
                && let Ok(Some(vocab)) = container.vocab(&meta)
            {
                let again = container.encode_meta(&[], &vocab.encode()).unwrap();
                assert!(
                    again == meta,
                    "{name}: byte {at} flipped by {flip} was not read"
                );
            }
            meta[at] ^= flip;
        }
    }
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let Some((_, mut bytes)) = fixtures::smallest() else {
        return;
    };
    let whole = bytes.len() as u64;
    let header = Header::decode(&bytes, whole).unwrap();
    // NTensors, and the vocab's token count, at their largest.
    bytes[28..32].fill(0xff);
    assert!(Container::decode(&bytes, whole).is_err());
    let Span { offset, .. } = header.vocab;
    let count = offset as usize + 1;
    bytes[count..count + 4].fill(0xff);
    assert!(jlm::Vocab::decode(&bytes[offset as usize..]).is_err());
}
