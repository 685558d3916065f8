//! The job queue in a real Postgres.

mod support;

use database::{PgJobs, Schema};
use identifiers::{JobId, RequestId, Role, SpiffeId};
use registry_domain::*;
use support::{Cluster, digest, spiffe};

const TERMS: LeaseTerms = LeaseTerms {
    duration: 1000,
    max_attempts: 3,
};

fn new_job(number: u8) -> NewJob {
    NewJob {
        id: JobId::from_parts(u64::from(number), &[number; 10]),
        submitter: spiffe(Role::Platform, "team"),
        request_id: RequestId::from_parts(1, &[number; 10]),
        request: vec![number],
        submitted_at: i64::from(number),
    }
}

fn worker(name: &str) -> SpiffeId {
    spiffe(Role::Sealer, name)
}

fn file(number: u32) -> DurableFile {
    DurableFile {
        stage: "checkpoint".to_owned(),
        number,
        path: format!("model-{number}.safetensors"),
        size: 7,
        sha256: digest(number as u8),
        chunk_root: digest(1),
        detail: serde_json::json!({"lock": "x"}),
    }
}

#[tokio::test]
async fn a_request_is_one_job_even_when_sent_twice_at_once() {
    let cluster = Cluster::start();
    let jobs = PgJobs::new(cluster.database(Schema::Jobs).await);
    let mut twin = new_job(1);
    twin.id = JobId::from_parts(99, &[9; 10]);
    let first = new_job(1);
    let (left, right) = tokio::join!(jobs.submit(&first), jobs.submit(&twin));
    let (left, right) = (left.unwrap(), right.unwrap());
    assert!(left.is_new() != right.is_new());
    assert_eq!(left.into_inner().id, right.into_inner().id);
    let mut other = new_job(1);
    other.request = vec![9];
    let refused = jobs.submit(&other).await.unwrap_err();
    assert!(
        matches!(refused, RepositoryError::Conflict(Conflict::RequestReused)),
        "{refused}"
    );
    let mut someone_else = new_job(2);
    (someone_else.submitter, someone_else.request_id) =
        (spiffe(Role::Platform, "other"), first.request_id);
    assert!(jobs.submit(&someone_else).await.unwrap().is_new());
    let team = JobFilter {
        submitter: Some(first.submitter),
        state: Some(JobState::Queued),
    };
    let all = Page {
        size: 10,
        before: None,
    };
    assert_eq!(jobs.list_jobs(&team, all).await.unwrap().len(), 1);
    let listed = jobs.list_jobs(&JobFilter::default(), all).await.unwrap();
    assert_eq!(listed.len(), 2);
    let next = Page {
        size: 10,
        before: Some(listed[0].id),
    };
    assert_eq!(
        jobs.list_jobs(&JobFilter::default(), next).await.unwrap(),
        listed[1..]
    );
}

#[tokio::test]
async fn a_job_has_one_worker_and_a_lost_one_is_fenced_off() {
    let cluster = Cluster::start();
    let jobs = PgJobs::new(cluster.database(Schema::Jobs).await);
    for number in 1..=3 {
        jobs.submit(&new_job(number)).await.unwrap();
    }
    // Four workers, three jobs.
    let attempts = ["a", "b", "c", "d"].map(|name| {
        let jobs = jobs.clone();
        tokio::spawn(async move { jobs.lease(&worker(name), 100, TERMS).await.unwrap() })
    });
    let mut leases = Vec::new();
    for attempt in attempts {
        leases.extend(attempt.await.unwrap());
    }
    let mut ids: Vec<JobId> = leases.iter().map(|lease| lease.job.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), leases.len()), (3, 3));

    let old = leases.iter().find(|lease| lease.job.id == ids[0]).unwrap();
    let progress = Progress {
        phase: "seal".to_owned(),
        bytes_done: 5,
        ..Progress::default()
    };
    let beat = jobs.heartbeat(old, &progress, 200, TERMS).await.unwrap();
    assert_eq!(
        beat,
        Heartbeat {
            expires_at: 1200,
            cancel_requested: false
        }
    );
    jobs.save_resume(old, &serde_json::json!({"salt": "00"}))
        .await
        .unwrap();
    jobs.file_durable(old, &file(0)).await.unwrap();
    jobs.file_durable(old, &file(0)).await.unwrap();
    let mut other = file(0);
    other.size = 8;
    assert!(jobs.file_durable(old, &other).await.is_err());

    assert!(
        jobs.lease(&worker("e"), 1099, TERMS)
            .await
            .unwrap()
            .is_none()
    );
    for lease in leases.iter().filter(|lease| lease.job.id != ids[0]) {
        jobs.release(lease, 1100).await.unwrap();
        jobs.cancel(lease.job.id, 1100).await.unwrap();
        assert_eq!(
            jobs.job(lease.job.id).await.unwrap().state,
            JobState::Cancelled
        );
    }
    assert!(
        jobs.lease(&worker("e"), 1199, TERMS)
            .await
            .unwrap()
            .is_none()
    );
    let new = jobs
        .lease(&worker("e"), 1200, TERMS)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((new.job.id, new.fence, new.job.attempts), (ids[0], 2, 2));
    assert_eq!(new.job.resume, Some(serde_json::json!({"salt": "00"})));
    assert_eq!(new.job.progress, progress);
    assert_eq!(jobs.durable_files(ids[0]).await.unwrap(), [file(0)]);

    let result = JobResult::default();
    let failure = JobFailure {
        reason: "x".to_owned(),
        message: "y".to_owned(),
    };
    assert!(matches!(
        jobs.heartbeat(old, &progress, 1300, TERMS).await,
        Err(RepositoryError::FencedOff)
    ));
    assert!(matches!(
        jobs.save_resume(old, &serde_json::json!(1)).await,
        Err(RepositoryError::FencedOff)
    ));
    assert!(matches!(
        jobs.file_durable(old, &file(1)).await,
        Err(RepositoryError::FencedOff)
    ));
    assert!(matches!(
        jobs.clear_durable_files(old).await,
        Err(RepositoryError::FencedOff)
    ));
    assert!(matches!(
        jobs.succeed(old, &result, 1300).await,
        Err(RepositoryError::FencedOff)
    ));
    assert!(matches!(
        jobs.fail(old, &failure, 1300).await,
        Err(RepositoryError::FencedOff)
    ));
    assert!(matches!(
        jobs.release(old, 1300).await,
        Err(RepositoryError::FencedOff)
    ));

    jobs.clear_durable_files(&new).await.unwrap();
    assert_eq!(jobs.durable_files(ids[0]).await.unwrap(), []);
    let ended = jobs.succeed(&new, &result, 1400).await.unwrap();
    assert_eq!(
        (ended.state, ended.ended_at),
        (JobState::Succeeded, Some(1400))
    );
    assert_eq!(jobs.succeed(&new, &result, 1500).await.unwrap(), ended);
    assert!(matches!(
        jobs.fail(&new, &failure, 1500).await,
        Err(RepositoryError::Conflict(Conflict::State { .. }))
    ));
    assert_eq!(jobs.cancel(ids[0], 1600).await.unwrap(), ended);
}

#[tokio::test]
async fn jobs_end_when_cancelled_failed_or_out_of_attempts() {
    let cluster = Cluster::start();
    let jobs = PgJobs::new(cluster.database(Schema::Jobs).await);
    for number in 1..=4 {
        jobs.submit(&new_job(number)).await.unwrap();
    }
    let lease = async |now| jobs.lease(&worker("a"), now, TERMS).await.unwrap();
    let stopped = lease(10).await.unwrap();
    assert!(matches!(
        jobs.cancelled(&stopped, 11).await,
        Err(RepositoryError::Conflict(_))
    ));
    let asked = jobs.cancel(stopped.job.id, 12).await.unwrap();
    assert_eq!(
        (asked.state, asked.cancel_requested),
        (JobState::Running, true)
    );
    assert!(
        jobs.heartbeat(&stopped, &Progress::default(), 13, TERMS)
            .await
            .unwrap()
            .cancel_requested
    );
    assert_eq!(
        jobs.cancelled(&stopped, 14).await.unwrap().state,
        JobState::Cancelled
    );

    let failing = lease(20).await.unwrap();
    let failure = JobFailure {
        reason: "source-changed".to_owned(),
        message: "The source changed.".to_owned(),
    };
    assert_eq!(
        jobs.fail(&failing, &failure, 21).await.unwrap().failure,
        Some(failure)
    );

    // A worker that dies with a request to stop pending, and one that dies every time.
    let dying = lease(30).await.unwrap();
    jobs.cancel(dying.job.id, 31).await.unwrap();
    let mut now = 2000;
    for attempt in 1..=3 {
        let lost = lease(now).await.unwrap();
        assert_eq!((lost.job.id, lost.job.attempts), (new_job(4).id, attempt));
        now += TERMS.duration;
    }
    assert!(lease(now).await.is_none());
    let exhausted = jobs.job(new_job(4).id).await.unwrap();
    assert_eq!(exhausted.failure.unwrap().reason, "attempts-exhausted");
    assert_eq!(
        jobs.job(dying.job.id).await.unwrap().state,
        JobState::Cancelled
    );
    let missing = jobs.job(JobId::from_parts(77, &[7; 10])).await.unwrap_err();
    assert!(matches!(missing, RepositoryError::NotFound(_)), "{missing}");
}
