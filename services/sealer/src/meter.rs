//! How far a job is, told by its work and read by its heartbeat.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use registry_domain::Progress;
use sealing::Step;

/// Counters of one attempt.
#[derive(Debug, Default)]
pub struct Meter {
    phase: Mutex<String>,
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    tensors_done: AtomicU64,
    tensors_total: AtomicU64,
}

impl Meter {
    pub fn phase(&self, phase: &str) {
        phase.clone_into(&mut self.phase.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets what there is to do.
    pub fn expect(&self, all: Step) {
        self.bytes_total.store(all.bytes, Ordering::Relaxed);
        self.tensors_total.store(all.tensors, Ordering::Relaxed);
    }

    /// Sets what is left to do, once it is known.
    pub fn expect_left(&self, bytes: u64) {
        let done = self.bytes_done.load(Ordering::Relaxed);
        self.bytes_total
            .store(done.saturating_add(bytes), Ordering::Relaxed);
    }

    pub fn done(&self, step: Step) {
        self.bytes_done.fetch_add(step.bytes, Ordering::Relaxed);
        self.tensors_done.fetch_add(step.tensors, Ordering::Relaxed);
    }

    pub fn read(&self) -> Progress {
        let phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            phase: phase.clone(),
            bytes_done: read(&self.bytes_done),
            bytes_total: read(&self.bytes_total),
            tensors_done: read(&self.tensors_done),
            tensors_total: read(&self.tensors_total),
        }
    }
}
