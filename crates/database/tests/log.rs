//! The log and the artifacts in a real Postgres, through a crash and a lost connection too.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use database::{Database, LogOptions, PgArtifacts, PgLog, Schema};
use ed25519_dalek::SigningKey;
use identifiers::{ArtifactId, KeyId, ReceiptId, RequestId, Role, Sha256Digest};
use registry_domain::*;
use support::{Cluster, digest, spiffe};
use tlog::{Checkpoint, NoteSigner, leaf_hash};

struct Signer {
    note: NoteSigner,
    committed: AtomicU64,
    fails: AtomicBool,
}

impl Signer {
    fn new() -> Arc<Self> {
        let note = NoteSigner::new("log.test", SigningKey::from_bytes(&[5; 32])).unwrap();
        Arc::new(Self {
            note,
            committed: AtomicU64::new(0),
            fails: AtomicBool::new(false),
        })
    }
}

impl CheckpointSigner for Signer {
    fn sign(&self, size: u64, root: &Sha256Digest) -> String {
        let checkpoint = Checkpoint {
            origin: "log.test".to_owned(),
            size,
            root: *root,
        };
        checkpoint.sign(&self.note).unwrap()
    }

    fn committed(&self, head: &LogHead) -> Result<(), Box<dyn Error + Send + Sync>> {
        if self.fails.load(Ordering::SeqCst) {
            return Err("no space left".into());
        }
        self.committed.fetch_max(head.size, Ordering::SeqCst);
        Ok(())
    }
}

fn new_entry(number: u32) -> NewEntry {
    let mut random = [0; 10];
    random[..4].copy_from_slice(&number.to_be_bytes());
    NewEntry {
        receipt_id: ReceiptId::from_parts(1, &random),
        envelope: format!("receipt {number}").into_bytes(),
        event: if number.is_multiple_of(2) {
            "sealed"
        } else {
            "unlocked"
        }
        .to_owned(),
        actor: spiffe(Role::Sealer, "one"),
        artifact: number.is_multiple_of(3).then(|| digest(3)),
        appended_at: i64::from(number),
    }
}

fn plain(number: u32) -> Append {
    Append {
        entry: new_entry(number),
        artifact: None,
    }
}

fn artifact(number: u8, key: u8, source: u8) -> NewArtifact {
    NewArtifact {
        id: ArtifactId::from_parts(u64::from(number), &[number; 10]),
        digest: digest(number),
        model: "tiny".to_owned(),
        kind: ArtifactKind::Container,
        key_id: KeyId::from_parts(1, &[key; 10]),
        fingerprint: "3f9a-0c41-d27e-88b5".parse().unwrap(),
        source_aggregate: digest(source),
        envelope: vec![number; 10],
        sealer: spiffe(Role::Sealer, "one"),
        request_id: RequestId::from_parts(1, &[number; 10]),
        registered_at: 7,
    }
}

fn registration(receipt: u32, artifact: NewArtifact) -> Append {
    Append {
        entry: new_entry(receipt),
        artifact: Some(artifact),
    }
}

async fn check_whole_log(log: &PgLog, signer: &Signer) -> u64 {
    let head = log.head().await.unwrap().unwrap();
    let checkpoint = Checkpoint::verify(&head.note, signer.note.verifier()).unwrap();
    assert_eq!((checkpoint.size, checkpoint.root), (head.size, head.root));
    let entries = log
        .entries(&EntryFilter::default(), 0, 10_000)
        .await
        .unwrap();
    assert_eq!(entries.len() as u64, head.size);
    for (index, entry) in entries.iter().enumerate() {
        assert_eq!(entry.index, index as u64);
        let proof = inclusion_proof(log, entry.index, head.size).await.unwrap();
        let leaf = leaf_hash(&entry.envelope);
        tlog::verify_inclusion(&leaf, entry.index, head.size, &proof, &head.root).unwrap();
    }
    head.size
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_appends_of_two_registries_make_one_log() {
    let cluster = Cluster::start();
    let options = cluster.options(Schema::Registry).await;
    let signer = Signer::new();
    let mut logs = Vec::new();
    for _ in 0..2 {
        let database = Database::open(Schema::Registry, &options).await.unwrap();
        logs.push(PgLog::start(
            database,
            signer.clone(),
            LogOptions {
                batch: 16,
                queue: 1000,
            },
        ));
    }
    assert_eq!(logs[0].head().await.unwrap(), None);
    // Every entry is sent to both, at once.
    let mut sent = Vec::new();
    for number in 0..60 {
        for log in &logs {
            let log = log.clone();
            sent.push(tokio::spawn(async move {
                log.append(plain(number)).await.unwrap()
            }));
        }
    }
    let mut new = 0;
    for one in sent {
        let appended = one.await.unwrap();
        new += u32::from(appended.is_new);
        assert!(signer.committed.load(Ordering::SeqCst) > appended.entry.index);
    }
    assert_eq!(new, 60);
    assert_eq!(check_whole_log(&logs[0], &signer).await, 60);

    let mut reused = plain(7);
    reused.entry.envelope = b"other".to_vec();
    let refused = logs[0].append(reused).await.unwrap_err();
    assert!(
        matches!(refused, RepositoryError::Conflict(Conflict::ReceiptReused)),
        "{refused}"
    );
    let mut large = plain(100);
    large.entry.envelope = vec![0; 65_536];
    assert!(matches!(
        logs[0].append(large).await,
        Err(RepositoryError::Conflict(_))
    ));

    let old = log_head_at(&logs[0], 20).await;
    let proof = consistency_proof(&logs[0], 20, 60).await.unwrap();
    let head = logs[0].head().await.unwrap().unwrap();
    tlog::verify_consistency(20, 60, &proof, &old, &head.root).unwrap();
    let found = logs[0].entry(new_entry(7).receipt_id).await.unwrap();
    assert_eq!(logs[0].entry_at(found.index).await.unwrap(), found);
    assert!(matches!(
        logs[0].entry_at(60).await,
        Err(RepositoryError::NotFound(_))
    ));
    assert_eq!(logs[0].node_run(0, 0, 60).await.unwrap().len(), 60);
    assert!(logs[0].node_run(0, 0, 61).await.is_err());

    let filter = EntryFilter {
        event: Some("sealed".to_owned()),
        artifact: Some(digest(3)),
        actor: Some(spiffe(Role::Sealer, "one")),
    };
    assert_eq!(logs[0].entries(&filter, 0, 100).await.unwrap().len(), 10);
    assert_eq!(logs[0].entries(&filter, 0, 4).await.unwrap().len(), 4);
    let nobody = EntryFilter {
        actor: Some(spiffe(Role::Sealer, "two")),
        ..filter
    };
    assert_eq!(logs[0].entries(&nobody, 0, 100).await.unwrap(), []);
}

/// The root of the first `size` entries.
async fn log_head_at(log: &PgLog, size: u64) -> Sha256Digest {
    let peaks = log.nodes(&tlog::Frontier::peak_ids(size)).await.unwrap();
    tlog::Frontier::from_peaks(size, peaks).unwrap().root()
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_come_with_their_receipts_and_a_key_serves_one_source() {
    let cluster = Cluster::start();
    let database = cluster.database(Schema::Registry).await;
    let (log, artifacts) = (
        PgLog::start(database.clone(), Signer::new(), LogOptions::default()),
        PgArtifacts::new(database),
    );
    let first = log
        .append(registration(1, artifact(1, 1, 1)))
        .await
        .unwrap();
    assert!(first.is_new);
    // The same artifact again, under another receipt and request: what is stored.
    let mut again = artifact(1, 1, 1);
    (again.id, again.request_id) = (
        ArtifactId::from_parts(50, &[50; 10]),
        RequestId::from_parts(2, &[50; 10]),
    );
    let again = log.append(registration(2, again)).await.unwrap();
    assert!(!again.is_new);
    assert_eq!(
        (again.entry, again.artifact),
        (first.entry.clone(), first.artifact.clone())
    );

    let refused = log
        .append(registration(3, artifact(2, 1, 2)))
        .await
        .unwrap_err();
    let bound = Conflict::KeyServesAnotherSource { bound: digest(1) };
    assert!(matches!(refused, RepositoryError::Conflict(conflict) if conflict == bound));
    let mut reused = artifact(3, 1, 1);
    reused.request_id = artifact(1, 1, 1).request_id;
    let refused = log.append(registration(4, reused)).await.unwrap_err();
    assert!(
        matches!(refused, RepositoryError::Conflict(Conflict::RequestReused)),
        "{refused}"
    );
    assert_eq!(log.head().await.unwrap().unwrap().size, 1);

    // Two sources for one fresh key, at once: one wins, and its receipt is the only one.
    let (left, right) = tokio::join!(
        log.append(registration(5, artifact(5, 2, 5))),
        log.append(registration(6, artifact(6, 2, 6))),
    );
    assert!(left.is_ok() != right.is_ok());
    assert_eq!(log.head().await.unwrap().unwrap().size, 2);

    let newest = log
        .append(registration(7, artifact(7, 1, 1)))
        .await
        .unwrap()
        .artifact
        .unwrap();
    assert_eq!(
        artifacts
            .newest_artifact("tiny", ArtifactKind::Container)
            .await
            .unwrap(),
        newest
    );
    assert!(
        artifacts
            .newest_artifact("tiny", ArtifactKind::Checkpoint)
            .await
            .is_err()
    );
    assert_eq!(
        artifacts.artifact(artifact(1, 1, 1).id).await.unwrap(),
        first.artifact.unwrap()
    );
    assert_eq!(
        artifacts.artifact_by_digest(&digest(7)).await.unwrap(),
        newest
    );
    let of_source = ArtifactFilter {
        model: Some("tiny".to_owned()),
        source_aggregate: Some(digest(1)),
    };
    let page = Page {
        size: 1,
        before: None,
    };
    assert_eq!(
        artifacts.list_artifacts(&of_source, page).await.unwrap(),
        std::slice::from_ref(&newest)
    );
    let next = Page {
        size: 5,
        before: Some(newest.artifact.id),
    };
    assert_eq!(
        artifacts
            .list_artifacts(&of_source, next)
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loses_nothing_that_was_answered_and_a_lost_database_is_unavailable() {
    let mut cluster = Cluster::start();
    let options = cluster.options(Schema::Registry).await;
    let signer = Signer::new();
    let database = Database::open(Schema::Registry, &options).await.unwrap();
    let log = PgLog::start(database.clone(), signer.clone(), LogOptions::default());
    let mut answered = Vec::new();
    for number in 0..10 {
        answered.push(log.append(plain(number)).await.unwrap().entry);
    }
    cluster.postgres.take().unwrap().crash().unwrap();
    let lost = log.append(plain(10)).await.unwrap_err();
    assert!(matches!(lost, RepositoryError::Unavailable(_)), "{lost:?}");
    assert!(matches!(
        log.head().await,
        Err(RepositoryError::Unavailable(_))
    ));
    assert!(!database.is_alive().await);

    cluster.restart();
    assert!(database.is_alive().await);
    for entry in answered {
        assert_eq!(log.entry(entry.receipt_id).await.unwrap(), entry);
    }
    assert_eq!(log.append(plain(10)).await.unwrap().entry.index, 10);
    assert_eq!(check_whole_log(&log, &signer).await, 11);

    // The place outside the database is full: no answer, and a repeat finds the entry.
    signer.fails.store(true, Ordering::SeqCst);
    let refused = log.append(plain(11)).await.unwrap_err();
    assert!(
        matches!(refused, RepositoryError::Unavailable(_)),
        "{refused:?}"
    );
    signer.fails.store(false, Ordering::SeqCst);
    let found = log.append(plain(11)).await.unwrap();
    assert_eq!((found.entry.index, found.is_new), (11, false));
}
