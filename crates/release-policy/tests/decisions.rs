//! Decisions of small policies.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use identifiers::{Role, Sha256Digest, SpiffeId};
use release_policy::{Decision, Policy, PolicyError, Quota, Reason, Request};

const POLICY: &str = r#"
version = 1

[[rules]]
nodes = ["node-1"]
models = ["tiny"]
not_before = 100
not_after = 200
max_lifetime_seconds = 60
units = [{ region = 4, start = 0, end = 16 }]
quota = { limit = 10, window_seconds = 3600 }

[[rules]]
nodes = ["*"]
models = ["open"]
allow_lock_v1 = true
"#;

fn decide(change: impl FnOnce(&mut Request<'_>), now: i64) -> Decision {
    let node = SpiffeId::new("chancery.test", Role::Inference, "node-1").unwrap();
    let mut request = Request {
        node: &node,
        model: "tiny",
        artifact: Sha256Digest::new([1; 32]),
        units: &[(3, 0, 1), (4, 0, 16)],
        lock: "v2",
        key_active: true,
        revoked: None,
    };
    change(&mut request);
    Policy::from_toml(POLICY).unwrap().decide(&request, now)
}

#[test]
fn the_first_rule_that_admits_gives_the_terms() {
    let allowed = Decision::Allow {
        lifetime_seconds: 60,
        quota: Some(Quota {
            limit: 10,
            window_seconds: 3600,
        }),
    };
    assert_eq!(decide(|_| {}, 100), allowed);
    let open = Decision::Allow {
        lifetime_seconds: 300,
        quota: None,
    };
    assert_eq!(decide(|request| request.model = "open", 0), open);
}

#[test]
fn denials_say_why() {
    let denied = |reason| Decision::Deny(vec![reason]);
    assert_eq!(decide(|_| {}, 99), denied(Reason::NotYet(0)));
    assert_eq!(decide(|_| {}, 200), denied(Reason::Ended(0)));
    assert_eq!(decide(|r| r.model = "other", 150), denied(Reason::NoRule));
    assert_eq!(decide(|r| r.lock = "v1", 150), denied(Reason::LockV1(0)));
    assert_eq!(
        decide(|r| r.units = &[(4, 8, 17)], 150),
        denied(Reason::Units(0, 4))
    );
    assert_eq!(
        decide(|r| r.key_active = false, 150),
        denied(Reason::KeyNotActive)
    );
    assert_eq!(
        decide(|r| r.revoked = Some("stolen"), 150),
        denied(Reason::Revoked("stolen".to_owned()))
    );
}

#[test]
fn an_empty_policy_denies_everything() {
    let node = SpiffeId::new("chancery.test", Role::Inference, "node-1").unwrap();
    let request = Request {
        node: &node,
        model: "tiny",
        artifact: Sha256Digest::new([1; 32]),
        units: &[],
        lock: "none",
        key_active: true,
        revoked: None,
    };
    let policy = Policy::from_toml("version = 1").unwrap();
    assert_eq!(
        policy.decide(&request, 0),
        Decision::Deny(vec![Reason::NoRule])
    );
}

#[test]
fn bad_policies_are_refused_with_the_rule_and_field() {
    assert_eq!(
        Policy::from_toml("version = 2"),
        Err(PolicyError::Version(2))
    );
    for (bad, expected) in [
        ("version = 1\nextra = 1", "extra"),
        (
            "version = 1\n[[rules]]\nnodes=[\"a\"]\nmodels=[\"b\"]\nnode=1",
            "node",
        ),
        (
            "version = 1\n[[rules]]\nnodes=[]\nmodels=[\"b\"]",
            "rule 0: nodes",
        ),
        (
            "version = 1\n[[rules]]\nnodes=[\"a\"]\nmodels=[\"b\"]\nmax_lifetime_seconds=3601",
            "rule 0: max_lifetime_seconds",
        ),
        (
            "version = 1\n[[rules]]\nnodes=[\"a\"]\nmodels=[\"b\"]\nunits=[{region=4,start=2,end=2}]",
            "rule 0: units",
        ),
    ] {
        let error = Policy::from_toml(bad).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
