//! Reading a file's metadata by its start: how much more of it is needed.

use gguf::Gguf;

/// A file of one metadata entry, the text `name` under a key of one letter.
fn file(name: &str) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.push(b'k');
    bytes.extend(8u32.to_le_bytes());
    bytes.extend((name.len() as u64).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes
}

#[test]
fn a_start_that_ends_too_early_says_what_is_missing() {
    let whole = file("a name of some length");
    let length = whole.len() as u64;
    Gguf::decode(&whole, length).unwrap();
    for given in 4..whole.len() {
        let error = Gguf::decode(&whole[..given], length).unwrap_err();
        let missing = error.missing().unwrap();
        assert!(
            (1..=length - given as u64).contains(&missing),
            "{given}: {missing}"
        );
    }
    let error = Gguf::decode(&whole[..3], length).unwrap_err();
    assert_eq!(error.missing(), None);
}

#[test]
fn a_count_that_no_file_holds_misses_more_than_any_file_has() {
    let mut bytes = file("name");
    bytes[8..16].copy_from_slice(&[0xff; 8]);
    let error = Gguf::decode(&bytes, bytes.len() as u64).unwrap_err();
    assert!(error.missing().unwrap() > u64::MAX / 2);
}
