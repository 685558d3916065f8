//! Labels survive the way through a message, and two messages never mean one label.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use api::v1;
use key_client::{Salts, subkey_from_proto, subkey_to_proto};
use model_key::{
    Component, Label, LockVersion, Part, Path, Scope, ScopedSite, Site, SubkeyId, TensorId,
};
use proptest::prelude::*;

const SALTS: Salts = Salts {
    blob: Some([1; 16]),
    container: Some([2; 16]),
};

fn scope() -> impl Strategy<Value = Scope> {
    (any::<u32>(), 0..10usize).prop_map(|(i, kind)| {
        [
            Scope::Layer(i),
            Scope::LayerName(i),
            Scope::Mtp(i),
            Scope::MtpName(i),
            Scope::Block(i),
            Scope::Refiner(i),
            Scope::D1NoiseRefiner(i),
            Scope::D1ContextRefiner(i),
            Scope::D1SiglipRefiner(i),
            Scope::D1Layer(i),
        ][kind]
    })
}

fn scoped_site() -> impl Strategy<Value = ScopedSite> {
    (any::<u32>(), 0..13usize).prop_map(|(i, kind)| {
        [
            ScopedSite::KvHeads,
            ScopedSite::Turns,
            ScopedSite::V,
            ScopedSite::VPerm(i),
            ScopedSite::Ffn,
            ScopedSite::ExpertFfn(i),
            ScopedSite::SharedFfn,
            ScopedSite::Experts,
            ScopedSite::Heads,
            ScopedSite::Pass,
            ScopedSite::AttnHead,
            ScopedSite::MlpChannels,
            ScopedSite::MlpHidden,
        ][kind]
    })
}

fn part() -> impl Strategy<Value = Part> {
    (any::<u64>(), 0..6usize).prop_map(|(i, kind)| {
        [
            Part::Sign,
            Part::Blocks,
            Part::In(i),
            Part::Group(i),
            Part::ScaleStream,
            Part::SignStream,
        ][kind]
    })
}

fn path() -> impl Strategy<Value = Path> {
    let site = prop_oneof![
        Just(Site::ResidualPerm),
        Just(Site::Residual),
        Just(Site::Vocab),
        Just(Site::LatentVideo),
        Just(Site::LatentAudio),
        Just(Site::LatentBasis),
        (scope(), scoped_site()).prop_map(|(scope, site)| Site::Scoped(scope, site)),
    ];
    (site, prop::collection::vec(part(), 0..=8)).prop_map(|(site, parts)| Path { site, parts })
}

fn label() -> impl Strategy<Value = Label> {
    let version = prop_oneof![Just(LockVersion::V1), Just(LockVersion::V2)];
    prop_oneof![
        path().prop_map(Label::Permutation),
        path().prop_map(Label::Stream),
        (version, "[a-z.]{1,20}x(/[a-z]{1,9})?")
            .prop_map(|(version, name)| { Label::Lock(version, TensorId::new(&name).unwrap()) }),
        Just(Label::TrustedBlob([1; 16])),
        (1..=6u8, any::<u64>()).prop_map(|(region, unit)| Label::ContainerUnit {
            salt: [2; 16],
            region,
            unit
        }),
    ]
}

fn id() -> impl Strategy<Value = SubkeyId> {
    let component = prop_oneof![
        Just(Component::Model),
        Just(Component::H3TextEncoder),
        Just(Component::H3Dit),
        Just(Component::ZImageTextEncoder),
        Just(Component::ZImageLatent),
    ];
    (component, label()).prop_map(|(component, label)| SubkeyId { component, label })
}

proptest! {
    #[test]
    fn a_label_comes_back_as_it_went(id in id()) {
        let message = subkey_to_proto(&id);
        prop_assert_eq!(subkey_from_proto(&message, &SALTS), Ok(id));
    }

    #[test]
    fn two_messages_never_mean_one_subkey(first in any_message(), second in any_message()) {
        let read = |message| subkey_from_proto(message, &SALTS);
        if let (Ok(one), Ok(other)) = (read(&first), read(&second)) {
            prop_assert_eq!(one == other, first == second);
        }
    }
}

/// Messages with small numbers, so that some of them are alike and some malformed.
fn any_message() -> impl Strategy<Value = v1::SubkeySpec> {
    let path = (
        0..3i32,
        0..3u32,
        0..6i32,
        0..2u32,
        prop::collection::vec((0..8i32, 0..2u64), 0..2),
    )
        .prop_map(
            |(scope, scope_index, site, site_index, parts)| v1::LabelPath {
                site: Some(v1::label_path::Site::Scoped(v1::ScopedSite {
                    scope,
                    scope_index,
                    site,
                    site_index,
                })),
                parts: parts
                    .into_iter()
                    .map(|(kind, index)| v1::LabelPart { kind, index })
                    .collect(),
            },
        );
    (0..3i32, path).prop_map(|(component, path)| v1::SubkeySpec {
        component,
        r#use: Some(v1::subkey_spec::Use::Stream(path)),
    })
}

#[test]
fn salts_come_from_the_grant_alone() {
    let blob = subkey_to_proto(&SubkeyId {
        component: Component::Model,
        label: Label::TrustedBlob([9; 16]),
    });
    let read = subkey_from_proto(&blob, &SALTS).unwrap();
    assert_eq!(read.label, Label::TrustedBlob([1; 16]));
    let error = subkey_from_proto(&blob, &Salts::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "subkeys.trusted_blob: the grant writes no trusted blob"
    );
}

#[test]
fn malformed_messages_are_refused_by_field() {
    let lock = |version: i32, tensor: &str| v1::SubkeySpec {
        component: 1,
        r#use: Some(v1::subkey_spec::Use::Lock(v1::LockUse {
            version,
            tensor: tensor.to_owned(),
        })),
    };
    let unit = |region| v1::SubkeySpec {
        component: 1,
        r#use: Some(v1::subkey_spec::Use::ContainerUnit(v1::ContainerUnitUse {
            region,
            unit: 0,
        })),
    };
    let cases = [
        (v1::SubkeySpec::default(), "subkeys.component"),
        (lock(1, "a"), "subkeys.lock.version"),
        (lock(9, "a"), "subkeys.lock.version"),
        (lock(3, "../fingerprint"), "subkeys.lock.tensor"),
        (lock(3, ""), "subkeys.lock.tensor"),
        (unit(0), "subkeys.container_unit.region"),
        (unit(257), "subkeys.container_unit.region"),
    ];
    for (message, field) in cases {
        let error = subkey_from_proto(&message, &SALTS).unwrap_err();
        assert_eq!(error.field, field, "{message:?}");
    }
}

#[test]
fn a_hundred_thousand_labels_take_no_time_to_convert() {
    let ids = (0..100_000).map(|unit| SubkeyId {
        component: Component::Model,
        label: Label::Lock(
            LockVersion::V2,
            TensorId::new(&format!(
                "model.layers.{unit}.mlp.experts.{unit}.down_proj.weight"
            ))
            .unwrap(),
        ),
    });
    let messages: Vec<v1::SubkeySpec> = ids.map(|id| subkey_to_proto(&id)).collect();
    let back: HashMap<SubkeyId, usize> = messages
        .iter()
        .enumerate()
        .map(|(index, message)| (subkey_from_proto(message, &SALTS).unwrap(), index))
        .collect();
    assert_eq!(back.len(), messages.len());
}
