//! Keys encrypted to a caller: round trip, binding, every altered byte.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use identifiers::{CapabilityId, Fingerprint, GrantId};
use key_wrap::{
    MAX_SUBKEYS, Purpose, RecipientKey, Sealed, WrapError, open_model_key, open_subkeys,
    seal_model_key, seal_subkeys,
};
use model_key::{
    Component, Label, LockVersion, ModelKey, Path, Site, Subkey, SubkeyId, SubkeySource, TensorId,
};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use secret::Secret;

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn grant(byte: u8) -> Purpose {
    Purpose::Grant(GrantId::from_parts(1, &[byte; 10]))
}

fn ids() -> Vec<SubkeyId> {
    let id = |component, label| SubkeyId { component, label };
    let tensor = TensorId::new("model.norm.weight").unwrap();
    vec![
        id(Component::Model, Label::Permutation(Path::new(Site::Vocab))),
        id(Component::H3Dit, Label::Stream(Path::new(Site::Residual))),
        id(Component::Model, Label::Lock(LockVersion::V2, tensor)),
    ]
}

fn model_key() -> ModelKey {
    ModelKey::new(Secret::fill_with(|bytes| bytes.fill(7)))
}

fn subkeys(ids: &[SubkeyId]) -> Vec<Subkey> {
    let key = model_key();
    ids.iter().map(|id| key.subkey(id).unwrap()).collect()
}

fn sealed(recipient: &RecipientKey) -> Sealed {
    let ids = ids();
    seal_subkeys(
        &mut rng(2),
        &recipient.public_key(),
        grant(1),
        &ids,
        &subkeys(&ids),
    )
    .unwrap()
}

#[test]
fn a_batch_opens_for_its_recipient_purpose_and_ids_only() {
    let recipient = RecipientKey::generate(&mut rng(1));
    let batch = sealed(&recipient);
    assert_eq!(
        batch,
        sealed(&recipient),
        "the same rng gives the same batch"
    );
    assert_eq!(
        open_subkeys(&recipient, grant(1), &ids(), &batch).unwrap(),
        subkeys(&ids())
    );

    let refused = |recipient: &RecipientKey, purpose, ids: &[SubkeyId]| {
        open_subkeys(recipient, purpose, ids, &batch).unwrap_err()
    };
    let other = RecipientKey::generate(&mut rng(9));
    assert_eq!(refused(&other, grant(1), &ids()), WrapError::Altered);
    assert_eq!(refused(&recipient, grant(2), &ids()), WrapError::Altered);
    // The same 16 bytes as another kind of id.
    let capability = Purpose::Capability(CapabilityId::from_parts(1, &[1; 10]));
    assert_eq!(refused(&recipient, capability, &ids()), WrapError::Altered);
    let mut swapped = ids();
    swapped.swap(0, 2);
    assert_eq!(refused(&recipient, grant(1), &swapped), WrapError::Altered);
    let mut renamed = ids();
    renamed[1].component = Component::Model;
    assert_eq!(refused(&recipient, grant(1), &renamed), WrapError::Altered);
    assert_eq!(
        refused(&recipient, grant(1), &ids()[..2]),
        WrapError::Length {
            expected: 80,
            actual: 112
        }
    );
}

#[test]
fn every_altered_byte_is_refused() {
    let recipient = RecipientKey::generate(&mut rng(1));
    let batch = sealed(&recipient);
    let open = |batch: &Sealed| open_subkeys(&recipient, grant(1), &ids(), batch);
    for at in 0..batch.ciphertext.len() {
        let mut altered = batch.clone();
        altered.ciphertext[at] ^= 0x80;
        assert_eq!(open(&altered), Err(WrapError::Altered), "byte {at}");
    }
    for at in 0..32 {
        let mut altered = batch.clone();
        altered.enc[at] ^= 1;
        assert_eq!(open(&altered), Err(WrapError::Altered), "enc {at}");
    }
    let low_order = Sealed {
        enc: [0; 32],
        ..batch
    };
    assert_eq!(open(&low_order), Err(WrapError::Altered));
}

#[test]
fn what_cannot_be_wrapped_is_refused() {
    let recipient = RecipientKey::generate(&mut rng(1)).public_key();
    let seal = |to: &[u8; 32], ids: &[SubkeyId], subkeys: &[Subkey]| {
        seal_subkeys(&mut rng(2), to, grant(1), ids, subkeys).unwrap_err()
    };
    let ids = ids();
    assert_eq!(seal(&[0; 32], &ids, &subkeys(&ids)), WrapError::Recipient);
    assert_eq!(seal(&recipient, &[], &[]), WrapError::Count(0));
    assert_eq!(
        seal(&recipient, &ids, &subkeys(&ids[..2])),
        WrapError::Ids { ids: 3, subkeys: 2 }
    );
    let many = vec![ids[0].clone(); MAX_SUBKEYS + 1];
    assert_eq!(seal(&recipient, &many, &[]), WrapError::Count(4097));
}

#[test]
fn a_full_batch_round_trips() {
    let recipient = RecipientKey::from_seed(&Secret::fill_with(|bytes| bytes.fill(4)));
    let unit = |unit| SubkeyId {
        component: Component::Model,
        label: Label::ContainerUnit {
            salt: [5; 16],
            region: 4,
            unit,
        },
    };
    let ids: Vec<SubkeyId> = (0..MAX_SUBKEYS as u64).map(unit).collect();
    let keys = subkeys(&ids);
    let batch = seal_subkeys(&mut rng(2), &recipient.public_key(), grant(1), &ids, &keys).unwrap();
    assert_eq!(
        open_subkeys(&recipient, grant(1), &ids, &batch).unwrap(),
        keys
    );
}

#[test]
fn a_model_key_is_imported_under_its_fingerprint_only() {
    let import = RecipientKey::generate(&mut rng(1));
    let key = model_key();
    let print = key.fingerprint();
    let batch = seal_model_key(&mut rng(3), &import.public_key(), &key).unwrap();
    let opened = open_model_key(&import, print, &batch).unwrap();
    assert_eq!(opened.expose(), key.expose());
    let other = Fingerprint::new([1; 8]);
    assert_eq!(
        open_model_key(&import, other, &batch).map(|_| ()),
        Err(WrapError::Altered)
    );
    for at in 0..batch.ciphertext.len() {
        let mut altered = batch.clone();
        altered.ciphertext[at] ^= 1;
        assert!(open_model_key(&import, print, &altered).is_err());
    }
}

#[test]
fn printing_shows_no_secret() {
    let recipient = RecipientKey::from_seed(&Secret::fill_with(|bytes| bytes.fill(0x4d)));
    let text = format!("{recipient:?} {:?}", sealed(&recipient));
    assert!(!text.contains("4d4d4d"), "{text}");
    assert!(!text.contains("77, 77, 77"), "{text}");
}
