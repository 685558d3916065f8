use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tonic::{Code, Status};
use workload_identity::tls_refusal;

use crate::fault::mix;

/// Bounded exponential back-off with full jitter.
#[derive(Debug)]
pub struct Retry {
    draws: AtomicU64,
}

impl Retry {
    /// A policy whose jitter starts from `seed`, which should differ between processes.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            draws: AtomicU64::new(seed),
        }
    }

    /// Runs `attempt` until it does not answer `UNAVAILABLE`, at most [`Retry::ATTEMPTS`] times.
    pub async fn run<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        for failures in 1..Self::ATTEMPTS {
            match attempt().await {
                Err(status) if is_transient(&status) => {
                    tokio::time::sleep(self.pause(failures)).await;
                }
                outcome => return outcome,
            }
        }
        attempt().await
    }

    /// Between nothing and 100 ms, 200 ms, 400 ms, ... up to 2 s.
    #[must_use]
    pub fn pause(&self, failures: u32) -> Duration {
        let ceiling = FIRST
            .saturating_mul(1 << (failures - 1).min(16))
            .min(LONGEST);
        let draw = mix(self.draws.fetch_add(1, Ordering::Relaxed));
        // The top 53 bits as a fraction of one.
        ceiling.mul_f64((draw >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// How often a call is made at most.
    pub const ATTEMPTS: u32 = 4;
}

/// Whether trying again can help: the service is away, or the connection broke. A refused
/// certificate stays refused.
#[must_use]
pub fn is_transient(status: &Status) -> bool {
    let away = match status.code() {
        Code::Unavailable => true,
        // Only a status that was made on this side has a source: the connection broke.
        Code::Unknown | Code::Internal => std::error::Error::source(status).is_some(),
        _ => false,
    };
    away && tls_refusal(status).is_none()
}

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn only_unavailable_is_tried_again_and_not_for_ever() {
        let retry = Retry::new(7);
        for (status, expected) in [
            (Status::unavailable("away"), Retry::ATTEMPTS),
            (Status::not_found("no"), 1),
        ] {
            let made = Cell::new(0);
            let outcome: Result<(), _> = retry
                .run(|| {
                    made.set(made.get() + 1);
                    let status = status.clone();
                    async move { Err(status) }
                })
                .await;
            assert_eq!(outcome.unwrap_err().code(), status.code());
            assert_eq!(made.get(), expected);
        }
    }

    #[test]
    fn pauses_grow_and_stay_under_their_ceiling() {
        let retry = Retry::new(1);
        for failures in 1..40 {
            let ceiling = FIRST
                .saturating_mul(1 << (failures - 1).min(16))
                .min(LONGEST);
            assert!(retry.pause(failures) <= ceiling);
        }
    }
}
