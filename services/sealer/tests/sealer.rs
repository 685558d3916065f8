//! The sealer with a real registry, key service and storage node, over mutual TLS and Postgres.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod world;

use std::time::Duration;

use api::v1;
use custody::CustodyLog;
use identifiers::{RequestId, Role, Sha256Digest};
use receipt::Receipt;
use registry_domain::{ArtifactManifest, VerifiedManifest};
use sealed_jlm::{SealedHeader, TRAILER_LEN, Trailer};
use tonic::{Code, Status};

use world::World;

fn request(number: u8) -> v1::SubmitSealJobRequest {
    v1::SubmitSealJobRequest {
        request_id: RequestId::from_parts(1, &[number; 10]).to_string(),
        source: "tiny-qwen3".to_owned(),
        model: "tiny".to_owned(),
        key: "tiny-key".to_owned(),
        transform: v1::Transform::Perm.into(),
        lock: v1::Lock::V2.into(),
        scheme: v1::Scheme::L1.into(),
        checkpoint: true,
        container: true,
        container_type: v1::ContainerType::Native.into(),
        ..Default::default()
    }
}

impl World {
    async fn submit(&self, request: v1::SubmitSealJobRequest) -> Result<v1::SealJob, Status> {
        let mut service = self.client(Role::Sealer, Role::Platform).seal_service();
        Ok(service.submit_seal_job(request).await?.into_inner())
    }

    async fn get(&self, id: &str) -> v1::SealJob {
        let mut service = self.client(Role::Sealer, Role::Platform).seal_service();
        let request = v1::GetSealJobRequest { id: id.to_owned() };
        service.get_seal_job(request).await.unwrap().into_inner()
    }

    /// The job once it ended, by watching it.
    async fn ended(&self, id: &str) -> v1::SealJob {
        let mut service = self.client(Role::Sealer, Role::Platform).seal_service();
        let request = v1::WatchSealJobRequest { id: id.to_owned() };
        let watch = async {
            let mut jobs = service.watch_seal_job(request).await.unwrap().into_inner();
            let mut last = None;
            while let Some(job) = jobs.message().await.unwrap() {
                last = Some(job);
            }
            last.unwrap()
        };
        tokio::time::timeout(Duration::from_secs(60), watch)
            .await
            .unwrap()
    }

    /// Waits until the job is in a state.
    async fn until(&self, id: &str, state: v1::SealJobState) -> v1::SealJob {
        for _ in 0..600 {
            let job = self.get(id).await;
            if job.state() == state {
                return job;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{:?}", self.get(id).await);
    }

    async fn manifest(&self, log: &CustodyLog, artifact: &v1::SealedArtifact) -> VerifiedManifest {
        let digest = artifact.artifact_digest.clone();
        let which = v1::get_artifact_request::Which::Digest(digest);
        log.artifact(which).await.unwrap()
    }

    async fn blob(&self, digest: Sha256Digest) -> Vec<u8> {
        let mut service = self.client(Role::Storage, Role::Operator).storage_service();
        let request = v1::GetBlobRequest {
            digest: digest.to_string(),
            ..Default::default()
        };
        let mut pieces = service.get_blob(request).await.unwrap().into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.message().await.unwrap() {
            bytes.extend_from_slice(&piece.data);
        }
        bytes
    }

    /// Receipts of an event, oldest first.
    async fn receipts(&self, event: &str) -> Vec<Receipt> {
        let mut service = self
            .client(Role::Registry, Role::Auditor)
            .registry_service();
        let request = v1::ListReceiptsRequest {
            event: event.to_owned(),
            ..Default::default()
        };
        let page = service.list_receipts(request).await.unwrap().into_inner();
        let signers = self.trusted().signers;
        let verify = |logged: &v1::LoggedReceipt| {
            Receipt::verify(&logged.envelope, &signers)
                .unwrap()
                .receipt()
                .clone()
        };
        page.receipts.iter().map(verify).collect()
    }
}

fn files(manifest: &ArtifactManifest) -> Vec<&str> {
    manifest
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_seals_stores_and_registers_both_outputs() {
    let world = World::start().await;
    let key = world.create_key("tiny-key", 1).await;
    let submitted = world.submit(request(1)).await.unwrap();
    let job = world.ended(&submitted.id).await;
    assert_eq!(
        (job.state(), job.failure_message.as_str()),
        (v1::SealJobState::Succeeded, "")
    );
    let progress = job.progress.unwrap();
    assert_eq!(progress.bytes_done, progress.bytes_total);
    assert_eq!(progress.tensors_done, progress.tensors_total);
    assert!(
        job.files
            .iter()
            .any(|file| file.path == "tokenizer.json" && file.fate() == v1::FileFate::Sealed)
    );

    // Every blob is there, and is what the signed manifests say.
    let log = world.custody(Role::KeyService);
    assert_eq!(job.artifacts.len(), 2);
    let checkpoint = world.manifest(&log, &job.artifacts[0]).await;
    let container = world.manifest(&log, &job.artifacts[1]).await;
    for manifest in [checkpoint.manifest(), container.manifest()] {
        assert_eq!(manifest.fingerprint.to_string(), key.fingerprint);
        for file in &manifest.files {
            let bytes = world.blob(file.sha256).await;
            assert_eq!(bytes.len() as u64, file.size);
            assert_eq!(tlog::chunk_root(&bytes), file.chunk_root);
        }
    }
    let (checkpoint, container) = (checkpoint.manifest(), container.manifest());
    assert!(files(checkpoint).contains(&"trusted.kllm"));
    assert!(!files(checkpoint).contains(&"tokenizer.json"));
    assert_eq!(checkpoint.seal.lock, "v2");
    assert_eq!(checkpoint.seal.architecture, "Qwen3ForCausalLM");
    assert_eq!(files(container), ["tiny.jlm"]);

    // The container says of itself what its manifest says.
    let bytes = world.blob(container.files[0].sha256).await;
    let (length, record) = (bytes.len() as u64, container.container.as_ref().unwrap());
    let trailer = Trailer::decode(&bytes[bytes.len() - TRAILER_LEN as usize..], length).unwrap();
    let meta = SealedHeader::meta_len(&bytes[..192], &trailer).unwrap() as usize;
    let section = trailer.section();
    let section = &bytes[section.offset as usize..(section.offset + section.length) as usize];
    let header = SealedHeader::decode(&bytes[..meta], &trailer, section).unwrap();
    assert_eq!(Some(*header.salt()), record.salt_bytes());
    assert_eq!(header.aggregate(), container.source.aggregate());
    assert_eq!(header.fingerprint(), container.fingerprint);
    for units in &record.units {
        let region = sealed_jlm::Region::from_id(units.region).unwrap();
        assert_eq!(header.container().unit_count(region), units.count);
    }

    // The receipts name the job; the grant is closed; nothing is left on disk.
    let sealed = world.receipts("sealed").await;
    let digests: Vec<String> = sealed
        .iter()
        .map(|receipt| receipt.artifact.as_ref().unwrap().digest.to_string())
        .collect();
    let registered: Vec<_> = job
        .artifacts
        .iter()
        .map(|a| a.artifact_digest.clone())
        .collect();
    assert_eq!(digests, registered);
    assert!(
        sealed
            .iter()
            .all(|r| r.job.unwrap().to_string() == job.id && r.source.is_some())
    );
    assert_eq!(world.receipts("seal-granted").await.len(), 1);
    assert_eq!(world.work_folders(), Vec::<String>::new());

    // The same request is the same job, whatever became of the key since.
    world.disable_key("tiny-key").await;
    assert_eq!(world.submit(request(1)).await.unwrap(), job);
    let mut other = request(1);
    other.model = "other".to_owned();
    let refused = world.submit(other).await.unwrap_err();
    assert_eq!(
        (refused.code(), api::reason(&refused)),
        (Code::AlreadyExists, Some("REQUEST_ID_REUSED"))
    );
    let refused = world.submit(request(2)).await.unwrap_err();
    assert_eq!(
        (refused.code(), api::reason(&refused)),
        (Code::FailedPrecondition, Some("KEY_NOT_ACTIVE"))
    );
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_sealed_is_refused_or_fails_with_a_reason() {
    let world = World::start().await;
    world.create_key("tiny-key", 1).await;
    type Change = fn(&mut v1::SubmitSealJobRequest);
    let refusals: [(Change, Code, &str); 4] = [
        (
            |r| r.source = "../data".to_owned(),
            Code::InvalidArgument,
            "INVALID_ARGUMENT",
        ),
        (
            |r| r.source = "absent".to_owned(),
            Code::InvalidArgument,
            "NO_SUCH_SOURCE",
        ),
        (
            |r| r.key = "absent".to_owned(),
            Code::NotFound,
            "KEY_NOT_FOUND",
        ),
        (|r| r.lock = 0, Code::InvalidArgument, "INVALID_ARGUMENT"),
    ];
    for (change, code, reason) in refusals {
        let mut changed = request(1);
        change(&mut changed);
        let refused = world.submit(changed).await.unwrap_err();
        assert_eq!(
            (refused.code(), api::reason(&refused)),
            (code, Some(reason))
        );
    }
    std::fs::create_dir(world.source("empty")).unwrap();
    let mut empty = request(2);
    empty.source = "empty".to_owned();
    let job = world.submit(empty).await.unwrap();
    let job = world.ended(&job.id).await;
    assert_eq!(
        (job.state(), job.failure_reason.as_str()),
        (v1::SealJobState::Failed, "source-refused")
    );

    // A key serves one source: another revision under it is refused, and leaves a receipt.
    let first = world.submit(request(3)).await.unwrap();
    assert_eq!(
        world.ended(&first.id).await.state(),
        v1::SealJobState::Succeeded
    );
    world.change_source("tiny-qwen3", "revised");
    let mut revised = request(4);
    revised.source = "revised".to_owned();
    let job = world.submit(revised).await.unwrap();
    let job = world.ended(&job.id).await;
    assert_eq!(
        (job.state(), job.failure_reason.as_str()),
        (v1::SealJobState::Failed, "key-refused")
    );
    assert_eq!(world.receipts("refused").await.len(), 1);
    assert_eq!(world.work_folders(), Vec::<String>::new());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_the_sealer_and_what_it_needs() {
    let mut world = World::start().await;
    world.create_key("tiny-key", 1).await;
    // Storage is away: the job waits, and is not lost.
    world.stop_storage().await;
    let job = world.submit(request(1)).await.unwrap();
    let mut is_tried = false;
    for _ in 0..600 {
        if world.is_resumable(&job.id).await
            && world.get(&job.id).await.state() == v1::SealJobState::Queued
        {
            is_tried = true;
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(is_tried);
    // The sealer stops meanwhile, and another one takes over.
    world.stop_sealer().await;
    world.start_storage().await;
    world.start_sealer().await;
    let first = world.until(&job.id, v1::SealJobState::Succeeded).await;

    // Its attempts made one artifact of each kind.
    assert_eq!(world.receipts("sealed").await.len(), 2);
    assert_eq!(world.receipts("registered").await.len(), 2);
    assert_eq!(first.artifacts.len(), 2);
    assert_eq!(world.work_folders(), Vec::<String>::new());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_attempt_goes_on_from_what_is_durable_and_makes_the_same_bytes() {
    let mut world = World::start().await;
    world.create_key("tiny-key", 1).await;
    let job = world.submit(request(1)).await.unwrap();
    // Stopped once a shard is durable; the folder is lost with the machine.
    while world.durable_files(&job.id).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    world.stop_sealer().await;
    let durable = world.durable_files(&job.id).await;
    world.lose_work();
    world.start_sealer().await;
    let job = world.until(&job.id, v1::SealJobState::Succeeded).await;
    let log = world.custody(Role::KeyService);
    let checkpoint = world.manifest(&log, &job.artifacts[0]).await;
    for file in durable.iter().filter(|file| file.stage == "checkpoint") {
        let listed = &checkpoint.manifest().files;
        assert!(listed.iter().any(|listed| listed.sha256 == file.sha256));
    }
    assert_eq!(world.receipts("registered").await.len(), 2);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_changed_between_attempts_fails_the_job() {
    let mut world = World::start().await;
    world.create_key("tiny-key", 1).await;
    world.change_source("tiny-qwen3", "moving");
    world.stop_storage().await;
    let mut moving = request(1);
    moving.source = "moving".to_owned();
    let job = world.submit(moving).await.unwrap();
    for _ in 0..600 {
        if world.is_resumable(&job.id).await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.stop_sealer().await;
    world.flip_byte("moving");
    world.start_storage().await;
    world.start_sealer().await;
    let job = world.until(&job.id, v1::SealJobState::Failed).await;
    assert_eq!(job.failure_reason, "source-changed");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_ends_and_leaves_nothing() {
    let mut world = World::start().await;
    world.create_key("tiny-key", 1).await;
    world.stop_storage().await;
    let job = world.submit(request(1)).await.unwrap();
    let mut service = world.client(Role::Sealer, Role::Platform).seal_service();
    let cancel = v1::CancelSealJobRequest { id: job.id.clone() };
    service.cancel_seal_job(cancel.clone()).await.unwrap();
    let job = world.ended(&job.id).await;
    assert_eq!(job.state(), v1::SealJobState::Cancelled);
    let again = service.cancel_seal_job(cancel).await.unwrap().into_inner();
    assert_eq!(again, job);
    let list = v1::ListSealJobsRequest {
        state: v1::SealJobState::Cancelled.into(),
        ..Default::default()
    };
    let listed = service.list_seal_jobs(list).await.unwrap().into_inner();
    assert_eq!(listed.jobs, [job]);
    world.stop().await;
}
