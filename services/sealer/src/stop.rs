//! Asking the work on a job to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use service_runtime::CancellationToken;

/// Why work stops before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The lease is another worker's now, or the job ended.
    Lost,
    /// The job was asked to stop.
    Cancelled,
    /// This process stops.
    Shutdown,
}

/// One job's stop signal, for async work and for threads.
#[derive(Debug, Default)]
pub struct Stop {
    token: CancellationToken,
    flag: AtomicBool,
    why: Mutex<Option<Why>>,
}

impl Stop {
    /// Stops the work. The first reason counts, but a lost lease outdoes the others.
    pub fn stop(&self, why: Why) {
        let mut first = self.why.lock().unwrap_or_else(PoisonError::into_inner);
        if first.is_none() || why == Why::Lost {
            *first = Some(why);
        }
        self.flag.store(true, Ordering::Relaxed);
        self.token.cancel();
    }

    /// Why the work stops; `None` while it does not.
    pub fn why(&self) -> Option<Why> {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Set once the work should stop.
    pub const fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Whether the work should stop.
    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Waits until the work should stop.
    pub async fn stopped(&self) {
        self.token.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts_but_a_lost_lease_outdoes_it() {
        let stop = Stop::default();
        assert!(!stop.is_set() && stop.why().is_none());
        stop.stop(Why::Shutdown);
        stop.stop(Why::Cancelled);
        assert!(stop.is_set() && stop.why() == Some(Why::Shutdown));
        stop.stop(Why::Lost);
        assert_eq!(stop.why(), Some(Why::Lost));
    }
}
