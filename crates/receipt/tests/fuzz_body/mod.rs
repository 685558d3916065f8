//! What the fuzz target and the corpus replay both run.

use ed25519_dalek::SigningKey;
use identifiers::{Role, SpiffeId};
use receipt::{Receipt, TrustedSigners};

/// Any bytes are refused or verified; a verified receipt signs to an entry that verifies to itself.
pub fn receipt_entry(bytes: &[u8]) {
    let key = SigningKey::from_bytes(&[1; 32]);
    let replica = SpiffeId::new("chancery.test", Role::KeyService, "ks-1").expect("a valid id");
    let mut signers = TrustedSigners::new();
    signers.insert(replica, key.verifying_key());
    if let Ok(verified) = Receipt::verify(bytes, &signers) {
        let again = verified.receipt().sign(&key).expect("it fitted before");
        let again = Receipt::verify(&again, &signers).expect("what is signed verifies");
        assert_eq!(again, verified);
    }
}
