//! Tokens: what is accepted, and each way of being refused.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as B64;
use capability::{CertificateThumbprint, Claims, Confirmation, Refusal, UnitRange, Verifier, mint};
use ed25519_dalek::{Signer as _, SigningKey};
use identifiers::{CapabilityId, KeyId, Role, Sha256Digest, SpiffeId};
use proptest::prelude::*;

const NOW: u64 = 1_800_000_000;
const SKEW: u64 = 30;
const KID: &str = "key-service-1";

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn peer() -> CertificateThumbprint {
    CertificateThumbprint::of_der(b"a certificate")
}

fn spiffe(role: Role) -> SpiffeId {
    SpiffeId::new("chancery.test", role, "one").unwrap()
}

fn claims() -> Claims {
    Claims {
        jti: CapabilityId::from_parts(1, &[1; 10]),
        iss: spiffe(Role::KeyService),
        sub: spiffe(Role::Inference),
        iat: NOW,
        nbf: NOW,
        exp: NOW + 300,
        cnf: Confirmation { x5t_s256: peer() },
        artifact: Sha256Digest::new([3; 32]),
        key_id: KeyId::from_parts(1, &[2; 10]),
        fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
        epoch: 4,
        blobs: vec![Sha256Digest::new([4; 32]), Sha256Digest::new([5; 32])],
        units: vec![
            UnitRange {
                region: 3,
                start: 0,
                end: 1,
            },
            UnitRange {
                region: 4,
                start: 0,
                end: 16,
            },
        ],
    }
}

fn verifier() -> Verifier {
    Verifier::new(
        [(KID.to_owned(), key().verifying_key())],
        spiffe(Role::KeyService),
    )
}

fn check(token: &str, now: u64) -> Result<Claims, Refusal> {
    verifier()
        .verify(token, now, &peer(), SKEW)
        .map(capability::Verified::into_inner)
}

/// A correctly signed token with any header and payload.
fn forge(header: &str, payload: &str) -> String {
    let signed = format!("{}.{}", B64.encode(header), B64.encode(payload));
    let signature = key().sign(signed.as_bytes());
    format!("{signed}.{}", B64.encode(signature.to_bytes()))
}

fn payload(change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> String {
    let mut value = serde_json::to_value(claims()).unwrap();
    change(value.as_object_mut().unwrap());
    value.to_string()
}

const HEADER: &str = r#"{"alg":"EdDSA","kid":"key-service-1","typ":"chancery-unlock+jwt"}"#;

#[test]
fn a_minted_token_verifies_and_says_what_it_allows() {
    let token = mint(&key(), KID, &claims()).unwrap();
    let verified = check(&token, NOW).unwrap();
    assert_eq!(verified, claims());
    assert!(verified.allows_blob(&Sha256Digest::new([5; 32])));
    assert!(!verified.allows_blob(&Sha256Digest::new([6; 32])));
    assert!(verified.allows_unit(4, 15) && !verified.allows_unit(4, 16));
    assert!(!verified.allows_unit(5, 0));
    assert_eq!(forge(HEADER, &payload(|_| ())), token);
}

#[test]
fn time_is_checked_with_the_stated_skew_and_each_side_is_distinct() {
    let token = mint(&key(), KID, &claims()).unwrap();
    assert!(check(&token, NOW - SKEW).is_ok());
    assert!(check(&token, NOW + 300 + SKEW - 1).is_ok());
    for early in [NOW - SKEW - 1, NOW - 3600, 0] {
        let expected = Refusal::NotYetValid {
            not_before: NOW,
            now: early,
        };
        assert_eq!(check(&token, early), Err(expected));
    }
    for late in [NOW + 300 + SKEW, NOW + 3600, u64::MAX] {
        let expected = Refusal::Expired {
            expiry: NOW + 300,
            now: late,
        };
        assert_eq!(check(&token, late), Err(expected));
    }
}

#[test]
fn another_certificate_key_issuer_or_signature_is_refused_by_name() {
    let token = mint(&key(), KID, &claims()).unwrap();
    let other = CertificateThumbprint::of_der(b"another certificate");
    assert_eq!(
        verifier().verify(&token, NOW, &other, SKEW),
        Err(Refusal::WrongCertificate)
    );

    let unknown = mint(&key(), "key-service-2", &claims()).unwrap();
    assert_eq!(check(&unknown, NOW), Err(Refusal::UnknownKey));

    let forged = mint(&SigningKey::from_bytes(&[8; 32]), KID, &claims()).unwrap();
    assert_eq!(check(&forged, NOW), Err(Refusal::BadSignature));

    let mut from_elsewhere = claims();
    from_elsewhere.iss = SpiffeId::new("elsewhere.test", Role::KeyService, "one").unwrap();
    let token = mint(&key(), KID, &from_elsewhere).unwrap();
    assert_eq!(
        check(&token, NOW),
        Err(Refusal::WrongIssuer(from_elsewhere.iss))
    );
}

#[test]
fn headers_other_than_ours_are_malformed_even_when_signed() {
    for header in [
        r#"{"alg":"none","kid":"key-service-1","typ":"chancery-unlock+jwt"}"#,
        r#"{"alg":"HS256","kid":"key-service-1","typ":"chancery-unlock+jwt"}"#,
        r#"{"alg":"EdDSA","kid":"key-service-1","typ":"JWT"}"#,
        r#"{"alg":"EdDSA","kid":"key-service-1"}"#,
        r#"{"alg":"EdDSA","kid":"key-service-1","typ":"chancery-unlock+jwt","crit":["x"]}"#,
        r#"{"alg":"EdDSA","kid":"key-service-1","typ":"chancery-unlock+jwt","jwk":{}}"#,
        r#"{"alg":"EdDSA","alg":"EdDSA","kid":"key-service-1","typ":"chancery-unlock+jwt"}"#,
        r#"{"alg": "EdDSA","kid":"key-service-1","typ":"chancery-unlock+jwt"}"#,
    ] {
        let refused = check(&forge(header, &payload(|_| ())), NOW);
        assert!(
            matches!(refused, Err(Refusal::Malformed { part: "header", .. })),
            "{header}: {refused:?}"
        );
    }
}

#[test]
fn claims_with_missing_extra_or_odd_fields_are_refused_even_when_signed() {
    let missing = payload(|claims| drop(claims.remove("cnf")));
    let extra = payload(|claims| drop(claims.insert("admin".to_owned(), true.into())));
    let reordered = payload(|claims| {
        let jti = claims.shift_remove("jti").unwrap();
        claims.insert("jti".to_owned(), jti);
    });
    for bad in [missing, extra, reordered, "[]".to_owned(), String::new()] {
        let refused = check(&forge(HEADER, &bad), NOW);
        assert!(
            matches!(refused, Err(Refusal::Malformed { part: "claims", .. })),
            "{bad}: {refused:?}"
        );
    }
    let endless = payload(|claims| drop(claims.insert("exp".to_owned(), u64::MAX.into())));
    assert!(matches!(
        check(&forge(HEADER, &endless), NOW),
        Err(Refusal::Claims(_))
    ));
}

#[test]
fn claims_that_break_a_rule_are_not_minted() {
    let changes: [fn(&mut Claims); 8] = [
        |c| c.exp = c.nbf,
        |c| c.exp = c.iat + 3601,
        |c| c.blobs.clear(),
        |c| c.blobs.reverse(),
        |c| c.blobs = vec![c.blobs[0]; 2],
        |c| c.units[0].region = 0,
        |c| c.units[1].end = 0,
        |c| c.units.reverse(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut bad = claims();
        change(&mut bad);
        assert!(mint(&key(), KID, &bad).is_err(), "change {number}");
    }
    assert!(mint(&key(), "", &claims()).is_err());
    assert!(mint(&key(), "a b", &claims()).is_err());
}

#[test]
fn every_truncation_and_every_changed_character_is_refused() {
    let token = mint(&key(), KID, &claims()).unwrap();
    for length in 0..token.len() {
        assert!(check(&token[..length], NOW).is_err(), "{length}");
    }
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        assert!(
            check(&String::from_utf8(bytes).unwrap(), NOW).is_err(),
            "{at}"
        );
    }
}

#[test]
fn the_largest_claims_fit_into_a_token() {
    let mut largest = claims();
    largest.blobs = (0..=255).map(|n| Sha256Digest::new([n; 32])).collect();
    largest.units = (0..256)
        .map(|n| UnitRange {
            region: 4,
            start: n * 4_000_000,
            end: n * 4_000_000 + 1,
        })
        .collect();
    let token = mint(&key(), KID, &largest).unwrap();
    assert!(
        token.len() > capability::MAX_TOKEN_BYTES * 3 / 4,
        "{}",
        token.len()
    );
    assert_eq!(check(&token, NOW), Ok(largest));
}

#[test]
fn the_thumbprint_of_rfc_8037_appendix_a_is_reproduced() {
    let x = B64
        .decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
        .unwrap();
    let key = ed25519_dalek::VerifyingKey::from_bytes(&x.try_into().unwrap()).unwrap();
    assert_eq!(
        capability::key_thumbprint(&key),
        "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
    );
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,200}") {
        prop_assert!(check(&text, NOW).is_err());
    }

    #[test]
    fn no_signed_payload_panics(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let signed = format!("{}.{}", B64.encode(HEADER), B64.encode(payload));
        let signature = key().sign(signed.as_bytes());
        let token = format!("{signed}.{}", B64.encode(signature.to_bytes()));
        prop_assert!(check(&token, NOW).is_err());
    }
}

#[test]
#[ignore = "writes the fuzz corpus"]
fn write_corpus() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/token");
    let write =
        |name: &str, token: String| std::fs::write(format!("{folder}/{name}"), token).unwrap();
    let mut small = claims();
    small.blobs.truncate(1);
    small.units.clear();
    write("minted", mint(&key(), KID, &small).unwrap());
    write("with-units", mint(&key(), KID, &claims()).unwrap());
    write(
        "other-algorithm",
        forge(
            r#"{"alg":"none","kid":"key-service-1","typ":"chancery-unlock+jwt"}"#,
            "{}",
        ),
    );
    write(
        "unknown-claim",
        forge(
            HEADER,
            &payload(|claims| drop(claims.insert("x".to_owned(), 1.into()))),
        ),
    );
}
