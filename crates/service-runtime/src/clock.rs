use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The time of day. The only way a service reads it.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch.
    fn unix_millis(&self) -> i64;

    /// Seconds since the Unix epoch.
    fn unix_seconds(&self) -> i64 {
        self.unix_millis().div_euclid(1000)
    }
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    fn unix_millis(&self) -> i64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| {
                i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
            })
    }
}

/// A clock that a test sets.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that stands at a time in unix seconds.
    #[must_use]
    pub const fn at(unix_seconds: i64) -> Self {
        Self(AtomicI64::new(unix_seconds * 1000))
    }

    /// Moves on, or back, by seconds.
    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1000, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn unix_millis(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}
