//! Printing any type or error of this crate shows no secret.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Debug;

use model_key::{
    Component, GrantedSubkeys, KeyFile, Label, ModelKey, Passphrase, Path, Site, SubkeyId,
    SubkeySource, write_open_key_file,
};
use secret::{Secret, SecretBytes};

const MARK: [u8; 32] = *b"marker-secret-marker-secret-mark";

fn assert_silent(value: &dyn Debug) {
    let text = format!("{value:?} {value:#?}");
    let hex = hex::encode(MARK);
    use base64::Engine;
    let base64 = base64::engine::general_purpose::STANDARD.encode(MARK);
    // Decimal lists, as a derived Debug prints bytes.
    let decimal = format!("{}, {}, {}", MARK[0], MARK[1], MARK[2]);
    for shown in ["marker", &hex[..12], &base64[..12], &decimal] {
        assert!(!text.contains(shown), "{text}");
    }
}

#[test]
fn debug_shows_no_key_bytes() {
    let key = ModelKey::new(Secret::fill_with(|bytes| *bytes = MARK));
    let mut grant = GrantedSubkeys::new(key.fingerprint());
    let id = SubkeyId {
        component: Component::Model,
        label: Label::Permutation(Path::new(Site::Vocab)),
    };
    grant.insert(id.clone(), Secret::fill_with(|bytes| *bytes = MARK));
    let file = write_open_key_file(&key);
    assert_silent(&key);
    assert_silent(&grant);
    assert_silent(&grant.subkey(&id));
    assert_silent(&file);
    assert_silent(&KeyFile::parse(file.expose()).unwrap());
    assert_silent(&Passphrase::new(SecretBytes::new(MARK.to_vec())).unwrap());
}

#[test]
fn errors_repeat_no_text_of_a_key_file() {
    let key = ModelKey::new(Secret::fill_with(|bytes| *bytes = MARK));
    let file = String::from_utf8(write_open_key_file(&key).expose().to_vec()).unwrap();
    use base64::Engine;
    let secret = base64::engine::general_purpose::STANDARD.encode(MARK);
    for (from, to) in [
        ("\"version\": 1", format!("\"version\": \"{secret}\"")),
        ("\"version\": 1", format!("\"{secret}\": 1, \"version\": 1")),
        ("\"kllm-key\"", format!("\"{secret}\"")),
        ("\"none\"", format!("\"{secret}\"")),
        (&key.fingerprint().to_string(), secret.clone()),
        (
            &key.fingerprint().to_string(),
            "0000-0000-0000-0000".to_owned(),
        ),
    ] {
        let altered = file.replacen(from, &to, 1);
        let error = KeyFile::parse(altered.as_bytes()).map(|_| ()).unwrap_err();
        assert_silent(&error);
        assert_silent(&error.to_string());
    }
}
