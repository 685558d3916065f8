//! Key files: the reference's, ours, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixtures;

use fixtures::{folder, json};
use model_key::{
    KeyFile, KeyFileError, ModelKey, Passphrase, ScryptCost, SubkeySource, write_open_key_file,
    write_sealed_key_file,
};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Infallible, SeedableRng, TryCryptoRng, TryRng};
use secret::{Secret, SecretBytes};

fn passphrase(text: &str) -> Passphrase {
    Passphrase::new(SecretBytes::new(text.as_bytes().to_vec())).unwrap()
}

/// Gives the bytes it was made with, then panics.
struct Given(Vec<u8>);

impl TryRng for Given {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        unreachable!("only bytes are asked for")
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        unreachable!("only bytes are asked for")
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        out.copy_from_slice(&self.0[..out.len()]);
        self.0.drain(..out.len());
        Ok(())
    }
}

impl TryCryptoRng for Given {}

fn base64(value: &serde_json::Value) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD
        .decode(value.as_str().unwrap())
        .unwrap()
}

#[test]
fn the_reference_s_files_open_and_are_written_alike() {
    let Some(folder) = folder() else { return };
    let index = json(&folder, "keys/index.json");
    for (name, entry) in index["keys"].as_object().unwrap() {
        let read = |path: &serde_json::Value| {
            std::fs::read(folder.join("keys").join(path.as_str().unwrap())).unwrap()
        };
        let bytes = read(&entry["open_file"]);
        let key = KeyFile::parse(&bytes).unwrap().open(None).unwrap();
        assert_eq!(hex::encode(key.expose()), entry["secret"].as_str().unwrap());
        assert_eq!(write_open_key_file(&key).expose(), bytes, "{name}");

        for sealed in ["pass_file", "pass_file_default"] {
            let Some(path) = entry[sealed].get("path") else {
                continue;
            };
            let bytes = read(path);
            let words = passphrase(entry[sealed]["passphrase"].as_str().unwrap());
            let file = KeyFile::parse(&bytes).unwrap();
            assert_eq!(file.fingerprint(), key.fingerprint());
            let opened = file.open(Some(&words)).unwrap();
            assert_eq!(opened.expose(), key.expose());

            let written: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            let mut drawn = base64(&written["kdf"]["salt"]);
            drawn.extend(base64(&written["cipher"]["nonce"]));
            let n = entry[sealed]["scrypt_n"].as_u64().unwrap();
            let cost = ScryptCost::new(n, 8, 1).unwrap();
            let ours = write_sealed_key_file(&key, &words, cost, &mut Given(drawn)).unwrap();
            assert_eq!(ours, bytes, "{name} {sealed}");
        }
    }
}

#[test]
fn the_bad_files_are_refused_with_their_reason() {
    let Some(folder) = folder() else { return };
    let index = json(&folder, "bad/index.json");
    let mut cases = 0;
    for case in index["cases"].as_array().unwrap() {
        if case["operation"] != "load-key" {
            continue;
        }
        cases += 1;
        let id = case["id"].as_str().unwrap();
        let bytes = std::fs::read(folder.join("bad").join(case["path"].as_str().unwrap())).unwrap();
        let words = passphrase(case["passphrase"].as_str().unwrap());
        let error = KeyFile::parse(&bytes)
            .and_then(|file| file.open(Some(&words)))
            .map(|_| ())
            .expect_err(id);
        let expected = match id {
            "keys/wrong-passphrase" | "keys/fingerprint-altered" | "keys/kdf-altered" => {
                matches!(error, KeyFileError::WrongPassphrase)
            }
            "keys/open-altered" => matches!(error, KeyFileError::Fingerprint { .. }),
            "keys/version-2" => error == KeyFileError::Version(2),
            "keys/other-format" => error == KeyFileError::Format,
            "keys/not-json" => matches!(error, KeyFileError::Malformed { line: 1, .. }),
            "keys/short-secret" => matches!(
                error,
                KeyFileError::Bytes {
                    field: "secret",
                    ..
                }
            ),
            other => panic!("no expectation for {other}"),
        };
        assert!(expected, "{id}: {error}");
    }
    assert_eq!(cases, 8);
}

const SEALED: &str = r#"{"format":"kllm-key","version":1,"fingerprint":"02e8-f278-c518-dfcd","kdf":{"name":"scrypt","salt":"RZQIkoHJShsxzse8KZg9fg==","n":16384,"r":8,"p":1},"cipher":{"name":"aes-256-gcm","nonce":"V2LjMCtdOm4FWq12"},"ciphertext":"8OXNhHBpl0ggRZCFT3rvE1ahNMjQb+saWoyPbOiVnYz/z4yRrbKBGFAMiJMtjOJY"}"#;

#[test]
fn altered_fields_are_refused_before_scrypt_runs() {
    assert!(KeyFile::parse(SEALED.as_bytes()).is_ok());
    for (from, to) in [
        ("\"n\":16384", "\"n\":16383"),
        ("\"n\":16384", "\"n\":1"),
        ("\"n\":16384", "\"n\":0"),
        ("\"n\":16384", "\"n\":-2"),
        ("\"n\":16384", "\"n\":2097152"),
        ("\"n\":16384", "\"n\":9223372036854775808"),
        ("\"r\":8", "\"r\":0"),
        ("\"r\":8", "\"r\":4294967296"),
        ("\"p\":1", "\"p\":0"),
        ("\"p\":1", "\"p\":1000"),
        ("\"scrypt\"", "\"argon2\""),
        ("\"aes-256-gcm\"", "\"rot13\""),
        ("V2LjMCtdOm4FWq12", "V2LjMCtdOm4FWq1="),
        ("V2LjMCtdOm4FWq12", "V2LjMCtdOm4F"),
        ("fg==", "fh=="),
        ("fg==", "fg"),
        ("02e8-", "02E8-"),
        ("\"version\":1", "\"version\":1,\"extra\":0"),
        ("\"version\":1", "\"version\":1,\"version\":1"),
        ("\"version\":1", "\"version\":1.0"),
        ("\"p\":1", "\"p\":1,\"q\":1"),
    ] {
        let altered = SEALED.replacen(from, to, 1);
        assert_ne!(altered, SEALED);
        assert!(KeyFile::parse(altered.as_bytes()).is_err(), "{to}");
    }
    let mut long = SEALED.as_bytes().to_vec();
    long.resize(64 * 1024 + 1, b' ');
    assert_eq!(
        KeyFile::parse(&long).map(|_| ()),
        Err(KeyFileError::TooLong { length: 65537 })
    );
    for end in 0..SEALED.len() {
        assert!(
            KeyFile::parse(&SEALED.as_bytes()[..end]).is_err(),
            "cut at {end}"
        );
    }
}

#[test]
fn short_passphrases_and_weak_costs_are_not_written() {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(1)));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let cost = ScryptCost::new(16384, 8, 1).unwrap();
    assert_eq!(
        write_sealed_key_file(&key, &passphrase("日本語日本語日本語"), cost, &mut rng),
        Err(KeyFileError::ShortPassphrase)
    );
    let weak = ScryptCost::new(8192, 8, 1).unwrap();
    assert!(matches!(
        write_sealed_key_file(&key, &passphrase("ten chars!"), weak, &mut rng),
        Err(KeyFileError::Cost(_))
    ));
    let bytes =
        write_sealed_key_file(&key, &passphrase("日本語日本語日本語!"), cost, &mut rng).unwrap();
    let file = KeyFile::parse(&bytes).unwrap();
    let opened = file.open(Some(&passphrase("日本語日本語日本語!"))).unwrap();
    assert_eq!(opened.expose(), key.expose());
    assert!(matches!(
        KeyFile::parse(&bytes).unwrap().open(None),
        Err(KeyFileError::PassphraseNeeded)
    ));
    let not_utf8 = Passphrase::new(SecretBytes::new(vec![0xff; 12]));
    assert_eq!(
        not_utf8.map(|_| ()).unwrap_err(),
        KeyFileError::PassphraseNotUtf8
    );
}
