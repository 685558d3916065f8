//! Replays the fuzz corpora, each file also cut at every length and altered at every byte.

mod fuzz_body;

fn replay(target: &str, body: fn(&[u8])) {
    let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let mut replayed = 0;
    for entry in std::fs::read_dir(folder).expect("the corpus is committed") {
        let path = entry.expect("the corpus is committed").path();
        let bytes = std::fs::read(path).expect("the corpus is committed");
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
fn the_token_corpus_replays() {
    replay("token", fuzz_body::token);
}
