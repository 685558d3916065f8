//! Keys, grants, capabilities and revocations in a real Postgres.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use database::{PgKeys, Schema};
use identifiers::{CapabilityId, GrantId, JobId, KeyId, RequestId, Role};
use registry_domain::*;
use support::{Cluster, digest, spiffe};

fn new_key(number: u8, name: &str) -> NewKey {
    NewKey {
        id: KeyId::from_parts(u64::from(number), &[number; 10]),
        name: name.to_owned(),
        fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
        version: 1,
        wrapped: WrappedKey(vec![number; 60]),
        origin: KeyOrigin::Created,
        caller: spiffe(Role::Operator, "ann"),
        request_id: RequestId::from_parts(1, &[number; 10]),
        body: digest(number),
        created_at: 1000,
    }
}

async fn active_key(keys: &PgKeys, number: u8) -> KeyId {
    let id = new_key(number, "").id;
    keys.insert_key(&new_key(number, &format!("key-{number}")))
        .await
        .unwrap();
    keys.change_key_state(id, KeyState::Active, 1001)
        .await
        .unwrap();
    id
}

fn new_grant(job: u8, fence: u64, key_id: KeyId, source: u8) -> NewGrant {
    NewGrant {
        id: GrantId::from_parts(fence, &[job; 10]),
        job_id: JobId::from_parts(1, &[job; 10]),
        fence,
        key_id,
        source_aggregate: digest(source),
        scope: GrantScope {
            scheme: "l1".to_owned(),
            transform: "perm".to_owned(),
            lock: "v2".to_owned(),
            unlock: "none".to_owned(),
            blob_salt: Some([1; 16]),
            container_salt: None,
        },
        holder: spiffe(Role::Sealer, "one"),
        opened_at: 2000,
        expires_at: 3000,
    }
}

fn new_capability(number: u8, key_id: KeyId, issued_at: i64) -> NewCapability {
    NewCapability {
        id: CapabilityId::from_parts(1, &[number; 10]),
        request_id: RequestId::from_parts(1, &[number; 10]),
        body: digest(number),
        node: spiffe(Role::Inference, "gpu-1"),
        artifact: digest(0xaa),
        key_id,
        epoch: 0,
        issued_at,
        expires_at: issued_at + 300_000,
    }
}

#[tokio::test]
async fn keys_are_stored_once_and_follow_their_states() {
    let cluster = Cluster::start();
    let keys = PgKeys::new(cluster.database(Schema::Keys).await);
    let new = new_key(1, "first");
    let stored = keys.insert_key(&new).await.unwrap();
    assert!(stored.is_new());
    let again = keys.insert_key(&new).await.unwrap();
    assert!(!again.is_new());
    assert_eq!(again.into_inner(), stored.into_inner());

    let mut other_body = new.clone();
    other_body.body = digest(9);
    other_body.id = KeyId::from_parts(7, &[7; 10]);
    let refused = keys.insert_key(&other_body).await.unwrap_err();
    assert!(
        matches!(refused, RepositoryError::Conflict(Conflict::RequestReused)),
        "{refused}"
    );
    let refused = keys.insert_key(&new_key(2, "first")).await.unwrap_err();
    assert!(
        matches!(
            refused,
            RepositoryError::Conflict(Conflict::NameTaken("key"))
        ),
        "{refused}"
    );

    let page = Page {
        size: 10,
        before: None,
    };
    assert_eq!(keys.list_keys(page).await.unwrap(), []);
    let active = keys
        .change_key_state(new.id, KeyState::Active, 5)
        .await
        .unwrap();
    assert!(active.is_new());
    assert!(
        !keys
            .change_key_state(new.id, KeyState::Active, 6)
            .await
            .unwrap()
            .is_new()
    );
    assert_eq!(keys.list_keys(page).await.unwrap().len(), 1);
    let refused = keys
        .change_key_state(new.id, KeyState::Destroyed, 7)
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            RepositoryError::Conflict(Conflict::State {
                state: "active",
                ..
            })
        ),
        "{refused}"
    );
    keys.change_key_state(new.id, KeyState::Disabled, 8)
        .await
        .unwrap();
    let destroyed = keys
        .change_key_state(new.id, KeyState::Destroyed, 9)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (destroyed.wrapped.0.len(), destroyed.disabled_at),
        (0, Some(8))
    );
    assert_eq!(keys.key_by_name("first").await.unwrap(), destroyed);
    let missing = keys.key(KeyId::from_parts(9, &[9; 10])).await.unwrap_err();
    assert!(
        matches!(missing, RepositoryError::NotFound("key")),
        "{missing}"
    );
    assert!(!format!("{:?}", new.wrapped).contains("1, 1"));
}

#[tokio::test]
async fn one_key_serves_one_source_and_the_newest_lease_of_a_job() {
    let cluster = Cluster::start();
    let keys = PgKeys::new(cluster.database(Schema::Keys).await);
    let key = active_key(&keys, 1).await;
    // Two jobs that want one key for two sources, at once: one wins.
    let (left, right) = tokio::join!(
        async { keys.open_grant(&new_grant(1, 1, key, 1)).await },
        async { keys.open_grant(&new_grant(2, 1, key, 2)).await },
    );
    let refused = [&left, &right].into_iter().filter(|outcome| {
        matches!(
            outcome,
            Err(RepositoryError::Conflict(
                Conflict::KeyServesAnotherSource { .. }
            ))
        )
    });
    assert_eq!(refused.count(), 1);
    let won = left.or(right).unwrap();
    let bound = keys.key(key).await.unwrap().source_aggregate;
    assert_eq!(bound, Some(won.source_aggregate));
    let source = won.source_aggregate.as_bytes()[0];

    let grant = new_grant(3, 5, key, source);
    let opened = keys.open_grant(&grant).await.unwrap();
    assert_eq!(keys.open_grant(&grant).await.unwrap(), opened);
    let mut later = grant.clone();
    (later.fence, later.holder, later.expires_at) = (6, spiffe(Role::Sealer, "two"), 4000);
    later.scope.container_salt = Some([2; 16]);
    let taken = keys.open_grant(&later).await.unwrap();
    assert_eq!((taken.id, taken.fence), (opened.id, 6));
    let refused = keys.open_grant(&grant).await.unwrap_err();
    assert!(matches!(refused, RepositoryError::FencedOff), "{refused}");
    let (one, two) = (spiffe(Role::Sealer, "one"), spiffe(Role::Sealer, "two"));
    assert_eq!(taken.check(&one, 6, 3500), Err(GrantRefusal::OtherHolder));
    assert_eq!(taken.check(&two, 5, 3500), Err(GrantRefusal::FencedOff));
    assert_eq!(taken.check(&two, 6, 4000), Err(GrantRefusal::Expired));
    assert_eq!(taken.check(&two, 6, 3999), Ok(()));

    keys.close_grant(taken.id, 3600).await.unwrap();
    let closed = keys.close_grant(taken.id, 3601).await.unwrap();
    assert_eq!(closed.check(&two, 6, 3700), Err(GrantRefusal::Closed));
    let refused = keys.open_grant(&later).await.unwrap_err();
    assert!(
        matches!(
            refused,
            RepositoryError::Conflict(Conflict::State {
                state: "closed",
                ..
            })
        ),
        "{refused}"
    );

    keys.change_key_state(key, KeyState::Disabled, 3700)
        .await
        .unwrap();
    assert_eq!(keys.grant(won.id).await.unwrap().state, GrantState::Closed);
    let refused = keys
        .open_grant(&new_grant(9, 1, key, source))
        .await
        .unwrap_err();
    assert!(
        matches!(
            refused,
            RepositoryError::Conflict(Conflict::State {
                state: "disabled",
                ..
            })
        ),
        "{refused}"
    );
}

#[tokio::test]
async fn capabilities_count_once_and_revocations_are_numbered() {
    let cluster = Cluster::start();
    let keys = PgKeys::new(cluster.database(Schema::Keys).await);
    let key = active_key(&keys, 1).await;
    let quota = Some(Quota {
        limit: 3,
        since: 1000,
    });
    // Five at once against a quota of three, one of them twice.
    let attempts = [1, 1, 2, 3, 4].map(|number| {
        let keys = keys.clone();
        tokio::spawn(async move {
            keys.record_capability(&new_capability(number, key, 2000), quota)
                .await
        })
    });
    let mut outcomes = Vec::new();
    for attempt in attempts {
        outcomes.push(attempt.await.unwrap());
    }
    let new = outcomes
        .iter()
        .filter(|outcome| outcome.as_ref().is_ok_and(Inserted::is_new))
        .count();
    assert_eq!(new, 3);
    let node = spiffe(Role::Inference, "gpu-1");
    assert_eq!(
        keys.capabilities_since(&node, &digest(0xaa), 1000)
            .await
            .unwrap(),
        3
    );
    // The window moves on.
    let later = Some(Quota {
        limit: 3,
        since: 2001,
    });
    assert!(
        keys.record_capability(&new_capability(9, key, 3000), later)
            .await
            .unwrap()
            .is_new()
    );
    let mut reused = new_capability(9, key, 3000);
    reused.body = digest(1);
    let refused = keys.record_capability(&reused, later).await.unwrap_err();
    assert!(
        matches!(refused, RepositoryError::Conflict(Conflict::RequestReused)),
        "{refused}"
    );

    assert_eq!(keys.revocation_epoch().await.unwrap(), 0);
    let mut revocation = NewRevocation {
        caller: spiffe(Role::Operator, "ann"),
        request_id: RequestId::from_parts(1, &[1; 10]),
        artifact: digest(0xaa),
        node: Some(node.clone()),
        reason: "stolen".to_owned(),
        at: 5000,
    };
    let first = keys.revoke(&revocation).await.unwrap();
    assert!(first.is_new());
    assert_eq!(
        keys.revoke(&revocation).await.unwrap().into_inner(),
        first.into_inner()
    );
    let other_node = spiffe(Role::Inference, "gpu-2");
    assert_eq!(
        keys.revocation(&other_node, &digest(0xaa)).await.unwrap(),
        None
    );
    assert_eq!(
        keys.revocation(&node, &digest(0xaa))
            .await
            .unwrap()
            .unwrap()
            .epoch,
        1
    );
    revocation.request_id = RequestId::from_parts(1, &[2; 10]);
    revocation.node = None;
    assert_eq!(
        keys.revoke(&revocation).await.unwrap().into_inner().epoch,
        2
    );
    assert_eq!(
        keys.revocation(&other_node, &digest(0xaa))
            .await
            .unwrap()
            .unwrap()
            .epoch,
        2
    );

    let policy = |version| PolicyRecord {
        version,
        document: "rules = []".to_owned(),
        author: spiffe(Role::Operator, "ann"),
        at: 1,
    };
    assert_eq!(keys.policy().await.unwrap(), None);
    keys.put_policy(&policy(1)).await.unwrap();
    assert!(keys.put_policy(&policy(3)).await.is_err());
    assert!(keys.put_policy(&policy(1)).await.is_err());
    keys.put_policy(&policy(2)).await.unwrap();
    assert_eq!(keys.policy().await.unwrap(), Some(policy(2)));
}
