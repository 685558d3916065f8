//! The pager against sources that count, fail, block and panic.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use pager::{
    ArrayGeometry, Geometry, PageArray, PageError, PageId, PageSource, Pager, PagerError,
    PagerOptions, PlainSource, RangeSource, SourceError,
};

const TEXT: u64 = 8192;
const EXPERT: u64 = 4096;

fn geometry(blocks: u32, experts: u32) -> Geometry {
    let text = ArrayGeometry {
        offset: 0,
        pages: blocks,
        page_size: TEXT,
    };
    let expert = ArrayGeometry {
        offset: TEXT * u64::from(blocks),
        pages: experts,
        page_size: EXPERT,
    };
    Geometry::new(text, ArrayGeometry::default(), expert).unwrap()
}

fn byte(page: PageId) -> u8 {
    (page.index as u8) ^ (page.array.ordinal() as u8) << 6
}

/// Fills pages with their number; counts reads; can be made to fail and to wait at a gate.
#[derive(Default)]
struct Fake {
    reads: AtomicU64,
    failing: Mutex<Vec<PageId>>,
    gate: Mutex<bool>,
    /// The page that waits at the gate; every page when there is none.
    gated: Mutex<Option<PageId>>,
    opened: Condvar,
}

impl Fake {
    fn close_gate(&self) {
        *self.gate.lock().unwrap() = true;
    }

    fn open_gate(&self) {
        *self.gate.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

impl PageSource for Fake {
    fn read_page(&self, page: PageId, out: &mut [u8]) -> Result<(), PageError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        out.fill(0xbd);
        if self.gated.lock().unwrap().is_none_or(|gated| gated == page) {
            let gate = self.gate.lock().unwrap();
            drop(self.opened.wait_while(gate, |closed| *closed).unwrap());
        }
        if self.failing.lock().unwrap().contains(&page) {
            return Err(PageError::read(page, "a bad sector"));
        }
        assert_ne!(
            page.index, 99,
            "the source is asked for a page that makes it panic"
        );
        out.fill(byte(page));
        Ok(())
    }
}

fn pager(budget: u64) -> (Arc<Fake>, Pager) {
    let source = Arc::new(Fake::default());
    let mut options = PagerOptions::new(budget);
    options.prefetch_threads = 2;
    let pager = Pager::with_options(Arc::clone(&source) as _, geometry(100, 8), options).unwrap();
    (source, pager)
}

fn eventually(what: impl Fn() -> bool) {
    for _ in 0..2000 {
        if what() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("did not happen within two seconds");
}

#[test]
fn pages_have_their_bytes_under_any_budget_of_a_page_or_more() {
    for budget in [TEXT, 2 * TEXT, 3 * TEXT + EXPERT, 1 << 30] {
        let (_, pager) = pager(budget);
        for round in 0..3 {
            for block in 0..10 {
                let lease = pager.get(PageId::text(block)).unwrap();
                assert_eq!(lease.len() as u64, TEXT, "round {round}");
                assert!(lease.iter().all(|&b| b == byte(PageId::text(block))));
                assert_eq!(lease.as_ptr() as usize % 4096, 0);
                drop(lease);
                let expert = pager.get(PageId::expert(block % 8)).unwrap();
                assert!(expert.iter().all(|&b| b == byte(PageId::expert(block % 8))));
            }
        }
        assert!(pager.stats().resident <= budget);
    }
}

#[test]
fn a_budget_of_less_than_a_page_is_refused_by_name() {
    let (_, pager) = pager(TEXT);
    let error = pager.set_budget(TEXT - 1).unwrap_err();
    assert!(matches!(
        error,
        PagerError::BudgetTooSmall {
            budget: 8191,
            page: 8192
        }
    ));
    assert_eq!(
        error.to_string(),
        "a budget of 8191 bytes holds no page: the largest has 8192 bytes"
    );
    let source = Arc::new(Fake::default());
    assert!(Pager::new(source, geometry(1, 0), 0).is_err());
    // A container without pages needs none.
    assert!(Pager::new(Arc::new(Fake::default()), geometry(0, 0), 0).is_ok());
}

#[test]
fn frames_are_reused_and_the_scan_keeps_its_first_pages() {
    let (source, pager) = pager(4 * TEXT);
    for _ in 0..5 {
        for block in 0..10 {
            pager.get(PageId::text(block)).unwrap();
        }
    }
    let stats = pager.stats();
    assert_eq!(stats.frames_made, 4);
    let text = stats.array(PageArray::Text);
    assert_eq!(text.misses, source.reads());
    assert_eq!(text.bytes_read, source.reads() * TEXT);
    assert_eq!(text.hits + text.misses, 50);
    // Three of ten pages stay resident from the second round on.
    assert!(text.hits >= 12, "{text:?}");
}

#[test]
fn concurrent_requests_for_a_page_read_it_once() {
    let (source, pager) = pager(4 * TEXT);
    source.close_gate();
    let start = Barrier::new(9);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                let lease = pager.get(PageId::text(3)).unwrap();
                assert!(lease.iter().all(|&b| b == byte(PageId::text(3))));
            });
        }
        start.wait();
        eventually(|| pager.stats().array(PageArray::Text).waits == 7);
        source.open_gate();
    });
    assert_eq!(source.reads(), 1);
    let stats = pager.stats();
    assert_eq!((stats.array(PageArray::Text).misses, stats.leases), (1, 0));
}

#[test]
fn everyone_who_waited_gets_the_failure_and_the_next_request_reads_again() {
    let (source, pager) = pager(2 * TEXT);
    source.close_gate();
    source.failing.lock().unwrap().push(PageId::text(1));
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| pager.get(PageId::text(1))))
            .collect();
        eventually(|| pager.stats().array(PageArray::Text).waits == 2);
        source.open_gate();
        for result in waiting {
            let error = result.join().unwrap().unwrap_err();
            assert_eq!(error.to_string(), "text page 1: could not be read");
            assert_eq!(
                std::error::Error::source(&error).unwrap().to_string(),
                "a bad sector"
            );
        }
    });
    assert_eq!(source.reads(), 1);
    source.failing.lock().unwrap().clear();
    assert_eq!(
        pager.get(PageId::text(1)).unwrap()[0],
        byte(PageId::text(1))
    );
    assert_eq!(pager.stats().array(PageArray::Text).failures, 1);
}

#[test]
fn a_source_that_panics_leaves_no_page_behind() {
    let (_, pager) = pager(2 * TEXT);
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pager.get(PageId::text(99))));
    assert!(panicked.is_err());
    let stats = pager.stats();
    assert_eq!(
        (stats.resident, stats.array(PageArray::Text).failures),
        (0, 1)
    );
    pager.get(PageId::text(0)).unwrap();
}

#[test]
fn leases_that_hold_the_whole_budget_refuse_the_next_page() {
    let (_, pager) = pager(2 * TEXT);
    let first = pager.get(PageId::text(0)).unwrap();
    let again = pager.get(PageId::text(0)).unwrap();
    let _second = pager.get(PageId::text(1)).unwrap();
    let error = pager.get(PageId::text(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "text page 2: no room, leases hold 16384 of the budget of 16384 bytes"
    );
    drop(first);
    assert!(pager.get(PageId::text(2)).is_err());
    drop(again);
    pager.get(PageId::text(2)).unwrap();
}

#[test]
fn pages_that_do_not_exist_are_refused() {
    let (source, pager) = pager(2 * TEXT);
    for page in [PageId::text(100), PageId::vision(0), PageId::expert(8)] {
        let error = pager.get(page).unwrap_err();
        assert!(matches!(error, PageError::NoSuchPage { .. }), "{error}");
        pager.prefetch(page);
    }
    assert_eq!(source.reads(), 0);
}

#[test]
fn the_next_block_is_read_ahead_within_two_pages() {
    let (source, pager) = pager(2 * TEXT);
    for _ in 0..3 {
        for block in 0..6 {
            let lease = pager.get(PageId::text(block)).unwrap();
            pager.prefetch(PageId::text((block + 1) % 6));
            assert!(lease.iter().all(|&b| b == byte(PageId::text(block))));
            eventually(|| pager.is_resident(PageId::text((block + 1) % 6)));
        }
    }
    let stats = pager.stats();
    assert_eq!(stats.frames_made, 2);
    let text = stats.array(PageArray::Text);
    assert_eq!(
        (text.misses, text.hits),
        (1, 17),
        "only the first block was waited for"
    );
    assert_eq!(text.read_ahead + 1, source.reads());
}

#[test]
fn a_page_being_read_ahead_is_waited_for_when_it_holds_the_only_room() {
    let (source, pager) = pager(TEXT);
    source.close_gate();
    pager.prefetch(PageId::text(1));
    eventually(|| source.reads() == 1);
    thread::scope(|scope| {
        let demand = scope.spawn(|| pager.get(PageId::text(2)).map(|lease| lease[0]));
        thread::sleep(Duration::from_millis(20));
        source.open_gate();
        assert_eq!(demand.join().unwrap().unwrap(), byte(PageId::text(2)));
    });
}

#[test]
fn a_request_to_read_ahead_that_is_overtaken_reads_nothing() {
    let source = Arc::new(Fake::default());
    let pager = Pager::new(Arc::clone(&source) as _, geometry(100, 0), 2 * TEXT).unwrap();
    *source.gated.lock().unwrap() = Some(PageId::text(1));
    source.close_gate();
    pager.prefetch(PageId::text(1));
    eventually(|| source.reads() == 1);
    // Queued behind the first, asked for meanwhile, and dropped again for another page.
    pager.prefetch(PageId::text(2));
    pager.get(PageId::text(2)).unwrap();
    pager.get(PageId::text(3)).unwrap();
    assert!(!pager.is_resident(PageId::text(2)));
    source.open_gate();
    pager.prefetch(PageId::text(4));
    eventually(|| pager.is_resident(PageId::text(4)));
    assert_eq!(source.reads(), 4, "pages 1 to 4, each once");
    assert_eq!(pager.stats().array(PageArray::Text).read_ahead, 2);
    // It can be read ahead again later.
    eventually(|| {
        pager.get(PageId::text(4)).unwrap();
        pager.prefetch(PageId::text(2));
        pager.is_resident(PageId::text(2))
    });
}

#[test]
fn shrinking_drops_pages_and_widening_keeps_more() {
    let (_, pager) = pager(8 * TEXT);
    for block in 0..8 {
        pager.get(PageId::text(block)).unwrap();
    }
    let held: Vec<_> = (0..3)
        .map(|block| pager.get(PageId::text(block)).unwrap())
        .collect();
    pager.set_budget(2 * TEXT).unwrap();
    assert_eq!(pager.stats().resident, 3 * TEXT);
    drop(held);
    assert_eq!(pager.stats().resident, 2 * TEXT);
    pager.set_budget(16 * TEXT).unwrap();
    for block in 0..16 {
        pager.get(PageId::text(block)).unwrap();
    }
    assert_eq!(pager.stats().resident, 16 * TEXT);
}

#[test]
fn a_cleared_pager_reads_again_and_a_revoked_one_refuses() {
    let (source, pager) = pager(4 * TEXT);
    let lease = pager.get(PageId::text(0)).unwrap();
    pager.get(PageId::text(1)).unwrap();
    assert_eq!(pager.clear(), 1);
    assert_eq!(pager.stats().resident, TEXT);
    assert_eq!(lease[0], byte(PageId::text(0)), "a lease keeps its page");
    pager.get(PageId::text(1)).unwrap();
    assert_eq!(source.reads(), 3);

    assert_eq!(pager.revoke(), 1);
    assert!(matches!(
        pager.get(PageId::text(1)),
        Err(PageError::Revoked)
    ));
    assert!(!pager.wait_released(Duration::from_millis(5)));
    drop(lease);
    assert!(pager.wait_released(Duration::from_secs(1)));
    assert_eq!(pager.stats().resident, 0);
}

#[test]
fn a_page_that_was_being_read_when_the_pager_was_revoked_is_thrown_away() {
    let (source, pager) = pager(4 * TEXT);
    source.close_gate();
    thread::scope(|scope| {
        let reader = scope.spawn(|| pager.get(PageId::text(0)).map(|_| ()));
        eventually(|| source.reads() == 1);
        assert_eq!(pager.revoke(), 0);
        assert!(!pager.wait_released(Duration::from_millis(5)));
        source.open_gate();
        assert!(matches!(reader.join().unwrap(), Err(PageError::Revoked)));
    });
    assert!(pager.wait_released(Duration::from_secs(1)));
    assert_eq!(pager.stats().resident, 0);
}

#[test]
fn many_threads_with_a_small_budget_all_get_the_right_bytes() {
    let (_, pager) = pager(6 * TEXT);
    thread::scope(|scope| {
        for worker in 0..4u32 {
            let pager = &pager;
            scope.spawn(move || {
                for step in 0..400u32 {
                    let page = match (step * 7 + worker * 13) % 11 {
                        n @ 0..8 => PageId::text(n),
                        n => PageId::expert(n - 8 + worker),
                    };
                    pager.prefetch(PageId::text((step + worker) % 9));
                    match pager.get(page) {
                        Ok(lease) => assert!(lease.iter().all(|&b| b == byte(page))),
                        Err(PageError::AllLeased { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    if step % 97 == 0 {
                        pager.clear();
                    }
                }
            });
        }
    });
    assert!(pager.wait_released(Duration::from_secs(2)));
    assert_eq!(pager.stats().leases, 0);
}

/// Writes a pattern that no constant of this program holds.
struct Marked;

const MARK: u8 = 0x5d;

fn mark(position: usize) -> u8 {
    (position as u8).wrapping_mul(41).rotate_left(3) ^ MARK
}

impl PageSource for Marked {
    fn read_page(&self, _: PageId, out: &mut [u8]) -> Result<(), PageError> {
        for (position, out) in out.iter_mut().enumerate() {
            *out = mark(position);
        }
        Ok(())
    }
}

/// Mappings of this process in which a page that starts with the pattern lies.
fn marked_mappings() -> Option<usize> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let mut memory = fs::File::open("/proc/self/mem").ok()?;
    let mut found = 0;
    let mut page = vec![0; 4096];
    for line in maps.lines().filter(|line| line.contains(" rw-p ")) {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let (start, end) = (
            u64::from_str_radix(start, 16).ok()?,
            u64::from_str_radix(end, 16).ok()?,
        );
        for address in (start..end).step_by(4096) {
            memory.seek(SeekFrom::Start(address)).ok()?;
            if memory.read_exact(&mut page).is_err() {
                break;
            }
            found += usize::from(page.iter().enumerate().all(|(at, &byte)| byte == mark(at)));
        }
        page.fill(0);
    }
    Some(found)
}

#[test]
fn pages_that_are_dropped_are_zeroed() {
    let pager = Pager::new(Arc::new(Marked), geometry(8, 0), 4 * TEXT).unwrap();
    for block in 0..8 {
        pager.get(PageId::text(block)).unwrap();
    }
    let Some(before) = marked_mappings() else {
        eprintln!("/proc/self/mem cannot be read here");
        return;
    };
    assert!(
        before >= 4,
        "the scan finds pages while they are there: {before}"
    );
    // One page is left, two of the scan's steps long.
    pager.set_budget(TEXT).unwrap();
    assert_eq!(marked_mappings(), Some(2));
    let lease = pager.get(PageId::text(3)).unwrap();
    pager.clear();
    assert_eq!(marked_mappings(), Some(2), "the lease's");
    drop(lease);
    assert_eq!(marked_mappings(), Some(0));
    pager.get(PageId::text(3)).unwrap();
    pager.revoke();
    assert_eq!(marked_mappings(), Some(0));
}

struct Memory(Vec<u8>);

impl RangeSource for Memory {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        let start = usize::try_from(offset)?;
        out.copy_from_slice(self.0.get(start..start + out.len()).ok_or("too short")?);
        Ok(())
    }
}

#[test]
fn plain_pages_come_from_their_span_and_a_short_container_is_an_error() {
    let geometry = geometry(3, 2);
    let bytes: Vec<u8> = (0..geometry.total()).map(|i| (i / 4096) as u8).collect();
    let whole = PlainSource::new(Memory(bytes.clone()), geometry);
    let pager = Pager::new(Arc::new(whole), geometry, 1 << 20).unwrap();
    assert_eq!(pager.get(PageId::text(1)).unwrap()[4096], 3);
    assert_eq!(pager.get(PageId::expert(1)).unwrap()[0], 7);
    let cut = PlainSource::new(Memory(bytes[..5 * 4096].to_vec()), geometry);
    let pager = Pager::new(Arc::new(cut), geometry, 1 << 20).unwrap();
    let error = pager.get(PageId::text(2)).unwrap_err();
    assert_eq!(error.to_string(), "text page 2: could not be read");
}
