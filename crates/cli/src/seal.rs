//! `chancery seal`.

use std::path::Path;

use anyhow::Result;
use api::client::Client;
use api::v1::{
    ArtifactKind, CancelSealJobRequest, ContainerType, FileFate, GetSealJobRequest,
    ListSealJobsRequest, Lock, Scheme, SealJob, SealJobState, SubmitSealJobRequest, Transform,
    WatchSealJobRequest,
};
use serde::Serialize;

use crate::args::{LockArg, SchemeArg, SealCommand, SubmitArgs, TransformArg};
use crate::context::{Context, Person, Workload, request_id};
use crate::outcome::{Outcome, bytes, heading, table, time};
use crate::progress;

/// Runs a command.
pub async fn execute(state: &Path, command: SealCommand) -> Result<Outcome> {
    let context = Context::load(state)?;
    let client = context.client(Workload::Sealer, Person::Platform)?;
    match command {
        SealCommand::Submit(arguments) => submit(&client, arguments).await,
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
    };
    let job = client
        .call(|| {
            let (mut service, request) = (client.seal_service(), request.clone());
            async move { service.submit_seal_job(request).await }
        })
        .await?
        .into_inner();
    match arguments.watch {
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
    let mut rows = vec![heading(&["JOB", "MODEL", "STATE", "SUBMITTED", "SOURCE"])];
    rows.extend(jobs.iter().map(|job| {
        vec![
            job.id.clone(),
            job.model.clone(),
            job.state.to_owned(),
            time(job.submitted_at),
            job.source.clone(),
        ]
    }));
    Ok(Outcome::new(&jobs, table(&rows)))
}

#[derive(Serialize)]
struct JobView {
    id: String,
    model: String,
    source: String,
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
            model: request.model,
            source: request.source,
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
            vec!["model".to_owned(), self.model.clone()],
            vec!["source".to_owned(), self.source.clone()],
            vec!["state".to_owned(), self.state.to_owned()],
        ];
        if let Some(progress) = &self.progress {
            let sealed = format!(
                "{} of {}, {} of {} tensors",
                bytes(progress.bytes_done),
                bytes(progress.bytes_total),
                progress.tensors_done,
                progress.tensors_total
            );
            rows.push(vec!["sealed".to_owned(), sealed]);
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

/// An artifact kind's name.
pub fn kind_name(kind: ArtifactKind) -> &'static str {
    match kind {
        ArtifactKind::Checkpoint => "checkpoint",
        ArtifactKind::Container => "container",
        ArtifactKind::Unspecified => "unknown",
    }
}

const RECONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
