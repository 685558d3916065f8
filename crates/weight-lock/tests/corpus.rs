//! Replays the fuzz corpus, and every truncation of each of its files.

mod bodies;

type Target = (&'static str, fn(&[u8]));

const TARGETS: &[Target] = &[("record", bodies::record)];

#[test]
fn the_corpus_replays() {
    for (target, body) in TARGETS {
        let folder = format!("{}/fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let mut files = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            (0..=bytes.len()).for_each(|end| body(&bytes[..end]));
            files += 1;
        }
        assert!(files > 0, "{folder} is empty");
    }
}
