//! What the fuzz targets run: any input is an error or a faithful read.

#![allow(clippy::unwrap_used, reason = "test support")]
#![allow(dead_code, reason = "each fuzz target uses one")]

use jlm::{Config, Container, Version, Vocab};

/// The start of a file; the length that its header claims is taken as the file's.
pub fn container(data: &[u8]) {
    let Ok(file_len) = jlm::Header::claimed_len(data) else {
        return;
    };
    let Ok(container) = Container::decode(data, file_len) else {
        return;
    };
    let Ok(vocab) = container.vocab(data) else {
        return;
    };
    let vision = container.region(jlm::Region::VisionConfig);
    let vision = &data[vision.offset as usize..(vision.offset + vision.length) as usize];
    let vocab = vocab.map_or(Vec::new(), |vocab| vocab.encode());
    if let Ok(meta) = container.encode_meta(vision, &vocab) {
        assert_eq!(
            Container::decode(&meta, file_len).unwrap().header(),
            container.header()
        );
    }
    for entry in container.tensors() {
        let last = entry.sheets() - 1;
        assert!(container.sheet(entry, last).is_some());
    }
    assert!(
        container
            .units()
            .take(1 << 12)
            .all(|unit| container.unit(unit).is_some())
    );
}

/// A config section, read as either version.
pub fn config(data: &[u8]) {
    for version in [Version::V27, Version::V28] {
        if let Ok(config) = Config::decode(data, version) {
            let bytes = config.encode(version);
            let again = Config::decode(&bytes, version).unwrap();
            assert_eq!(again.encode(version), bytes);
        }
    }
}

/// A vocab section.
pub fn vocab(data: &[u8]) {
    if let Ok(vocab) = Vocab::decode(data) {
        let bytes = vocab.encode();
        assert_eq!(Vocab::decode(&bytes).unwrap().encode(), bytes);
    }
}
