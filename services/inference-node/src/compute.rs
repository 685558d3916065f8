//! The one thread that runs sessions, each with all of the node's processors, in order of arrival.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use api::{to_status, v1};
use engine::{Finish, Request, RunError, Sampling, Session};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use rayon::ThreadPool;
use text::StreamDecoder;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tonic::Status;

use crate::config::{BuildError, ModelSettings};
use crate::counts::Counts;
use crate::error::NodeError;
use crate::loaded::Loaded;
use crate::open::Open;

/// A session that was admitted.
pub(crate) struct Job {
    pub model: Arc<Loaded>,
    pub session_id: String,
    /// At least one token, and no more than the context.
    pub prompt: Vec<u32>,
    pub max_tokens: usize,
    pub sampling: Sampling,
    pub seed: u64,
    pub ignore_stop: bool,
    /// Set when the client or the model is gone.
    pub cancel: Arc<AtomicBool>,
    pub answers: mpsc::Sender<Result<v1::GenerateResponse, Status>>,
}

/// The way to the thread.
pub(crate) struct Compute {
    queue: Mutex<Option<SyncSender<Counted>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    counts: Counts,
}

/// A job that is counted among the sessions while it lives.
struct Counted(Job, Counts);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.sessions.dec();
    }
}

impl Compute {
    pub(crate) fn start(settings: &ModelSettings, counts: Counts) -> Result<Self, BuildError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(settings.threads)
            .thread_name(|index| format!("compute-{index}"))
            .build()
            .map_err(|error| BuildError::Compute(error.into()))?;
        let (queue, jobs) = sync_channel(settings.max_waiting);
        let runtime = Handle::current();
        let unread = Duration::from_secs(settings.unread_seconds);
        let thread = std::thread::Builder::new()
            .name("sessions".to_owned())
            .spawn(move || run_all(&jobs, &pool, &runtime, unread))
            .map_err(|error| BuildError::Compute(error.into()))?;
        Ok(Self {
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread)),
            counts,
        })
    }

    /// Puts a session into the queue.
    pub(crate) fn submit(&self, job: Job) -> Result<(), NodeError> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.as_ref().ok_or(NodeError::Stopping)?;
        self.counts.sessions.inc();
        match queue.try_send(Counted(job, self.counts.clone())) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(_)) => {
                self.counts.refused_sessions.inc();
                Err(NodeError::Busy)
            }
            Err(TrySendError::Disconnected(_)) => Err(NodeError::Stopping),
        }
    }

    /// Whether no session runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.counts.sessions.get() == 0
    }

    /// Ends the thread once its queue is empty, and waits for it. Blocks.
    pub(crate) fn finish(&self) {
        let lock = self.queue.lock();
        lock.unwrap_or_else(PoisonError::into_inner).take();
        let lock = self.thread.lock();
        let thread = lock.unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that runs sessions panicked");
        }
    }
}

fn run_all(jobs: &Receiver<Counted>, pool: &ThreadPool, runtime: &Handle, unread: Duration) {
    while let Ok(counted) = jobs.recv() {
        let job = &counted.0;
        let mut run = Run {
            job,
            runtime,
            unread,
            tokens: 0,
            tokens_total: &counted.1,
            finished: false,
            failure: None,
        };
        // A fault in one session leaves the thread to the others.
        let session = AssertUnwindSafe(|| pool.install(|| run.session()));
        let outcome = catch_unwind(session).unwrap_or(Err(NodeError::Panicked));
        run.end(outcome);
    }
}

/// One session's run.
struct Run<'a> {
    job: &'a Job,
    runtime: &'a Handle,
    unread: Duration,
    tokens: u32,
    tokens_total: &'a Counts,
    /// Whether the last message was handed over.
    finished: bool,
    /// Why the session ended itself.
    failure: Option<NodeError>,
}

impl Run<'_> {
    fn session(&mut self) -> Result<(), NodeError> {
        let job = self.job;
        let open = job.model.open()?;
        let started = Instant::now();
        let mut first = None;
        // Who reads past the stop tokens wants to see them.
        let mut decoder = StreamDecoder::new(!job.ignore_stop);
        let mut session =
            Session::new(open.model.clone(), open.weights.clone(), open.pool.clone())?;
        // A context that memory cuts short ends as the model's own does.
        let room = open.context().saturating_sub(job.prompt.len()) + 1;
        let request = Request {
            prompt: &job.prompt,
            max_tokens: job.max_tokens.min(room),
            stop: match job.ignore_stop {
                true => &[],
                false => open.tokenizer.stop_ids(),
            },
            sampling: job.sampling,
        };
        let mut rng = ChaCha20Rng::seed_from_u64(job.seed);
        let finish = session.generate(&request, &mut rng, &job.cancel, |id| {
            first.get_or_insert_with(Instant::now);
            self.receive(&open, &mut decoder, id)
        });
        let ended = Instant::now();
        let reason = match finish? {
            Finish::Stop(_) => v1::FinishReason::Stop,
            Finish::Length if job.max_tokens > room => v1::FinishReason::Context,
            Finish::Length => v1::FinishReason::Length,
            Finish::Context => v1::FinishReason::Context,
            Finish::Halted => return self.failure.take().map_or(Ok(()), Err),
        };
        let first = first.unwrap_or(ended);
        let prompt_tokens = u32::try_from(job.prompt.len()).unwrap_or(u32::MAX);
        let last = v1::GenerateResponse {
            token: 0,
            text: decoder.finish(),
            finish: Some(v1::Finish {
                reason: reason.into(),
                prompt_tokens,
                generated_tokens: self.tokens,
                prefill_seconds: (first - started).as_secs_f64(),
                decode_seconds: (ended - first).as_secs_f64(),
            }),
            session_id: job.session_id.clone(),
        };
        self.finished = self.send(Ok(last)).is_continue();
        self.failure.take().map_or(Ok(()), Err)
    }

    fn receive(&mut self, open: &Open, decoder: &mut StreamDecoder, id: u32) -> ControlFlow<()> {
        // Rows of the embedding past the vocabulary have no text.
        let text = decoder.push(&open.tokenizer, id).unwrap_or_default();
        self.tokens += 1;
        self.tokens_total.tokens.inc();
        self.send(Ok(v1::GenerateResponse {
            token: id,
            text,
            finish: None,
            session_id: self.job.session_id.clone(),
        }))
    }

    /// Hands an answer over, waiting for the client as long as it may.
    fn send(&mut self, answer: Result<v1::GenerateResponse, Status>) -> ControlFlow<()> {
        let stop = &self.job.model.stop;
        let sent = self.runtime.block_on(async {
            tokio::select! {
                sent = timeout(self.unread, self.job.answers.send(answer)) => Some(sent),
                () = stop.cancelled() => None,
            }
        });
        match sent {
            Some(Ok(Ok(()))) => ControlFlow::Continue(()),
            Some(Err(_)) => {
                self.failure = Some(NodeError::Unread(self.unread.as_secs()));
                ControlFlow::Break(())
            }
            // The client or the model is gone.
            Some(Ok(Err(_))) | None => ControlFlow::Break(()),
        }
    }

    /// Tells the client how it ended, unless it is gone or has been told.
    fn end(&mut self, outcome: Result<(), NodeError>) {
        if self.finished {
            return;
        }
        let error = match (outcome, self.job.model.closed()) {
            // Whatever broke, the model's end broke it.
            (_, Some(closed)) => NodeError::Closed(closed),
            (Ok(()), None) => return,
            (Err(error), None) => error,
        };
        let gone = self.job.answers.is_closed();
        if gone && matches!(error, NodeError::Run(RunError::Cancelled)) {
            tracing::debug!(session = self.job.session_id, "the client went away");
            return;
        }
        // A full channel has a client that does not read: the status waits behind its tokens.
        let told = self.job.answers.send(Err(to_status(error)));
        let sent = self.runtime.block_on(async { timeout(STATUS, told).await });
        if sent.is_err() {
            self.job.cancel.store(true, Ordering::Relaxed);
        }
    }
}

/// Longest wait for a client to take the status that ends its session.
const STATUS: Duration = Duration::from_secs(2);
