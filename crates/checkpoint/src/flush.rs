//! Writes a file's bytes to the disk while more of them are made.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// A thread that syncs a file whenever [`FLUSH_STEP`] bytes were added to it, so that the disk is
/// not idle until the last byte is written.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<io::Result<()>>>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: u64,
    closed: bool,
}

impl Flusher {
    pub(crate) fn start(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("flush".to_owned());
        let thread = thread.spawn(move || {
            while seen.wait() {
                file.sync_data()?;
            }
            Ok(())
        })?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Says that bytes were written.
    pub(crate) fn wrote(&self, bytes: u64) {
        let mut state = lock(&self.shared.state);
        state.waiting += bytes;
        if state.waiting >= FLUSH_STEP {
            self.shared.changed.notify_one();
        }
    }

    /// Ends the thread. A failure that it met is told here: the system reports each only once.
    pub(crate) fn finish(&self) -> io::Result<()> {
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_one();
        let thread = lock(&self.thread).take();
        match thread.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the thread that syncs ended early")),
        }
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        // Only an unfinished file's: it is removed, and what became of its bytes does not matter.
        let _ = self.finish();
    }
}

impl Shared {
    /// Whether there is more to sync.
    fn wait(&self) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return false;
            }
            if state.waiting >= FLUSH_STEP {
                state.waiting = 0;
                return true;
            }
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Large beside a disk's latency, small beside what a process may have unwritten.
const FLUSH_STEP: u64 = 64 << 20;
