use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::PageId;
use crate::pager::Inner;

/// Threads that read pages ahead from a bounded queue; dropping them waits for reads under way.
pub(crate) struct Workers {
    queue: Option<SyncSender<PageId>>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    pub(crate) fn start(inner: &Arc<Inner>, threads: usize) -> io::Result<Self> {
        let (queue, wanted) = sync_channel(QUEUED_PAGES);
        let wanted = Arc::new(Mutex::new(wanted));
        let mut workers = Self {
            queue: Some(queue),
            threads: Vec::with_capacity(threads),
        };
        for _ in 0..threads {
            let (inner, wanted) = (Arc::clone(inner), Arc::clone(&wanted));
            let thread = Builder::new()
                .name("page-ahead".to_owned())
                .spawn(move || run(&inner, &wanted))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    /// Asks for a page and says whether it will be tried; a full queue drops the request, which costs
    /// a read on demand later: reading ahead is never worth waiting for.
    pub(crate) fn ask(&self, page: PageId) -> bool {
        let queue = self.queue.as_ref();
        queue.is_some_and(|queue| queue.try_send(page).is_ok())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A page source that panicked has failed its own read; nothing is left to do here.
            let _ = thread.join();
        }
    }
}

fn run(inner: &Arc<Inner>, wanted: &Mutex<Receiver<PageId>>) {
    loop {
        let next = wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match next {
            Ok(page) => inner.read_ahead(page),
            Err(_) => return,
        }
    }
}

/// Pages waiting to be read ahead.
const QUEUED_PAGES: usize = 64;
