//! No two ids give one derivation, and the listed ids suffice for every draw.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use model_key::{
    Component, GrantedSubkeys, Label, LockVersion, ModelKey, Part, Path, Scope, ScopedSite, Site,
    SubkeyId, SubkeySource, TensorId,
};
use model_key::{Scoped, stream_id};
use proptest::prelude::*;
use secret::Secret;

const COMPONENTS: [Component; 5] = [
    Component::Model,
    Component::H3TextEncoder,
    Component::H3Dit,
    Component::ZImageTextEncoder,
    Component::ZImageLatent,
];

fn scopes(i: u32) -> [Scope; 10] {
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
    ]
}

fn scoped_sites(i: u32) -> [ScopedSite; 13] {
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
    ]
}

fn parts(i: u64) -> [Part; 6] {
    [
        Part::Sign,
        Part::Blocks,
        Part::In(i),
        Part::Group(i),
        Part::ScaleStream,
        Part::SignStream,
    ]
}

const WHOLE_SITES: [Site; 6] = [
    Site::ResidualPerm,
    Site::Residual,
    Site::Vocab,
    Site::LatentVideo,
    Site::LatentAudio,
    Site::LatentBasis,
];

#[test]
fn every_small_path_renders_apart() {
    let numbers = [0u32, 1, 11];
    let mut sites = WHOLE_SITES.to_vec();
    for scope in numbers.into_iter().flat_map(scopes) {
        for site in numbers.into_iter().flat_map(scoped_sites) {
            sites.push(Site::Scoped(scope, site));
        }
    }
    sites.sort_unstable();
    sites.dedup();
    let steps: Vec<Part> = numbers.iter().flat_map(|i| parts(u64::from(*i))).collect();
    let mut steps = steps;
    steps.sort_unstable();
    steps.dedup();
    let mut seen = HashMap::new();
    let mut check = |path: Path| {
        let text = path.to_string();
        if let Some(other) = seen.insert(text, path.clone()) {
            assert_eq!(other, path);
        }
    };
    for site in sites {
        let path = Path::new(site);
        for first in &steps {
            for second in &steps {
                check(path.then(*first).then(*second));
            }
            check(path.then(*first));
        }
        check(path);
    }
}

fn any_path() -> impl Strategy<Value = Path> {
    let number = prop_oneof![0..3u32, Just(10), Just(u32::MAX)];
    let scoped = (number.clone(), 0..10usize, number, 0..13usize)
        .prop_map(|(i, scope, j, site)| Site::Scoped(scopes(i)[scope], scoped_sites(j)[site]));
    let site = prop_oneof![prop::sample::select(WHOLE_SITES.to_vec()), scoped];
    let part = (prop_oneof![0..3u64, Just(u64::MAX)], 0..6usize).prop_map(|(i, k)| parts(i)[k]);
    (site, prop::collection::vec(part, 0..4)).prop_map(|(site, parts)| Path { site, parts })
}

fn any_tensor() -> impl Strategy<Value = TensorId> {
    // Texts that look like other labels, and any text that the check lets through.
    let pieces = prop::sample::select(vec![
        "v1",
        "v2",
        "lock",
        "perm",
        "stream",
        "vocab",
        "l1",
        "trusted-blob",
        "fingerprint",
        "jlm",
        "a",
        "h3",
        "dit",
    ]);
    prop_oneof![
        prop::collection::vec(pieces, 1..4).prop_map(|pieces| pieces.join("/")),
        "\\PC{1,12}",
    ]
    .prop_filter_map("not a tensor id", |text| TensorId::new(&text))
}

fn any_id() -> impl Strategy<Value = SubkeyId> {
    let salt = prop_oneof![Just([0; 16]), any::<[u8; 16]>()];
    let version = prop_oneof![Just(LockVersion::V1), Just(LockVersion::V2)];
    let label = prop_oneof![
        any_path().prop_map(Label::Permutation),
        any_path().prop_map(Label::Stream),
        (version, any_tensor()).prop_map(|(version, tensor)| Label::Lock(version, tensor)),
        salt.clone().prop_map(Label::TrustedBlob),
        (salt, 0..3u8, 0..3u64).prop_map(|(salt, region, unit)| Label::ContainerUnit {
            salt,
            region,
            unit
        }),
    ];
    (prop::sample::select(COMPONENTS.to_vec()), label)
        .prop_map(|(component, label)| SubkeyId { component, label })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_two_ids_give_one_derivation(ids in prop::collection::vec(any_id(), 2..200)) {
        // The reserved labels that no id may reach, under the model key.
        let mut seen: HashMap<(Component, String), Option<SubkeyId>> = HashMap::new();
        seen.insert((Component::Model, "fingerprint".to_owned()), None);
        for component in COMPONENTS {
            seen.insert((component, "fingerprint".to_owned()), None);
            if let Some(label) = component.label() {
                seen.insert((Component::Model, label.to_owned()), None);
            }
        }
        for id in ids {
            let text = id.label.to_string();
            prop_assert!(!text.starts_with("catalog/"));
            if let Some(other) = seen.insert((id.component, text), Some(id.clone())) {
                prop_assert_eq!(other, Some(id));
            }
        }
    }
}

#[test]
fn tensor_ids_that_could_mislead_are_refused() {
    let long = "a".repeat(513);
    for bad in [
        "",
        "/",
        "a//b",
        "../fingerprint",
        "a/..",
        "./a",
        "a/.",
        "a\nb",
        "a\0",
        "a/",
        &long,
    ] {
        assert_eq!(TensorId::new(bad), None, "{bad:?}");
    }
}

fn granted(key: &ModelKey, ids: Vec<SubkeyId>) -> GrantedSubkeys {
    let mut grant = GrantedSubkeys::new(key.fingerprint());
    let listed = ids.len();
    grant.extend(ids.into_iter().map(|id| {
        let subkey = key.subkey(&id).unwrap();
        (id, subkey)
    }));
    assert_eq!(grant.len(), listed, "an id is listed twice");
    grant
}

#[test]
fn a_grant_of_the_listed_ids_suffices_and_nothing_is_listed_in_vain() {
    use model_key as mk;

    type Draw = fn(&Scoped<'_>, &Path) -> Result<Vec<u32>, mk::DrawError>;
    type Ids = fn(Component, &Path) -> Vec<SubkeyId>;
    let cases: [(Draw, Ids); 7] = [
        (
            |s, p| mk::permutation(s, p, 50),
            |c, p| vec![mk::permutation_id(c, p)],
        ),
        (
            |s, p| mk::grouped(s, p, 50, Some(16)),
            |c, p| mk::grouped_ids(c, p, 50, Some(16)).unwrap(),
        ),
        (
            |s, p| mk::pairs(s, p, 48, Some(32)),
            |c, p| mk::pairs_ids(c, p, 48, Some(32)).unwrap(),
        ),
        (
            |s, p| mk::blocks(s, p, 256, &[64, 0, 16]),
            |c, p| mk::blocks_ids(c, p, 256, &[64, 0, 16]).unwrap(),
        ),
        (
            |s, p| mk::signed_permutation(s, p, 64, &[8]).map(|drawn| drawn.index),
            |c, p| mk::signed_permutation_ids(c, p, 64, &[8]).unwrap(),
        ),
        (
            |s, p| {
                mk::scales(s, p, 9, mk::Exponents::Each).map(|drawn| vec![drawn.sign.len() as u32])
            },
            |c, p| vec![stream_id(c, &p.then(Part::ScaleStream))],
        ),
        (
            |s, p| mk::high_signs(s, p, 9).map(|drawn| vec![drawn.len() as u32]),
            |c, p| vec![stream_id(c, &p.then(Part::SignStream))],
        ),
    ];
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(3)));
    let path = Path::scoped(Scope::Layer(2), ScopedSite::Ffn);
    for (draw, ids) in cases {
        for component in COMPONENTS {
            let listed = ids(component, &path);
            let mut grant = granted(&key, listed.clone());
            let from_grant = draw(&Scoped::new(&grant, component), &path);
            assert_eq!(from_grant, draw(&Scoped::new(&key, component), &path));
            for id in listed {
                let subkey = grant.subkey(&id).unwrap();
                assert!(grant.remove(&id));
                let refused = draw(&Scoped::new(&grant, component), &path).unwrap_err();
                assert!(
                    refused
                        .to_string()
                        .ends_with("the grant does not include it"),
                    "{refused}"
                );
                grant.insert(id, subkey);
            }
        }
    }
}
