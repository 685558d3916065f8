//! Replays the fuzz corpus, each file also cut at every length and altered at every byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fuzz_body;

#[test]
fn the_manifest_corpus_replays() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/manifest");
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        fuzz_body::manifest(&bytes);
        for at in 0..bytes.len() {
            fuzz_body::manifest(&bytes[..at]);
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            fuzz_body::manifest(&altered);
        }
        replayed += 1;
    }
    assert!(replayed >= 3, "only {replayed} corpus files");
}
