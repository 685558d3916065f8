use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use direct_io::AlignedBuf;

use crate::worker::Workers;
use crate::{
    Admission, ArrayRules, Full, Geometry, PageArray, PageError, PageId, PageSource, Policy,
    Residency, Stats,
};

/// Pages of a container, resident under a byte budget.
pub struct Pager {
    inner: Arc<Inner>,
    workers: Workers,
}

/// How a [`Pager`] works.
#[derive(Debug, Clone, Copy)]
pub struct PagerOptions {
    /// Most bytes of resident pages.
    pub budget: u64,
    /// Which idle text or vision page goes first.
    pub block_policy: Policy,
    /// Which idle expert page goes first.
    pub expert_policy: Policy,
    /// Threads that read ahead.
    pub prefetch_threads: usize,
}

impl PagerOptions {
    /// The policies that fit a model's use of its pages, and one thread that reads ahead.
    #[must_use]
    pub const fn new(budget: u64) -> Self {
        Self {
            budget,
            block_policy: Policy::Mru,
            expert_policy: Policy::Lru,
            prefetch_threads: 1,
        }
    }
}

/// A pager that cannot be made or resized.
#[derive(Debug, thiserror::Error)]
pub enum PagerError {
    /// The budget does not hold one page.
    #[error("a budget of {budget} bytes holds no page: the largest has {page} bytes")]
    BudgetTooSmall {
        /// The budget asked for, in bytes.
        budget: u64,
        /// Bytes of the largest page.
        page: u64,
    },
    /// No thread for reading ahead.
    #[error("starting a thread that reads pages ahead failed")]
    Thread(#[source] io::Error),
}

impl Pager {
    /// A pager with at most `budget` bytes of pages and [`PagerOptions::new`] for the rest.
    ///
    /// # Errors
    /// When the budget does not hold the largest page, or no thread can be started.
    pub fn new(
        source: Arc<dyn PageSource>,
        geometry: Geometry,
        budget: u64,
    ) -> Result<Self, PagerError> {
        Self::with_options(source, geometry, PagerOptions::new(budget))
    }

    /// A pager with options of its own.
    ///
    /// # Errors
    /// As [`Pager::new`].
    pub fn with_options(
        source: Arc<dyn PageSource>,
        geometry: Geometry,
        options: PagerOptions,
    ) -> Result<Self, PagerError> {
        check_budget(&geometry, options.budget)?;
        let rules = PageArray::ALL.map(|array| ArrayRules {
            page_size: geometry.array(array).page_size,
            policy: match array {
                PageArray::Text | PageArray::Vision => options.block_policy,
                PageArray::Expert => options.expert_policy,
            },
        });
        let inner = Arc::new(Inner {
            source,
            geometry,
            state: Mutex::new(State {
                residency: Residency::new(options.budget, rules),
                slots: HashMap::new(),
                wanted: HashSet::new(),
                reading_ahead: 0,
                awaiting_release: 0,
                revoked: false,
                stats: Stats::default(),
            }),
            read: Condvar::new(),
            released: Condvar::new(),
        });
        let workers =
            Workers::start(&inner, options.prefetch_threads).map_err(PagerError::Thread)?;
        Ok(Self { inner, workers })
    }

    /// The page, pinned while the lease lives: at once when it is resident, else read now. Requests
    /// for a page that is being read wait for that one read.
    ///
    /// # Errors
    /// When the page does not exist, cannot be read or opened, or leases leave it no room; when the
    /// pager was revoked.
    pub fn get(&self, page: PageId) -> Result<PageLease, PageError> {
        self.inner.get(page)
    }

    /// Asks for a page to be read ahead on another thread. Nothing happens when it is resident, when
    /// room could only be made by dropping pages that are leased or were read ahead, when many
    /// requests are waiting already, or when [`Pager::get`] overtakes this request.
    pub fn prefetch(&self, page: PageId) {
        let wanted = {
            let mut state = self.inner.lock();
            !state.revoked && !state.slots.contains_key(&page) && state.wanted.insert(page)
        };
        if wanted && !self.workers.ask(page) {
            self.inner.lock().wanted.remove(&page);
        }
    }

    /// Whether the page could be leased now without a read.
    #[must_use]
    pub fn is_resident(&self, page: PageId) -> bool {
        matches!(self.inner.lock().slots.get(&page), Some(Slot::Resident(_)))
    }

    /// Shrinks or widens the budget. Idle pages that no longer fit are dropped now, leased ones
    /// when their leases end.
    ///
    /// # Errors
    /// When the budget does not hold the largest page; nothing changes then.
    pub fn set_budget(&self, budget: u64) -> Result<(), PagerError> {
        check_budget(&self.inner.geometry, budget)?;
        let mut state = self.inner.lock();
        let evicted = state.residency.set_budget(budget);
        let frames = state.take_frames(&evicted);
        drop(state);
        drop(frames);
        Ok(())
    }

    /// Drops and wipes every page that is not leased, and has leased ones wiped when their last
    /// lease ends; reads under way are thrown away. Returns the leases that are out.
    pub fn clear(&self) -> u64 {
        self.inner.clear(false)
    }

    /// [`Pager::clear`], and refuses every request from now on. Returns the leases that are out;
    /// [`Pager::wait_released`] waits for them.
    pub fn revoke(&self) -> u64 {
        self.inner.clear(true)
    }

    /// Waits until no lease is out and no page is being read; false when that takes longer than
    /// `limit`.
    #[must_use]
    pub fn wait_released(&self, limit: Duration) -> bool {
        let mut state = self.inner.lock();
        state.awaiting_release += 1;
        let (mut state, result) = self
            .inner
            .released
            .wait_timeout_while(state, limit, |state| state.residency.pinned() > 0)
            .unwrap_or_else(PoisonError::into_inner);
        state.awaiting_release -= 1;
        !result.timed_out()
    }

    /// What was done and is held.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.inner.lock();
        Stats {
            budget: state.residency.budget(),
            resident: state.residency.used(),
            ..state.stats
        }
    }

    /// Where the pages lie.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.inner.geometry
    }
}

impl fmt::Debug for Pager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pager")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A resident page, pinned until this is dropped. The bytes start on a 4096-byte boundary.
pub struct PageLease {
    inner: Arc<Inner>,
    page: PageId,
    generation: u64,
    /// None only while the lease is being dropped.
    frame: Option<Arc<AlignedBuf>>,
}

impl PageLease {
    /// Which page this is.
    #[must_use]
    pub const fn page(&self) -> PageId {
        self.page
    }
}

impl Deref for PageLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.frame
            .as_deref()
            .expect("a lease has its frame until it is dropped")
    }
}

impl AsRef<[u8]> for PageLease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PageLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageLease({})", self.page)
    }
}

impl Drop for PageLease {
    fn drop(&mut self) {
        // Before the pin goes, so that an unpinned page's frame has no other owner.
        self.frame = None;
        let mut state = self.inner.lock();
        state.stats.leases -= 1;
        state.residency.unpin(self.page, self.generation);
        let evicted = state.residency.trim();
        let frames = state.take_frames(&evicted);
        self.inner.tell_if_released(&state);
        drop(state);
        drop(frames);
    }
}

pub(crate) struct Inner {
    source: Arc<dyn PageSource>,
    geometry: Geometry,
    state: Mutex<State>,
    /// A read ended.
    read: Condvar,
    /// Nothing is pinned any more.
    released: Condvar,
}

struct State {
    residency: Residency,
    /// The resident pages' frames; the same pages as in `residency`.
    slots: HashMap<PageId, Slot>,
    /// Pages to be read ahead that nobody has asked for since.
    wanted: HashSet<PageId>,
    reading_ahead: u32,
    /// Threads that wait until nothing is pinned.
    awaiting_release: u32,
    revoked: bool,
    stats: Stats,
}

enum Slot {
    Reading(Arc<Outcome>),
    Resident(Arc<AlignedBuf>),
}

/// Why a read failed, for those who waited for it.
type Outcome = OnceLock<PageError>;

impl State {
    /// Frames of pages that were evicted, to be reused or to be wiped by dropping them without the
    /// lock.
    fn take_frames(&mut self, evicted: &[PageId]) -> Vec<AlignedBuf> {
        let mut frames = Vec::with_capacity(evicted.len());
        for page in evicted {
            self.stats.arrays[page.array.ordinal()].evictions += 1;
            if let Some(Slot::Resident(frame)) = self.slots.remove(page) {
                frames.push(Arc::into_inner(frame).expect("an evicted page has no lease"));
            }
        }
        frames
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that runs under the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(self: &Arc<Self>, page: PageId) -> Result<PageLease, PageError> {
        let array = page.array.ordinal();
        let mut waited = false;
        let mut state = self.lock();
        // Reading it ahead afterwards would read it for nobody.
        state.wanted.remove(&page);
        loop {
            if state.revoked {
                return Err(PageError::Revoked);
            }
            match state.slots.get(&page) {
                Some(Slot::Resident(frame)) => {
                    let frame = Arc::clone(frame);
                    let generation = state
                        .residency
                        .pin(page)
                        .expect("slots and residency agree");
                    state.stats.leases += 1;
                    if !waited {
                        state.stats.arrays[array].hits += 1;
                    }
                    return Ok(self.lease(page, generation, frame));
                }
                Some(Slot::Reading(outcome)) => {
                    let outcome = Arc::clone(outcome);
                    if !waited {
                        waited = true;
                        state.stats.arrays[array].waits += 1;
                    }
                    state = self
                        .read
                        .wait_while(state, |state| is_reading(state, page, &outcome))
                        .unwrap_or_else(PoisonError::into_inner);
                    if let Some(error) = outcome.get() {
                        return Err(error.clone());
                    }
                }
                None => match self.begin(&mut state, page, Admission::Demand) {
                    Ok(reading) => {
                        drop(state);
                        if let Some(lease) = reading.run()? {
                            return Ok(lease);
                        }
                        // Cleared in the meantime: what was read is gone.
                        state = self.lock();
                    }
                    // A page that is being read ahead can give way once it is there.
                    Err(Refused::Full(_)) if state.reading_ahead > 0 => {
                        state = self
                            .read
                            .wait(state)
                            .unwrap_or_else(PoisonError::into_inner);
                    }
                    Err(Refused::Full(Full { held })) => {
                        return Err(PageError::AllLeased {
                            page,
                            leased: held,
                            budget: state.residency.budget(),
                        });
                    }
                    Err(Refused::Error(error)) => return Err(error),
                },
            }
        }
    }

    /// Reads a page that nobody waits for; a failure shows when someone does.
    pub(crate) fn read_ahead(self: &Arc<Self>, page: PageId) {
        let mut state = self.lock();
        let wanted = state.wanted.remove(&page);
        if !wanted || state.revoked || state.slots.contains_key(&page) {
            return;
        }
        if let Ok(reading) = self.begin(&mut state, page, Admission::Prefetch) {
            drop(state);
            // Counted as a failure; the slot is free again for a read on demand.
            let _ = reading.run();
        }
    }

    /// Admits a page and takes over its read.
    fn begin(
        self: &Arc<Self>,
        state: &mut State,
        page: PageId,
        admission: Admission,
    ) -> Result<Reading, Refused> {
        let Some((_, len)) = self.geometry.span(page) else {
            let pages = self.geometry.array(page.array).pages;
            return Err(Refused::Error(PageError::NoSuchPage { page, pages }));
        };
        let mut evicted = vec![];
        let generation = state
            .residency
            .admit(page, admission, &mut evicted)
            .map_err(Refused::Full)?;
        let mut frames = state.take_frames(&evicted);
        let reused = frames.iter().position(|frame| frame.len() == len);
        let frame = reused.map(|index| frames.swap_remove(index));
        if frame.is_none() {
            state.stats.frames_made += 1;
        }
        let outcome = Arc::new(Outcome::new());
        state
            .slots
            .insert(page, Slot::Reading(Arc::clone(&outcome)));
        let counts = &mut state.stats.arrays[page.array.ordinal()];
        match admission {
            Admission::Demand => counts.misses += 1,
            Admission::Prefetch => {
                counts.read_ahead += 1;
                state.reading_ahead += 1;
            }
        }
        Ok(Reading {
            inner: Arc::clone(self),
            page,
            len,
            generation,
            admission,
            outcome,
            frame,
            spare: frames,
            ended: false,
        })
    }

    fn clear(&self, revoke: bool) -> u64 {
        let mut state = self.lock();
        state.revoked |= revoke;
        state.wanted.clear();
        state.residency.clear();
        let slots = std::mem::take(&mut state.slots);
        let leases = state.stats.leases;
        self.read.notify_all();
        self.tell_if_released(&state);
        drop(state);
        // Wipes the frames that no lease holds.
        drop(slots);
        leases
    }

    fn lease(self: &Arc<Self>, page: PageId, generation: u64, frame: Arc<AlignedBuf>) -> PageLease {
        PageLease {
            inner: Arc::clone(self),
            page,
            generation,
            frame: Some(frame),
        }
    }

    fn tell_if_released(&self, state: &State) {
        // Telling is a system call, which most leases need not pay for.
        if state.awaiting_release > 0 && state.residency.pinned() == 0 {
            self.released.notify_all();
        }
    }
}

/// A read under way. However it ends, a panic of the source included, the slot is settled and those
/// who wait are told.
struct Reading {
    inner: Arc<Inner>,
    page: PageId,
    len: usize,
    generation: u64,
    admission: Admission,
    outcome: Arc<Outcome>,
    frame: Option<AlignedBuf>,
    /// Frames of evicted pages that do not fit this one, wiped before the read.
    spare: Vec<AlignedBuf>,
    ended: bool,
}

impl Reading {
    /// The lease of a page on demand; none of a page read ahead, or when the pager was cleared.
    fn run(mut self) -> Result<Option<PageLease>, PageError> {
        self.spare.clear();
        let page = self.page;
        let frame = match self.frame.take() {
            Some(frame) => Ok(frame),
            None => AlignedBuf::wiped(self.len).map_err(|_| PageError::NoMemory { page }),
        };
        let read = frame.and_then(|mut frame| {
            self.inner.source.read_page(page, &mut frame)?;
            Ok(frame)
        });
        match read {
            Ok(frame) => Ok(self.succeed(frame)),
            Err(error) => {
                self.fail(error.clone());
                Err(error)
            }
        }
    }

    fn succeed(&mut self, frame: AlignedBuf) -> Option<PageLease> {
        self.ended = true;
        let (page, generation) = (self.page, self.generation);
        let inner = Arc::clone(&self.inner);
        let mut state = self.settle();
        if !is_reading(&state, page, &self.outcome) {
            state.residency.unpin(page, generation);
            inner.tell_if_released(&state);
            drop(state);
            drop(frame);
            return None;
        }
        state.stats.arrays[page.array.ordinal()].bytes_read += frame.len() as u64;
        let frame = Arc::new(frame);
        state.slots.insert(page, Slot::Resident(Arc::clone(&frame)));
        match self.admission {
            Admission::Demand => {
                state.stats.leases += 1;
                drop(state);
                Some(inner.lease(page, generation, frame))
            }
            Admission::Prefetch => {
                drop(frame);
                state.residency.unpin(page, generation);
                let evicted = state.residency.trim();
                let frames = state.take_frames(&evicted);
                inner.tell_if_released(&state);
                drop(state);
                drop(frames);
                None
            }
        }
    }

    fn fail(&mut self, error: PageError) {
        self.ended = true;
        let inner = Arc::clone(&self.inner);
        let mut state = self.settle();
        state.stats.arrays[self.page.array.ordinal()].failures += 1;
        if let Entry::Occupied(slot) = state.slots.entry(self.page)
            && matches!(slot.get(), Slot::Reading(outcome) if Arc::ptr_eq(outcome, &self.outcome))
        {
            slot.remove();
        }
        state.residency.forget(self.page, self.generation);
        // Nobody else sets it: a read fails once.
        let _ = self.outcome.set(error);
        inner.tell_if_released(&state);
    }

    /// The state, with this read no longer counted and the waiting woken.
    fn settle(&self) -> MutexGuard<'_, State> {
        let mut state = self.inner.lock();
        if self.admission == Admission::Prefetch {
            state.reading_ahead -= 1;
        }
        self.inner.read.notify_all();
        state
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if !self.ended {
            self.fail(PageError::read(self.page, "the page source panicked"));
        }
    }
}

enum Refused {
    Full(Full),
    Error(PageError),
}

fn is_reading(state: &State, page: PageId, outcome: &Arc<Outcome>) -> bool {
    matches!(state.slots.get(&page), Some(Slot::Reading(current)) if Arc::ptr_eq(current, outcome))
}

fn check_budget(geometry: &Geometry, budget: u64) -> Result<(), PagerError> {
    let page = geometry.largest_page();
    if budget < page {
        Err(PagerError::BudgetTooSmall { budget, page })
    } else {
        Ok(())
    }
}
