//! `chancery seal`.

use std::path::Path;

use anyhow::Result;
use api::client::Client;
use api::v1::{
    ArtifactKind, CancelSealJobRequest, CatalogEntry, ContainerType, FileFate, GetSealJobRequest,
    JobOperation, ListSealJobsRequest, Lock, Scheme, SealJob, SealJobState, SubmitSealJobRequest,
    Transform, WatchSealJobRequest,
};
use serde::Serialize;

use crate::args::{
    ArtifactJobArgs, CatalogEntryArgs, DeriveArgs, LockArg, SchemeArg, SealCommand, SubmitArgs,
    TransformArg,
};
use crate::artifacts::verified;
use crate::context::{Context, Person, Workload, request_id};
use crate::outcome::{Outcome, bytes, heading, table, time};
use crate::progress;

/// Runs a command.
pub async fn execute(state: &Path, command: SealCommand) -> Result<Outcome> {
    let context = Context::load(state)?;
    let client = context.client(Workload::Sealer, Person::Platform)?;
    match command {
        SealCommand::Submit(arguments) => submit(&client, arguments).await,
        SealCommand::Relock(derive) => {
            let request = derived(&context, JobOperation::Relock, &derive).await?;
            send(&client, request, derive.job.watch).await
        }
        SealCommand::Unlock { derive, tensor } => {
            let request = SubmitSealJobRequest {
                tensor: tensor.unwrap_or_default(),
                ..derived(&context, JobOperation::Unlock, &derive).await?
            };
            send(&client, request, derive.job.watch).await
        }
        SealCommand::Cloud(derive) => {
            let request = derived(&context, JobOperation::CloudExport, &derive).await?;
            send(&client, request, derive.job.watch).await
        }
        SealCommand::Catalog { derive, entry } => {
            let request = SubmitSealJobRequest {
                catalog: Some(catalog_entry(entry)),
                ..derived(&context, JobOperation::Catalog, &derive).await?
            };
            send(&client, request, derive.job.watch).await
        }
        SealCommand::Verify { job, base, ulps } => {
            let request = SubmitSealJobRequest {
                source: base,
                ulps,
                ..over(&context, JobOperation::Verify, &job).await?
            };
            send(&client, request, job.watch).await
        }
        SealCommand::Check(job) => {
            let request = over(&context, JobOperation::Check, &job).await?;
            send(&client, request, job.watch).await
        }
        SealCommand::Watch { job } => watch(&client, job).await,
        SealCommand::Show { job } => {
            let request = GetSealJobRequest { id: job };
            let job = client
                .call(|| {
                    let (mut service, request) = (client.seal_service(), request.clone());
                    async move { service.get_seal_job(request).await }
                })
                .await?
                .into_inner();
            Ok(shown(job))
        }
        SealCommand::List => list(&client).await,
        SealCommand::Cancel { job } => {
            let request = CancelSealJobRequest { id: job };
            let job = client
                .call(|| {
                    let (mut service, request) = (client.seal_service(), request.clone());
                    async move { service.cancel_seal_job(request).await }
                })
                .await?
                .into_inner();
            Ok(shown(job))
        }
    }
}

async fn submit(client: &Client, arguments: SubmitArgs) -> Result<Outcome> {
    let request = SubmitSealJobRequest {
        request_id: request_id(arguments.request.request_id.as_deref())?,
        source: arguments.source,
        model: arguments.model,
        key: arguments.key,
        transform: match arguments.transform {
            TransformArg::Perm => Transform::Perm,
            TransformArg::Orth => Transform::Orth,
        }
        .into(),
        lock: match arguments.lock {
            LockArg::None => Lock::None,
            LockArg::V1 => Lock::V1,
            LockArg::V2 => Lock::V2,
        }
        .into(),
        scheme: match arguments.scheme {
            SchemeArg::L1 => Scheme::L1,
            SchemeArg::Client => Scheme::Client,
            SchemeArg::D1 => Scheme::D1,
        }
        .into(),
        checkpoint: !arguments.no_checkpoint,
        container: !arguments.no_container,
        container_type: match (arguments.no_container, arguments.q8) {
            (true, _) => ContainerType::Unspecified,
            (false, false) => ContainerType::Native,
            (false, true) => ContainerType::Q80,
        }
        .into(),
        ..Default::default()
    };
    send(client, request, arguments.watch).await
}

/// A job that makes an artifact of another.
async fn derived(
    context: &Context,
    operation: JobOperation,
    arguments: &DeriveArgs,
) -> Result<SubmitSealJobRequest> {
    Ok(SubmitSealJobRequest {
        model: arguments.model.clone(),
        ..over(context, operation, &arguments.job).await?
    })
}

/// A job over a registered checkpoint, whose manifest was verified.
async fn over(
    context: &Context,
    operation: JobOperation,
    arguments: &ArtifactJobArgs,
) -> Result<SubmitSealJobRequest> {
    let artifact = arguments.artifact.clone();
    let (artifact, _) = verified(context, artifact, ArtifactKind::Checkpoint).await?;
    Ok(SubmitSealJobRequest {
        request_id: request_id(arguments.request.request_id.as_deref())?,
        operation: operation.into(),
        artifact_digest: artifact.digest,
        ..Default::default()
    })
}

fn catalog_entry(entry: CatalogEntryArgs) -> CatalogEntry {
    CatalogEntry {
        name: entry.name,
        repo_id: entry.repo_id,
        revision: entry.revision,
        license: entry.license,
        modality: entry.modality,
        client: entry.client,
        key_version: entry.key_version,
        kllm: entry.kllm,
        embargo_days: entry.embargo_days,
        gated: entry.gated,
    }
}

async fn send(client: &Client, request: SubmitSealJobRequest, follow: bool) -> Result<Outcome> {
    let job = client
        .call(|| {
            let (mut service, request) = (client.seal_service(), request.clone());
            async move { service.submit_seal_job(request).await }
        })
        .await?
        .into_inner();
    match follow {
        true => watch(client, job.id).await,
        false => Ok(shown(job)),
    }
}

/// Follows a job until it ends. A job that failed or was cancelled is exit code 1.
async fn watch(client: &Client, id: String) -> Result<Outcome> {
    let bar = progress::bytes("waiting", 0);
    let last = loop {
        match follow(client, &id, &bar).await {
            Ok(Some(job)) => break job,
            // The sealer went away or ended the stream early: the job goes on.
            Ok(None) => {}
            Err(status) if api::client::is_transient(&status) => {}
            Err(status) => return Err(status.into()),
        }
        bar.set_message("reconnecting");
        tokio::time::sleep(RECONNECT_PAUSE).await;
        let request = GetSealJobRequest { id: id.clone() };
        client
            .call(|| {
                let (mut service, request) = (client.seal_service(), request.clone());
                async move { service.get_seal_job(request).await }
            })
            .await?;
    };
    bar.finish_and_clear();
    Ok(shown(last))
}

/// The ended job, or nothing if the stream ended before it.
async fn follow(
    client: &Client,
    id: &str,
    bar: &indicatif::ProgressBar,
) -> Result<Option<SealJob>, tonic::Status> {
    let request = WatchSealJobRequest { id: id.to_owned() };
    let mut jobs = client
        .seal_service()
        .watch_seal_job(request)
        .await?
        .into_inner();
    while let Some(job) = jobs.message().await? {
        bar.set_message(if job.phase.is_empty() {
            state_name(job.state()).to_owned()
        } else {
            job.phase.clone()
        });
        if let Some(progress) = &job.progress {
            if progress.bytes_total > 0 {
                bar.set_length(progress.bytes_total);
            }
            bar.set_position(progress.bytes_done);
        }
        if is_ended(job.state()) {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

async fn list(client: &Client) -> Result<Outcome> {
    let mut jobs = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListSealJobsRequest {
            page_token,
            ..Default::default()
        };
        let page = client
            .call(|| {
                let (mut service, request) = (client.seal_service(), request.clone());
                async move { service.list_seal_jobs(request).await }
            })
            .await?
            .into_inner();
        jobs.extend(page.jobs.into_iter().map(JobView::of));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let mut rows = vec![heading(&[
        "JOB",
        "OPERATION",
        "MODEL",
        "STATE",
        "SUBMITTED",
        "SOURCE",
    ])];
    rows.extend(jobs.iter().map(|job| {
        vec![
            job.id.clone(),
            job.operation.to_owned(),
            job.model.clone(),
            job.state.to_owned(),
            time(job.submitted_at),
            match job.source.as_str() {
                "" => job.artifact.clone(),
                source => source.to_owned(),
            },
        ]
    }));
    Ok(Outcome::new(&jobs, table(&rows)))
}

#[derive(Serialize)]
struct JobView {
    id: String,
    operation: &'static str,
    model: String,
    source: String,
    /// The artifact worked on; empty for a seal.
    artifact: String,
    key: String,
    state: &'static str,
    phase: String,
    attempts: u32,
    submitted_at: i64,
    started_at: i64,
    ended_at: i64,
    progress: Option<ProgressView>,
    artifacts: Vec<ArtifactView>,
    files: Vec<FileView>,
    comparison: Option<ComparisonView>,
    failure: Option<FailureView>,
}

#[derive(Serialize)]
struct ProgressView {
    bytes_done: u64,
    bytes_total: u64,
    tensors_done: u64,
    tensors_total: u64,
    bytes_per_second: f64,
}

#[derive(Serialize)]
struct ArtifactView {
    id: String,
    digest: String,
    kind: &'static str,
}

#[derive(Serialize)]
struct FileView {
    path: String,
    fate: &'static str,
    why: String,
}

#[derive(Serialize)]
struct ComparisonView {
    tensors: u64,
    files: u64,
    largest_ulps: u64,
}

#[derive(Serialize)]
struct FailureView {
    reason: String,
    message: String,
}

impl JobView {
    fn of(job: SealJob) -> Self {
        let state = state_name(job.state());
        let request = job.request.unwrap_or_default();
        Self {
            id: job.id,
            operation: operation_name(request.operation()),
            model: request.model,
            source: request.source,
            artifact: request.artifact_digest,
            key: request.key,
            state,
            phase: job.phase,
            attempts: job.attempts,
            submitted_at: job.submitted_at,
            started_at: job.started_at,
            ended_at: job.ended_at,
            progress: job.progress.map(|progress| ProgressView {
                bytes_done: progress.bytes_done,
                bytes_total: progress.bytes_total,
                tensors_done: progress.tensors_done,
                tensors_total: progress.tensors_total,
                bytes_per_second: progress.bytes_per_second,
            }),
            artifacts: job
                .artifacts
                .into_iter()
                .map(|artifact| ArtifactView {
                    kind: kind_name(artifact.kind()),
                    id: artifact.artifact_id,
                    digest: artifact.artifact_digest,
                })
                .collect(),
            files: job
                .files
                .into_iter()
                .map(|file| FileView {
                    fate: match file.fate() {
                        FileFate::Sealed => "sealed",
                        FileFate::Copied => "copied",
                        FileFate::LeftOut => "left out",
                        FileFate::Unspecified => "unknown",
                    },
                    path: file.path,
                    why: file.why,
                })
                .collect(),
            comparison: job.comparison.map(|seen| ComparisonView {
                tensors: seen.tensors,
                files: seen.files,
                largest_ulps: seen.largest_ulps,
            }),
            failure: Some(job.failure_reason)
                .filter(|reason| !reason.is_empty())
                .map(|reason| FailureView {
                    reason,
                    message: job.failure_message,
                }),
        }
    }

    fn text(&self) -> String {
        let mut rows = vec![
            vec!["job".to_owned(), self.id.clone()],
            vec!["operation".to_owned(), self.operation.to_owned()],
            vec!["model".to_owned(), self.model.clone()],
            vec!["source".to_owned(), self.source.clone()],
            vec!["artifact".to_owned(), self.artifact.clone()],
            vec!["state".to_owned(), self.state.to_owned()],
        ];
        rows.retain(|row| !row[1].is_empty());
        if let Some(progress) = &self.progress {
            let done = format!(
                "{} of {}, {} of {} tensors",
                bytes(progress.bytes_done),
                bytes(progress.bytes_total),
                progress.tensors_done,
                progress.tensors_total
            );
            rows.push(vec!["done".to_owned(), done]);
        }
        if let Some(seen) = &self.comparison {
            let same = format!(
                "{} tensors and {} files compared, largest difference {} ulp",
                seen.tensors, seen.files, seen.largest_ulps
            );
            rows.push(vec!["the same".to_owned(), same]);
        }
        for artifact in &self.artifacts {
            rows.push(vec![artifact.kind.to_owned(), artifact.digest.clone()]);
        }
        for file in self.files.iter().filter(|file| file.fate == "left out") {
            rows.push(vec![
                "left out".to_owned(),
                format!("{}: {}", file.path, file.why),
            ]);
        }
        table(&rows)
    }
}

fn shown(job: SealJob) -> Outcome {
    let view = JobView::of(job);
    let outcome = Outcome::new(&view, view.text());
    match (&view.failure, view.state) {
        (Some(failure), _) => outcome.refused(format!(
            "the job failed: {} ({})",
            failure.message, failure.reason
        )),
        (None, "failed") => outcome.refused("the job failed"),
        _ => outcome,
    }
}

fn is_ended(state: SealJobState) -> bool {
    matches!(
        state,
        SealJobState::Succeeded | SealJobState::Failed | SealJobState::Cancelled
    )
}

fn state_name(state: SealJobState) -> &'static str {
    match state {
        SealJobState::Queued => "queued",
        SealJobState::Running => "running",
        SealJobState::Succeeded => "succeeded",
        SealJobState::Failed => "failed",
        SealJobState::Cancelled => "cancelled",
        SealJobState::Unspecified => "unknown",
    }
}

fn operation_name(operation: JobOperation) -> &'static str {
    match operation {
        JobOperation::Unspecified | JobOperation::Seal => "seal",
        JobOperation::Relock => "relock",
        JobOperation::Unlock => "unlock",
        JobOperation::CloudExport => "cloud export",
        JobOperation::Verify => "verify",
        JobOperation::Check => "check",
        JobOperation::Catalog => "catalog",
    }
}

/// An artifact kind's name.
pub fn kind_name(kind: ArtifactKind) -> &'static str {
    match kind {
        ArtifactKind::Checkpoint => "checkpoint",
        ArtifactKind::Container => "container",
        ArtifactKind::Unspecified => "unknown",
    }
}

const RECONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
