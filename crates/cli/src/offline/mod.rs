//! Commands that need no services: keys come from key files only.

pub mod blob;
mod catalog;
pub mod checkpoint;
pub mod convert;
pub mod identity;
pub mod jlm;
pub mod serve_view;
mod spans;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

/// Runs work that an interrupt or SIGTERM asks to stop and does not end, so that it can clean up.
fn interruptible<T>(work: impl FnOnce(&AtomicBool) -> Result<T>) -> Result<T> {
    static CANCEL: AtomicBool = AtomicBool::new(false);
    let signals = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("no async runtime")?;
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        // Caught from here on: the work has not begun.
        let _runtime = signals.enter();
        let mut caught = signal(kind).context("no signal handler")?;
        signals.spawn(async move {
            if caught.recv().await.is_some() {
                CANCEL.store(true, Ordering::Relaxed);
            }
        });
    }
    let result = work(&CANCEL);
    signals.shutdown_timeout(Duration::ZERO);
    result
}
