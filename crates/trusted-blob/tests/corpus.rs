//! Replays the fuzz corpora, each file also cut at every length and altered at every byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fuzz_body;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        body(&bytes);
        for at in 0..bytes.len() {
            body(&bytes[..at]);
            let mut altered = bytes.clone();
            altered[at] ^= 1;
            body(&altered);
        }
        replayed += 1;
    }
    assert!(replayed >= 3, "only {replayed} corpus files");
}

#[test]
fn the_blob_corpus_replays() {
    replay("blob", fuzz_body::blob);
}

#[test]
fn the_payload_corpus_replays() {
    replay("payload", fuzz_body::payload);
}
