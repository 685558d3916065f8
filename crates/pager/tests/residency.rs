//! The replacement decision alone: hit rates, bounds and order.
#![expect(clippy::unwrap_used, reason = "a test fails loudly")]

use std::collections::{HashMap, HashSet};

use pager::{Admission, ArrayRules, PageArray, PageId, Policy, Residency};
use proptest::prelude::*;

fn rules(block: Policy, expert: Policy) -> [ArrayRules; 3] {
    PageArray::ALL.map(|array| ArrayRules {
        page_size: if array == PageArray::Expert { 1 } else { 4 },
        policy: if array == PageArray::Expert {
            expert
        } else {
            block
        },
    })
}

/// Hits of a trace when each page is released before the next is asked for.
fn hits(trace: &[PageId], budget: u64, policy: Policy) -> usize {
    let mut residency = Residency::new(budget, rules(policy, policy));
    let mut hits = 0;
    for &page in trace {
        let generation = match residency.pin(page) {
            Some(generation) => {
                hits += 1;
                generation
            }
            None => residency
                .admit(page, Admission::Demand, &mut vec![])
                .unwrap(),
        };
        residency.unpin(page, generation);
    }
    hits
}

/// Hits of the best possible choice: drop the page whose next use is farthest away (Belady).
fn best_hits(trace: &[PageId], frames: usize) -> usize {
    let mut resident = HashSet::new();
    let mut hits = 0;
    for (now, page) in trace.iter().enumerate() {
        if resident.contains(page) {
            hits += 1;
            continue;
        }
        if resident.len() == frames {
            let next = |page: &PageId| trace[now..].iter().position(|use_| use_ == page);
            let farthest = *resident
                .iter()
                .max_by_key(|page| next(page).unwrap_or(usize::MAX))
                .unwrap();
            resident.remove(&farthest);
        }
        resident.insert(*page);
    }
    hits
}

#[test]
fn most_recently_used_is_the_optimum_for_a_cyclic_scan_and_least_recently_used_the_worst() {
    let (blocks, rounds) = (24u32, 40);
    let trace: Vec<PageId> = (0..rounds)
        .flat_map(|_| (0..blocks).map(PageId::text))
        .collect();
    for frames in [2usize, 6, 12, 23] {
        let budget = 4 * frames as u64;
        let mru = hits(&trace, budget, Policy::Mru);
        let lru = hits(&trace, budget, Policy::Lru);
        let best = best_hits(&trace, frames);
        assert_eq!(lru, 0, "a circle longer than the budget defeats LRU");
        assert_eq!(mru, best, "{frames} frames");
        let rate = mru as f64 / trace.len() as f64;
        let expected = (frames - 1) as f64 / f64::from(blocks - 1);
        assert!(
            (rate - expected).abs() < 0.03,
            "{frames} frames: {rate} of {expected}"
        );
    }
}

#[test]
fn least_recently_used_keeps_the_experts_that_tokens_like() {
    // Each token uses two experts: one of four liked ones, and one of sixty others.
    let mut state = 1u64;
    let mut next = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % bound
    };
    let trace: Vec<PageId> = (0..4000)
        .flat_map(|_| [next(4), 4 + next(60)])
        .map(|expert| PageId::expert(u32::try_from(expert).unwrap()))
        .collect();
    let lru = hits(&trace, 16, Policy::Lru);
    let mru = hits(&trace, 16, Policy::Mru);
    assert!(lru > trace.len() / 2, "{lru}");
    assert!(lru > mru * 5 / 4, "{lru} against {mru}");
}

#[test]
fn experts_make_room_for_blocks_and_pages_read_ahead_go_last() {
    let mut residency = Residency::new(12, rules(Policy::Mru, Policy::Lru));
    let mut evicted = vec![];
    let admit = |residency: &mut Residency, page, admission, evicted: &mut Vec<PageId>| {
        let generation = residency.admit(page, admission, evicted).unwrap();
        residency.unpin(page, generation);
    };
    admit(
        &mut residency,
        PageId::text(0),
        Admission::Demand,
        &mut evicted,
    );
    admit(
        &mut residency,
        PageId::text(1),
        Admission::Prefetch,
        &mut evicted,
    );
    for expert in 0..4 {
        admit(
            &mut residency,
            PageId::expert(expert),
            Admission::Demand,
            &mut evicted,
        );
    }
    assert_eq!(
        (residency.used(), residency.pinned(), evicted.len()),
        (12, 0, 0)
    );

    admit(
        &mut residency,
        PageId::expert(4),
        Admission::Demand,
        &mut evicted,
    );
    assert_eq!(evicted, [PageId::expert(0)]);
    evicted.clear();
    admit(
        &mut residency,
        PageId::text(2),
        Admission::Demand,
        &mut evicted,
    );
    assert_eq!(evicted, [1, 2, 3, 4].map(PageId::expert));
    evicted.clear();
    admit(
        &mut residency,
        PageId::text(3),
        Admission::Demand,
        &mut evicted,
    );
    assert_eq!(evicted, [PageId::text(2)]);
    evicted.clear();
    admit(
        &mut residency,
        PageId::text(4),
        Admission::Prefetch,
        &mut evicted,
    );
    assert_eq!(evicted, [PageId::text(3)]);
    evicted.clear();
    admit(
        &mut residency,
        PageId::text(5),
        Admission::Prefetch,
        &mut evicted,
    );
    assert_eq!(evicted, [PageId::text(0)]);
    assert!(
        residency
            .admit(PageId::text(6), Admission::Prefetch, &mut evicted)
            .is_err()
    );
    evicted.clear();
    admit(
        &mut residency,
        PageId::text(6),
        Admission::Demand,
        &mut evicted,
    );
    assert_eq!(evicted, [PageId::text(1)]);
}

#[derive(Debug, Clone)]
enum Step {
    Get(u32, bool),
    Release(usize),
    Budget(u64),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u32..12, any::<bool>()).prop_map(|(page, ahead)| Step::Get(page, ahead)),
        8 => (0usize..8).prop_map(Step::Release),
        1 => (4u64..40).prop_map(Step::Budget),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 0..200)
}

proptest! {
    /// Whatever happens, a pinned page stays, sums agree, and the budget is exceeded only by
    /// pages that were pinned when it shrank.
    #[test]
    fn sums_and_pins_hold_through_any_sequence(steps in steps()) {
        let mut residency = Residency::new(16, rules(Policy::Mru, Policy::Lru));
        let mut pins: Vec<(PageId, u64)> = vec![];
        let mut doomed: HashSet<u64> = HashSet::new();
        for step in steps {
            match step {
                Step::Get(index, ahead) => {
                    let page = if index < 6 { PageId::text(index) } else { PageId::expert(index) };
                    let admission = if ahead { Admission::Prefetch } else { Admission::Demand };
                    let before = residency.used();
                    let mut evicted = vec![];
                    if let Some(generation) = residency.pin(page) {
                        pins.push((page, generation));
                    } else if let Ok(generation) = residency.admit(page, admission, &mut evicted) {
                        pins.push((page, generation));
                        prop_assert!(residency.used() <= residency.budget());
                    } else {
                        prop_assert_eq!(residency.used(), before);
                        prop_assert!(evicted.is_empty());
                    }
                    for page in evicted {
                        prop_assert!(!pins.iter().any(|(pinned, generation)| *pinned == page && !doomed.contains(generation)));
                    }
                }
                Step::Release(index) if !pins.is_empty() => {
                    let (page, generation) = pins.swap_remove(index % pins.len());
                    let last = residency.unpin(page, generation);
                    let others = pins.iter().any(|(_, other)| *other == generation);
                    prop_assert_eq!(last, doomed.contains(&generation) && !others);
                    residency.trim();
                }
                Step::Release(_) => {}
                Step::Budget(budget) => {
                    residency.set_budget(budget);
                }
                Step::Clear => {
                    residency.clear();
                    doomed.extend(pins.iter().map(|(_, generation)| *generation));
                }
            }
            let held: HashMap<u64, PageId> = pins.iter().map(|(page, generation)| (*generation, *page)).collect();
            let held: u64 = held.values().map(|page| if page.array == PageArray::Expert { 1 } else { 4 }).sum();
            prop_assert_eq!(residency.pinned(), held);
            prop_assert!(residency.used() <= residency.budget().max(held));
        }
        for (page, generation) in pins {
            residency.unpin(page, generation);
        }
        prop_assert_eq!(residency.pinned(), 0);
        residency.clear();
        prop_assert_eq!(residency.used(), 0);
    }
}
