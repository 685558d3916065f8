use std::collections::{BTreeMap, HashMap};

use crate::{PageArray, PageId};

/// Which idle page of an array goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// The least recently used one: for use without an order, as of experts.
    Lru,
    /// The most recently used one: the best choice for a scan in a circle, where it is the page
    /// whose next use is farthest away.
    Mru,
}

/// Page size and policy of one array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArrayRules {
    /// Bytes a page.
    pub page_size: u64,
    /// Which idle page goes first.
    pub policy: Policy,
}

/// Why a page is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Someone waits for it.
    Demand,
    /// It is read ahead: it takes no place from another page that was read ahead.
    Prefetch,
}

/// No idle page is left to make room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// Bytes of the pages that cannot go.
    pub held: u64,
}

/// Which pages are resident, which are pinned and which go next, without their bytes.
///
/// Pages go in this order: vision pages (their scan is over once an image is encoded), experts (used
/// by some tokens), text blocks (used by every token); in each array by its [`Policy`]; pages that
/// were read ahead and not yet used last, and only on demand.
#[derive(Debug)]
pub struct Residency {
    budget: u64,
    used: u64,
    rules: [ArrayRules; 3],
    entries: HashMap<PageId, Entry>,
    /// Unpinned pages by the time of their last use.
    idle: [BTreeMap<u64, PageId>; 3],
    /// Unpinned pages that were read ahead and not used since, by time.
    ahead: BTreeMap<u64, PageId>,
    evictable: u64,
    evictable_ahead: u64,
    /// Pinned pages that were dropped from the entries: generation to pins.
    doomed: HashMap<u64, u32>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    generation: u64,
    pins: u32,
    /// Key in `idle` or `ahead` while `pins` is 0.
    since: u64,
    ahead: bool,
}

impl Residency {
    /// Nothing resident; rules in the order of [`PageArray::ALL`].
    #[must_use]
    pub fn new(budget: u64, rules: [ArrayRules; 3]) -> Self {
        Self {
            budget,
            used: 0,
            rules,
            entries: HashMap::new(),
            idle: Default::default(),
            ahead: BTreeMap::new(),
            evictable: 0,
            evictable_ahead: 0,
            doomed: HashMap::new(),
            clock: 0,
        }
    }

    /// The budget in bytes.
    #[must_use]
    pub const fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes of all pages, those being read and those that only a lease keeps included.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Bytes of pages that a pin holds.
    #[must_use]
    pub const fn pinned(&self) -> u64 {
        self.used - self.evictable - self.evictable_ahead
    }

    /// Whether the page is resident.
    #[must_use]
    pub fn contains(&self, page: PageId) -> bool {
        self.entries.contains_key(&page)
    }

    /// Pins a resident page and returns its generation, which [`Residency::unpin`] wants back.
    pub fn pin(&mut self, page: PageId) -> Option<u64> {
        let size = self.size(page);
        let entry = self.entries.get_mut(&page)?;
        if entry.pins == 0 {
            if entry.ahead {
                self.ahead.remove(&entry.since);
                self.evictable_ahead -= size;
            } else {
                self.idle[page.array.ordinal()].remove(&entry.since);
                self.evictable -= size;
            }
        }
        entry.ahead = false;
        entry.pins += 1;
        Some(entry.generation)
    }

    /// Makes room for a page that is not resident, pins it and returns its generation; the pages
    /// that had to go are appended to `evicted`.
    ///
    /// # Errors
    /// When what is pinned leaves too little room; nothing is evicted then.
    pub fn admit(
        &mut self,
        page: PageId,
        admission: Admission,
        evicted: &mut Vec<PageId>,
    ) -> Result<u64, Full> {
        debug_assert!(!self.contains(page));
        let size = self.size(page);
        let movable = match admission {
            Admission::Demand => self.evictable + self.evictable_ahead,
            Admission::Prefetch => self.evictable,
        };
        let held = self.used - movable;
        if held.checked_add(size).is_none_or(|sum| sum > self.budget) {
            return Err(Full { held });
        }
        while self.used + size > self.budget {
            let victim = self
                .victim()
                .expect("the evictable pages were found to suffice");
            self.evict(victim);
            evicted.push(victim);
        }
        let generation = self.tick();
        self.used += size;
        let entry = Entry {
            generation,
            pins: 1,
            since: generation,
            ahead: admission == Admission::Prefetch,
        };
        self.entries.insert(page, entry);
        Ok(generation)
    }

    /// Takes one pin away. Returns true when the page was dropped in the meantime and this was the
    /// last pin that kept its bytes.
    pub fn unpin(&mut self, page: PageId, generation: u64) -> bool {
        let size = self.size(page);
        let now = self.tick();
        match self.entries.get_mut(&page) {
            Some(entry) if entry.generation == generation => {
                entry.pins -= 1;
                if entry.pins == 0 {
                    entry.since = now;
                    if entry.ahead {
                        self.ahead.insert(now, page);
                        self.evictable_ahead += size;
                    } else {
                        self.idle[page.array.ordinal()].insert(now, page);
                        self.evictable += size;
                    }
                }
                false
            }
            _ => {
                let pins = self
                    .doomed
                    .get_mut(&generation)
                    .expect("a pin is taken away once");
                *pins -= 1;
                let last = *pins == 0;
                if last {
                    self.doomed.remove(&generation);
                    self.used -= size;
                }
                last
            }
        }
    }

    /// Forgets a page that could not be read; it has the one pin of its reader.
    pub fn forget(&mut self, page: PageId, generation: u64) {
        if self
            .entries
            .get(&page)
            .is_some_and(|entry| entry.generation == generation)
        {
            self.entries.remove(&page);
            self.doomed.insert(generation, 1);
        }
        self.unpin(page, generation);
    }

    /// Drops every page; pinned ones keep their bytes until the last pin goes. Returns the pages
    /// that no longer are resident.
    pub fn clear(&mut self) -> Vec<PageId> {
        let mut dropped = Vec::with_capacity(self.entries.len());
        for (page, entry) in self.entries.drain() {
            if entry.pins > 0 {
                self.doomed.insert(entry.generation, entry.pins);
            } else {
                self.used -= self.rules[page.array.ordinal()].page_size;
            }
            dropped.push(page);
        }
        self.idle.iter_mut().for_each(BTreeMap::clear);
        self.ahead.clear();
        self.evictable = 0;
        self.evictable_ahead = 0;
        dropped
    }

    /// Changes the budget and returns the pages that have to go. Pinned pages may exceed it until
    /// they are unpinned and [`Residency::trim`] is called.
    pub fn set_budget(&mut self, budget: u64) -> Vec<PageId> {
        self.budget = budget;
        self.trim()
    }

    /// Evicts idle pages while more than the budget is used.
    pub fn trim(&mut self) -> Vec<PageId> {
        let mut evicted = vec![];
        while self.used > self.budget {
            let Some(victim) = self.victim() else { break };
            self.evict(victim);
            evicted.push(victim);
        }
        evicted
    }

    fn victim(&self) -> Option<PageId> {
        const ORDER: [PageArray; 3] = [PageArray::Vision, PageArray::Expert, PageArray::Text];
        let idle = ORDER.iter().find_map(|array| {
            let idle = &self.idle[array.ordinal()];
            match self.rules[array.ordinal()].policy {
                Policy::Lru => idle.first_key_value(),
                Policy::Mru => idle.last_key_value(),
            }
        });
        idle.or_else(|| self.ahead.first_key_value())
            .map(|(_, page)| *page)
    }

    fn evict(&mut self, page: PageId) {
        let size = self.size(page);
        let entry = self.entries.remove(&page).expect("a victim is resident");
        debug_assert_eq!(entry.pins, 0);
        if entry.ahead {
            self.ahead.remove(&entry.since);
            self.evictable_ahead -= size;
        } else {
            self.idle[page.array.ordinal()].remove(&entry.since);
            self.evictable -= size;
        }
        self.used -= size;
    }

    fn size(&self, page: PageId) -> u64 {
        self.rules[page.array.ordinal()].page_size
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}
