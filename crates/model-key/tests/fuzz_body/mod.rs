//! What the fuzz target and the corpus replay both run.

use model_key::{KeyFile, write_open_key_file};

/// Any bytes are refused or parsed; an open file that parsed is written so that it parses again.
pub fn key_file(bytes: &[u8]) {
    let Ok(file) = KeyFile::parse(bytes) else {
        return;
    };
    let fingerprint = file.fingerprint();
    if let KeyFile::Open(_) = &file {
        let key = file.open(None).expect("an open file needs no passphrase");
        let written = write_open_key_file(&key);
        let again = KeyFile::parse(written.expose()).expect("what is written is read");
        assert_eq!(again.fingerprint(), fingerprint);
    }
}
