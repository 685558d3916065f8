//! What the fuzz target and the corpus replay both run.

use capability::{CertificateThumbprint, Verifier, mint};
use ed25519_dalek::SigningKey;
use identifiers::{Role, SpiffeId};

/// Any text is refused or verified; a token that verifies is the one spelling of its claims.
pub fn token(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let key = SigningKey::from_bytes(&[7; 32]);
    let issuer = SpiffeId::new("chancery.test", Role::KeyService, "one").expect("a valid id");
    let verifier = Verifier::new([("key-service-1".to_owned(), key.verifying_key())], issuer);
    let peer = CertificateThumbprint::of_der(b"a certificate");
    if let Ok(claims) = verifier.verify(text, 1_800_000_000, &peer, 30) {
        assert_eq!(mint(&key, "key-service-1", &claims).as_deref(), Ok(text));
    }
}
