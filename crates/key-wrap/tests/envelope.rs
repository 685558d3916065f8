//! The root key's envelope: round trip, binding, every altered byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use identifiers::{Fingerprint, KeyId};
use key_wrap::{
    EnvelopeError, RootKey, WRAPPED_MODEL_KEY, unwrap_model_key, wrap_model_key, wrapped_under,
};
use model_key::{ModelKey, SubkeySource};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use secret::{Secret, SecretBytes};

fn root(byte: u8) -> RootKey {
    RootKey::new(&Secret::fill_with(|bytes| bytes.fill(byte)))
}

fn key_id(byte: u8) -> KeyId {
    KeyId::from_parts(1_700_000_000_000, &[byte; 10])
}

fn wrapped() -> (ModelKey, Vec<u8>) {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let envelope = wrap_model_key(&root(1), &key, key_id(1), 3, &mut rng);
    (key, envelope)
}

#[test]
fn an_envelope_opens_for_what_it_was_made_for_only() {
    let (key, envelope) = wrapped();
    let print = key.fingerprint();
    assert_eq!(envelope.len(), WRAPPED_MODEL_KEY);
    assert!(!envelope.windows(8).any(|part| part == &key.expose()[..8]));
    let opened = unwrap_model_key(&root(1), &envelope, key_id(1), print, 3).unwrap();
    assert_eq!(opened.expose(), key.expose());
    assert_eq!(wrapped_under(&envelope), Ok(root(1).id()));

    let refused = |root: &RootKey, id, print, version| {
        unwrap_model_key(root, &envelope, id, print, version).unwrap_err()
    };
    let other = Fingerprint::new([0; 8]);
    assert_eq!(
        refused(&root(1), key_id(2), print, 3),
        EnvelopeError::Altered
    );
    assert_eq!(
        refused(&root(1), key_id(1), other, 3),
        EnvelopeError::Altered
    );
    assert_eq!(
        refused(&root(1), key_id(1), print, 4),
        EnvelopeError::Altered
    );
    assert_eq!(
        refused(&root(2), key_id(1), print, 3),
        EnvelopeError::RootKey {
            wrapped: root(1).id(),
            given: root(2).id()
        }
    );
}

#[test]
fn every_altered_byte_and_every_length_is_refused() {
    let (key, envelope) = wrapped();
    let open = |bytes: &[u8]| {
        unwrap_model_key(&root(1), bytes, key_id(1), key.fingerprint(), 3).map(|_| ())
    };
    for at in 0..envelope.len() {
        let mut altered = envelope.clone();
        altered[at] ^= 1;
        let error = open(&altered).unwrap_err();
        let expected = match at {
            0 => matches!(error, EnvelopeError::Version(0)),
            1..=8 => matches!(error, EnvelopeError::RootKey { .. }),
            _ => error == EnvelopeError::Altered,
        };
        assert!(expected, "byte {at}: {error}");
        assert!(open(&envelope[..at]).is_err(), "cut at {at}");
    }
    let longer = [&envelope[..], &[0]].concat();
    assert_eq!(open(&longer), Err(EnvelopeError::Length(70)));
}

#[test]
fn wrapping_twice_gives_two_envelopes() {
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let first = wrap_model_key(&root(1), &key, key_id(1), 3, &mut rng);
    let second = wrap_model_key(&root(1), &key, key_id(1), 3, &mut rng);
    assert_eq!(first, wrapped().1, "the same rng gives the same envelope");
    assert_ne!(first[9..21], second[9..21]);
    assert_ne!(first[21..], second[21..]);
}

#[test]
fn root_keys_are_read_raw_or_in_hex() {
    let raw = RootKey::from_file_content(&SecretBytes::new(vec![0xab; 32])).unwrap();
    for text in ["ab".repeat(32), "ab".repeat(32) + "\n"] {
        let read = RootKey::from_file_content(&SecretBytes::new(text.into_bytes())).unwrap();
        assert_eq!(read.id(), raw.id());
    }
    for bad in [
        vec![],
        vec![1; 31],
        vec![1; 33],
        vec![b'z'; 64],
        vec![b'a'; 66],
    ] {
        let error = RootKey::from_file_content(&SecretBytes::new(bad)).unwrap_err();
        assert_eq!(error, EnvelopeError::RootKeyFile);
    }
}

#[test]
fn printing_shows_no_secret() {
    let text = format!("{:?} {:?}", root(0x4d), wrapped().0);
    assert!(!text.contains("4d4d") && !text.contains("77, 77"), "{text}");
    assert!(text.contains(&root(0x4d).id()), "{text}");
}
