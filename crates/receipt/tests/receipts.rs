//! Receipts and bundles: what verifies, and every change that does not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use ed25519_dalek::SigningKey;
use identifiers::{KeyId, ReceiptId, Role, Sha256Digest, SpiffeId};
use proptest::prelude::*;
use receipt::{
    ArtifactRef, BundleError, EnvelopeError, Event, KeyRef, MAX_ENTRY, NewReceipt, Receipt,
    ReceiptError, Resource, TrustedSigners, WeightIdentity, sign_model, verify_model,
};
use shard_identity::{Shard, ShardManifest};

fn id(role: Role, name: &str) -> SpiffeId {
    SpiffeId::new("chancery.test", role, name).unwrap()
}

fn key(byte: u8) -> SigningKey {
    SigningKey::from_bytes(&[byte; 32])
}

fn receipt() -> Receipt {
    let manifest = ShardManifest::new(vec![Shard {
        filename: "model.safetensors".to_owned(),
        size_bytes: 7,
        sha256: Sha256Digest::new([3; 32]),
    }])
    .unwrap();
    Receipt {
        key: Some(KeyRef {
            id: KeyId::from_parts(1, &[1; 10]),
            fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
            version: 1,
        }),
        artifact: Some(ArtifactRef {
            model: "tiny".to_owned(),
            digest: Sha256Digest::new([9; 32]),
        }),
        source: Some(WeightIdentity::of(&manifest)),
        units: vec![(4, 0, 4)],
        reason: Some("the \"quoted\" reason".to_owned()),
        ..NewReceipt {
            id: ReceiptId::from_parts(1, &[2; 10]),
            event: Event::Unlocked,
            actor: id(Role::Inference, "node-1"),
            replica: id(Role::KeyService, "ks-1"),
            time: 1_700_000_000_123,
        }
        .into()
    }
}

fn signers() -> TrustedSigners {
    let mut signers = TrustedSigners::new();
    signers.insert(id(Role::KeyService, "ks-1"), key(1).verifying_key());
    signers.insert(id(Role::Sealer, "sealer-1"), key(2).verifying_key());
    signers
}

#[test]
fn a_signed_receipt_verifies_and_signing_again_gives_the_same_bytes() {
    let entry = receipt().sign(&key(1)).unwrap();
    assert_eq!(entry, receipt().sign(&key(1)).unwrap());
    let verified = Receipt::verify(&entry, &signers()).unwrap();
    assert_eq!(verified.receipt(), &receipt());
}

#[test]
fn every_event_has_one_name() {
    for event in Event::ALL {
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, format!("\"{}\"", event.as_str()));
    }
}

#[test]
fn a_replica_cannot_sign_for_another() {
    let entry = receipt().sign(&key(2)).unwrap();
    let error = Receipt::verify(&entry, &signers()).unwrap_err();
    assert!(matches!(error, ReceiptError::OtherSigner { .. }), "{error}");
    let entry = receipt().sign(&key(3)).unwrap();
    let error = Receipt::verify(&entry, &signers()).unwrap_err();
    assert!(matches!(
        error,
        ReceiptError::Envelope(EnvelopeError::UnknownKey(_))
    ));
}

#[test]
fn a_receipt_too_large_for_a_log_entry_is_refused() {
    let large = Receipt {
        reason: Some("x".repeat(MAX_ENTRY)),
        ..receipt()
    };
    assert!(matches!(
        large.sign(&key(1)),
        Err(ReceiptError::TooLarge(_))
    ));
}

#[test]
fn many_shards_are_named_by_their_summary() {
    let shards = |n: u32| {
        let shards = (0..n)
            .map(|i| Shard {
                filename: format!("{}-{i:05}.safetensors", "n".repeat(230)),
                size_bytes: u64::from(u32::MAX),
                sha256: Sha256Digest::new([7; 32]),
            })
            .collect();
        WeightIdentity::of(&ShardManifest::new(shards).unwrap())
    };
    assert!(shards(100).manifest.is_some());
    assert!(shards(101).manifest.is_none());
    let largest = Receipt {
        source: Some(shards(100)),
        ..receipt()
    };
    assert!(largest.sign(&key(1)).is_ok());
}

proptest! {
    #[test]
    fn any_changed_byte_is_refused(at in any::<prop::sample::Index>(), flip in 1_u8..) {
        let entry = receipt().sign(&key(1)).unwrap();
        let mut changed = entry.clone();
        changed[at.index(entry.len())] ^= flip;
        if let Ok(verified) = Receipt::verify(&changed, &signers()) {
            // Only JSON that says the same may pass.
            prop_assert_eq!(verified.receipt(), &receipt());
        }
    }
}

fn files() -> Vec<Resource> {
    ["config.json", "a-b", "a/b.bin", "模型 é.safetensors"]
        .iter()
        .zip(1_u8..)
        .map(|(name, byte)| Resource {
            name: (*name).to_owned(),
            sha256: Sha256Digest::new([byte; 32]),
        })
        .collect()
}

fn model_key() -> p256::ecdsa::SigningKey {
    p256::ecdsa::SigningKey::from_slice(&[5; 32]).unwrap()
}

#[test]
fn a_model_bundle_verifies_against_exactly_its_files() {
    let key = model_key();
    let bundle = sign_model("tiny", files(), &key).unwrap();
    let check =
        |present: &[Resource]| verify_model(bundle.as_bytes(), present, key.verifying_key());
    assert_eq!(check(&files()), Ok(()));
    let mut differs = files();
    differs[0].sha256 = Sha256Digest::new([0; 32]);
    let mut extra = files();
    extra.push(Resource {
        name: "stray.bin".to_owned(),
        sha256: Sha256Digest::new([0; 32]),
    });
    for (present, what) in [
        (differs, "differs"),
        (files()[1..].to_vec(), "missing"),
        (extra, "not signed"),
    ] {
        let Err(BundleError::File { what: found, .. }) = check(&present) else {
            panic!("{what} is accepted");
        };
        assert_eq!(found, what);
    }
    let other = p256::ecdsa::SigningKey::from_slice(&[6; 32]).unwrap();
    assert_eq!(
        verify_model(bundle.as_bytes(), &files(), other.verifying_key()),
        Err(BundleError::OtherKey)
    );
}

#[test]
fn what_the_public_tool_lets_through_is_refused() {
    let key = model_key();
    let outside = vec![Resource {
        name: "../k.pub".to_owned(),
        sha256: Sha256Digest::new([1; 32]),
    }];
    assert!(matches!(
        sign_model("tiny", outside, &key),
        Err(BundleError::Path(_))
    ));
}

#[test]
#[ignore = "writes the fuzz corpus"]
fn write_corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/receipt_entry");
    let write =
        |name: &str, entry: Vec<u8>| std::fs::write(format!("{folder}/{name}"), entry).unwrap();
    write("unlocked", receipt().sign(&key(1)).unwrap());
    let refused = Receipt {
        event: Event::Refused,
        source: None,
        artifact: None,
        ..receipt()
    };
    write("refused", refused.sign(&key(1)).unwrap());
    write("other-signer", receipt().sign(&key(2)).unwrap());
}
