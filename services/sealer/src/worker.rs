//! Workers: lease a job, do it, end it.

use std::sync::Arc;
use std::time::Duration;

use registry_domain::{Conflict, JobResult, Lease, LeaseTerms, RepositoryError};
use service_runtime::CancellationToken;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::failure::{JobError, chain};
use crate::job::{Attempt, Means};
use crate::order::Order;
use crate::stop::{Stop, Why};

/// One worker. It has one job at a time.
pub struct Worker {
    pub means: Arc<Means>,
    pub terms: LeaseTerms,
    pub heartbeat: Duration,
    pub poll: Duration,
    pub longest_pause: Duration,
    /// Told of new jobs.
    pub submitted: Arc<Notify>,
    pub shutdown: CancellationToken,
}

/// What a worker does next.
enum Next {
    /// Looks for a job.
    Go,
    /// Looks for a job after a pause: something is away.
    Pause,
}

impl Worker {
    /// Works until the process stops; a job under way is then given back.
    pub async fn run(self) {
        let mut failures = 0;
        while !self.shutdown.is_cancelled() {
            let now = self.means.clock.unix_millis();
            let replica = self.means.log.replica();
            let leased = self.means.jobs.lease(replica, now, self.terms).await;
            let next = match leased {
                Ok(Some(lease)) => self.work(lease).await,
                Ok(None) => {
                    self.idle(self.poll).await;
                    continue;
                }
                Err(error) => {
                    tracing::warn!(error = chain(&error), "no job can be leased");
                    Next::Pause
                }
            };
            match next {
                Next::Go => failures = 0,
                Next::Pause => {
                    failures += 1;
                    let pause = pause(failures, self.longest_pause);
                    tokio::select! {
                        () = self.shutdown.cancelled() => {}
                        () = sleep(pause) => {}
                    }
                }
            }
        }
    }

    async fn idle(&self, at_most: Duration) {
        tokio::select! {
            () = self.shutdown.cancelled() => {}
            () = self.submitted.notified() => {}
            () = sleep(at_most) => {}
        }
    }

    async fn work(&self, lease: Lease) -> Next {
        let (job, fence) = (lease.job.id, lease.fence);
        tracing::info!(%job, fence, attempts = lease.job.attempts, "job leased");
        let order = Order::decode(&lease.job.request);
        let stop = Arc::new(Stop::default());
        if lease.job.cancel_requested {
            stop.stop(Why::Cancelled);
        }
        let order = match order {
            Ok(order) => order,
            Err(error) => {
                let failure = registry_domain::JobFailure {
                    reason: "state-damaged".to_owned(),
                    message: format!("the stored request: {error}"),
                };
                let now = self.means.clock.unix_millis();
                if let Err(error) = self.means.jobs.fail(&lease, &failure, now).await {
                    tracing::warn!(%job, error = chain(&error), "a damaged job stays leased");
                }
                return Next::Pause;
            }
        };
        let attempt = Arc::new(Attempt::new(self.means.clone(), lease, order, stop.clone()));
        let ended = CancellationToken::new();
        let beats = tokio::spawn(Heartbeat::of(self, &attempt, ended.clone()).run());
        let outcome = attempt.run().await;
        let next = self.end(&attempt, outcome).await;
        ended.cancel();
        // A heartbeat that failed has told the job already.
        let _ = beats.await;
        next
    }

    /// Writes how the attempt ended, and cleans up what the job does not need any more.
    async fn end(&self, attempt: &Attempt, outcome: Result<JobResult, JobError>) -> Next {
        let (jobs, lease) = (&self.means.jobs, &attempt.lease);
        let job = lease.job.id;
        let (written, next) = match outcome {
            Ok(result) => {
                let now = self.means.clock.unix_millis();
                let progress = attempt.meter.read();
                if let Err(error) = jobs.heartbeat(lease, &progress, now, self.terms).await {
                    tracing::warn!(%job, error = chain(&error), "the last progress is not reported");
                }
                let write = || jobs.succeed(lease, &result, self.means.clock.unix_millis());
                let written = self.insist(write).await;
                tracing::info!(%job, "job succeeded");
                (written.map(|_| true), Next::Go)
            }
            Err(JobError::Failed(failure)) => {
                tracing::warn!(%job, reason = failure.reason, message = failure.message, "job failed");
                let write = || jobs.fail(lease, &failure, self.means.clock.unix_millis());
                (self.insist(write).await.map(|_| true), Next::Go)
            }
            Err(JobError::Passing(what)) => {
                tracing::warn!(%job, what, "the job waits for what is away");
                (self.release(attempt).await, Next::Pause)
            }
            Err(JobError::Stopped) => match attempt.stop.why() {
                Some(Why::Cancelled) => {
                    let write = || jobs.cancelled(lease, self.means.clock.unix_millis());
                    (self.insist(write).await.map(|_| true), Next::Go)
                }
                Some(Why::Lost) => {
                    tracing::warn!(%job, fence = lease.fence, "the lease is lost");
                    (Ok(false), Next::Go)
                }
                Some(Why::Shutdown) => (self.release(attempt).await, Next::Go),
                // A write under the lease was refused before a heartbeat was.
                None => (self.release(attempt).await, Next::Pause),
            },
        };
        match written {
            Ok(true) => {
                attempt.close_grant().await;
                attempt.clean_up().await;
                next
            }
            Ok(false) => next,
            Err(error) => {
                // The lease runs out, and the job is taken up again.
                tracing::warn!(%job, error = chain(&error), "the job's end could not be written");
                Next::Pause
            }
        }
    }

    /// Gives the job back; whether it ended instead.
    async fn release(&self, attempt: &Attempt) -> Result<bool, RepositoryError> {
        let (jobs, lease) = (&self.means.jobs, &attempt.lease);
        let released = self
            .insist(|| jobs.release(lease, self.means.clock.unix_millis()))
            .await;
        match released {
            Ok(()) => Ok(false),
            // Asked to stop meanwhile: then it ends here.
            Err(RepositoryError::Conflict(Conflict::State { .. })) => {
                let now = self.means.clock.unix_millis();
                jobs.cancelled(lease, now).await.map(|_| true)
            }
            Err(RepositoryError::FencedOff) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes again while the database is away, for as long as the lease can last.
    async fn insist<T, F>(&self, write: impl Fn() -> F) -> Result<T, RepositoryError>
    where
        F: Future<Output = Result<T, RepositoryError>>,
    {
        let end = self.means.clock.unix_millis() + self.terms.duration;
        loop {
            match write().await {
                Err(RepositoryError::Unavailable(_) | RepositoryError::Busy)
                    if self.means.clock.unix_millis() < end =>
                {
                    sleep(self.heartbeat).await;
                }
                outcome => return outcome,
            }
        }
    }
}

/// Renews a lease, reports progress, and tells the work when to stop.
struct Heartbeat {
    attempt: Arc<Attempt>,
    terms: LeaseTerms,
    period: Duration,
    ended: CancellationToken,
    shutdown: CancellationToken,
}

impl Heartbeat {
    fn of(worker: &Worker, attempt: &Arc<Attempt>, ended: CancellationToken) -> Self {
        Self {
            attempt: attempt.clone(),
            terms: worker.terms,
            period: worker.heartbeat,
            ended,
            shutdown: worker.shutdown.clone(),
        }
    }

    async fn run(self) {
        let Attempt {
            means,
            lease,
            stop,
            meter,
            ..
        } = &*self.attempt;
        let job = lease.job.id;
        let mut expires = means.clock.unix_millis() + self.terms.duration;
        let mut draining = false;
        loop {
            tokio::select! {
                () = self.ended.cancelled() => return,
                () = self.shutdown.cancelled(), if !draining => {
                    draining = true;
                    stop.stop(Why::Shutdown);
                    continue;
                }
                () = sleep(self.period) => {}
            }
            let now = means.clock.unix_millis();
            match means
                .jobs
                .heartbeat(lease, &meter.read(), now, self.terms)
                .await
            {
                Ok(beat) => {
                    expires = beat.expires_at;
                    if beat.cancel_requested && !stop.is_set() {
                        tracing::info!(%job, "the job is asked to stop");
                        stop.stop(Why::Cancelled);
                    }
                }
                Err(RepositoryError::Unavailable(_) | RepositoryError::Busy) if now < expires => {}
                Err(error) => {
                    // Also when the job's end was written while this was under way.
                    if !self.ended.is_cancelled() {
                        tracing::warn!(%job, error = chain(&error), "the lease is not renewed");
                        stop.stop(Why::Lost);
                    }
                    return;
                }
            }
        }
    }
}

/// A growing pause: 0.5 s, 1 s, 2 s, ... up to the longest.
fn pause(failures: u32, longest: Duration) -> Duration {
    FIRST_PAUSE
        .saturating_mul(1 << (failures.saturating_sub(1)).min(16))
        .min(longest)
}

const FIRST_PAUSE: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_longest() {
        let longest = Duration::from_secs(30);
        let pauses: Vec<_> = (1..=3).map(|n| pause(n, longest).as_millis()).collect();
        assert_eq!(pauses, [500, 1000, 2000]);
        assert_eq!(pause(40, longest), longest);
    }
}
