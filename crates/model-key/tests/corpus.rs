//! Replays the fuzz corpus, each file also cut at every length and altered at every byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fuzz_body;

#[test]
fn the_key_file_corpus_replays() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/key_file");
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        fuzz_body::key_file(&bytes);
        for at in 0..bytes.len() {
            fuzz_body::key_file(&bytes[..at]);
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            fuzz_body::key_file(&altered);
        }
        replayed += 1;
    }
    assert!(replayed >= 4, "only {replayed} corpus files");
}
