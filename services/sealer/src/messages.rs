//! Stored jobs as messages.

use api::v1;
use prost::Message as _;
use registry_domain::{ArtifactKind, FileFate, JobRecord, JobState};

use crate::error::SealerError;

/// A job as a message; `now` is Unix milliseconds.
pub fn job(record: JobRecord, now: i64) -> Result<v1::SealJob, SealerError> {
    let request = v1::SubmitSealJobRequest::decode(record.request.as_slice())
        .map_err(|_| SealerError::Damaged)?;
    let progress = progress(&record, now);
    let result = record.result.unwrap_or_default();
    let failure = record
        .failure
        .map(|failure| (failure.reason, failure.message));
    let (failure_reason, failure_message) = failure.unwrap_or_default();
    let artifacts = result.artifacts.into_iter();
    let files = result.files.into_iter();
    let comparison = result.comparison.map(|seen| v1::Comparison {
        tensors: seen.tensors,
        files: seen.files,
        largest_ulps: seen.largest_ulps,
    });
    Ok(v1::SealJob {
        id: record.id.to_string(),
        request: Some(request),
        state: state(record.state).into(),
        phase: match (record.state, record.cancel_requested) {
            (JobState::Running, true) => "stopping".to_owned(),
            (JobState::Running, false) => record.progress.phase,
            _ => String::new(),
        },
        progress: Some(progress),
        artifacts: artifacts
            .map(|artifact| v1::SealedArtifact {
                artifact_id: artifact.id.to_string(),
                artifact_digest: artifact.digest.to_string(),
                kind: match artifact.kind {
                    ArtifactKind::Checkpoint => v1::ArtifactKind::Checkpoint,
                    ArtifactKind::Container => v1::ArtifactKind::Container,
                }
                .into(),
            })
            .collect(),
        failure_reason,
        failure_message,
        submitted_at: record.submitted_at.div_euclid(1000),
        started_at: record.started_at.unwrap_or(0).div_euclid(1000),
        ended_at: record.ended_at.unwrap_or(0).div_euclid(1000),
        attempts: record.attempts,
        comparison,
        files: files
            .map(|file| v1::FileOutcome {
                path: file.path,
                fate: match file.fate {
                    FileFate::Sealed => v1::FileFate::Sealed,
                    FileFate::Copied => v1::FileFate::Copied,
                    FileFate::LeftOut => v1::FileFate::LeftOut,
                }
                .into(),
                why: file.why,
            })
            .collect(),
    })
}

const fn state(state: JobState) -> v1::SealJobState {
    match state {
        JobState::Queued => v1::SealJobState::Queued,
        JobState::Running => v1::SealJobState::Running,
        JobState::Succeeded => v1::SealJobState::Succeeded,
        JobState::Failed => v1::SealJobState::Failed,
        JobState::Cancelled => v1::SealJobState::Cancelled,
    }
}

/// The state that a list is narrowed to.
pub const fn state_filter(state: v1::SealJobState) -> Option<JobState> {
    match state {
        v1::SealJobState::Unspecified => None,
        v1::SealJobState::Queued => Some(JobState::Queued),
        v1::SealJobState::Running => Some(JobState::Running),
        v1::SealJobState::Succeeded => Some(JobState::Succeeded),
        v1::SealJobState::Failed => Some(JobState::Failed),
        v1::SealJobState::Cancelled => Some(JobState::Cancelled),
    }
}

/// Progress with the average rate since the job was first leased.
fn progress(record: &JobRecord, now: i64) -> v1::SealProgress {
    let stored = &record.progress;
    let end = record.ended_at.unwrap_or(now);
    let seconds = record
        .started_at
        .map_or(0.0, |start| (end - start).max(0) as f64 / 1000.0);
    let rate = if seconds > 0.0 {
        stored.bytes_done as f64 / seconds
    } else {
        0.0
    };
    let left = stored.bytes_total.saturating_sub(stored.bytes_done);
    let is_running = record.state == JobState::Running;
    v1::SealProgress {
        bytes_done: stored.bytes_done,
        bytes_total: stored.bytes_total,
        tensors_done: stored.tensors_done,
        tensors_total: stored.tensors_total,
        bytes_per_second: rate,
        seconds_left: if is_running && rate > 0.0 {
            left as f64 / rate
        } else {
            0.0
        },
    }
}

#[cfg(test)]
mod tests {
    use identifiers::{JobId, RequestId};
    use registry_domain::Progress;

    use super::*;

    fn record(state: JobState) -> JobRecord {
        JobRecord {
            id: JobId::from_parts(1, &[1; 10]),
            submitter: "spiffe://chancery.test/platform/one".parse().unwrap(),
            request_id: RequestId::from_parts(1, &[2; 10]),
            request: Vec::new(),
            state,
            cancel_requested: false,
            fence: 1,
            attempts: 1,
            revision: 1,
            progress: Progress {
                phase: "sealing".to_owned(),
                bytes_done: 100,
                bytes_total: 300,
                tensors_done: 1,
                tensors_total: 3,
            },
            resume: None,
            result: None,
            failure: None,
            submitted_at: 500,
            started_at: Some(1000),
            ended_at: None,
        }
    }

    #[test]
    fn a_running_job_has_a_rate_and_an_end_in_sight() {
        let message = job(record(JobState::Running), 3000).unwrap();
        let progress = message.progress.unwrap();
        assert_eq!(progress.bytes_per_second, 50.0);
        assert_eq!(progress.seconds_left, 4.0);
        assert_eq!(message.phase, "sealing");
        let queued = record(JobState::Queued);
        let progress = job(queued, 3000).unwrap().progress.unwrap();
        assert_eq!(progress.seconds_left, 0.0);
        let mut stopping = record(JobState::Running);
        stopping.cancel_requested = true;
        assert_eq!(job(stopping, 1000).unwrap().phase, "stopping");
    }

    #[test]
    fn a_damaged_request_is_an_error() {
        let mut damaged = record(JobState::Queued);
        damaged.request = vec![0xff];
        assert!(matches!(job(damaged, 0), Err(SealerError::Damaged)));
    }
}
