//! Tokens per second with every page resident: through the pager, against the same pages leased once
//! and held, and against the container in memory without a pager, in one run:
//! `cargo bench -p engine --bench resident`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark reports"
)]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../tests/support/drawn.rs"]
#[allow(dead_code, reason = "a benchmark uses a part of it")]
mod drawn;

use std::sync::Arc;
use std::time::Instant;

use drawn::{Drawn, Sizes};
use engine::{InMemory, KvPool, Model, Page, Paged, Session, SourceError, Weights};
use jlm::Region;
use pager::{PageId, PageLease, Pager, PlainSource, RangeSource};

const MODELS: [(&str, Sizes, usize); 3] = [
    (
        "dense",
        Sizes {
            blocks: 8,
            embd: 1024,
            ffn: 3072,
            experts: 0,
            used: 0,
            vocab: 512,
        },
        4,
    ),
    (
        "mixture, 8 of 128 experts",
        Sizes {
            blocks: 4,
            embd: 512,
            ffn: 256,
            experts: 128,
            used: 8,
            vocab: 256,
        },
        16,
    ),
    (
        "mixture, small pages",
        Sizes {
            blocks: 3,
            embd: 128,
            ffn: 64,
            experts: 128,
            used: 8,
            vocab: 64,
        },
        128,
    ),
];
const ROUNDS: usize = 60;

fn main() {
    for (name, sizes, tokens) in MODELS {
        compare(name, sizes, tokens);
    }
}

fn compare(name: &str, sizes: Sizes, tokens: usize) {
    let drawn = Drawn::new(sizes);
    let container = &drawn.container;
    let model = Arc::new(Model::new(container).unwrap());
    let geometry = Paged::geometry(container).unwrap();
    let source = PlainSource::new(Bytes(drawn.bytes.clone()), geometry);
    let pager = Pager::new(Arc::new(source), geometry, geometry.total()).unwrap();
    let pager = Arc::new(pager);
    let dense = drawn.slice(container.region(Region::Dense)).to_vec();
    let paged = Paged::new(container, pager.clone(), dense.clone());
    let held = Held::new(&pager, sizes, dense);
    let in_memory = InMemory::new(container, drawn.bytes.clone()).unwrap();
    let all: [(&str, Arc<dyn Weights>); 3] = [
        ("a lease for each use", Arc::new(paged)),
        ("leases held", Arc::new(held)),
        ("no pager", Arc::new(in_memory)),
    ];

    let before = pager.stats().total();
    let mut best = [f64::MAX; 3];
    for round in 0..ROUNDS {
        for turn in 0..all.len() {
            // Each takes each place in a round.
            let which = (round + turn) % all.len();
            let time = time(&model, &all[which].1, sizes, tokens);
            best[which] = best[which].min(time);
        }
    }
    let after = pager.stats().total();
    assert_eq!(after.bytes_read, before.bytes_read, "nothing is read again");
    let fed = ROUNDS * (tokens + 1);
    let leases = (after.hits - before.hits) / fed as u64;
    println!(
        "{name}: {:.1} MB of pages, {:.3} MB the largest, {leases} leases a token",
        geometry.total() as f64 / 1e6,
        geometry.largest_page() as f64 / 1e6,
    );
    for ((what, _), time) in all.iter().zip(best) {
        println!(
            "  {what:<22} {:8.1} tokens/s  the pager's is {:.3} of it",
            tokens as f64 / time,
            time / best[0],
        );
    }
}

/// Seconds for tokens one by one.
fn time(model: &Arc<Model>, weights: &Arc<dyn Weights>, sizes: Sizes, tokens: usize) -> f64 {
    let pool = KvPool::new(model.kv_shape(), 256 << 20);
    let mut session = Session::new(model.clone(), weights.clone(), pool).unwrap();
    let never = false.into();
    session.feed(&[0], &never).unwrap();
    let start = Instant::now();
    for step in 1..=tokens {
        let token = (step * 37) as u32 % sizes.vocab;
        session.feed(&[token], &never).unwrap();
    }
    start.elapsed().as_secs_f64()
}

/// Pages leased once.
struct Held {
    dense: Vec<u8>,
    blocks: Vec<PageLease>,
    experts: Vec<PageLease>,
    of_block: u32,
}

impl Held {
    fn new(pager: &Pager, sizes: Sizes, dense: Vec<u8>) -> Self {
        let lease = |page| pager.get(page).unwrap();
        let experts = 0..sizes.blocks * sizes.experts;
        Self {
            dense,
            blocks: (0..sizes.blocks).map(PageId::text).map(lease).collect(),
            experts: experts.map(PageId::expert).map(lease).collect(),
            of_block: sizes.experts,
        }
    }
}

impl Weights for Held {
    fn dense(&self) -> &[u8] {
        &self.dense
    }
    fn block(&self, block: u32) -> Result<Page<'_>, SourceError> {
        Ok(Box::new(&self.blocks[block as usize][..]))
    }
    fn expert(&self, block: u32, expert: u32) -> Result<Page<'_>, SourceError> {
        let page = block * self.of_block + expert;
        Ok(Box::new(&self.experts[page as usize][..]))
    }
}

/// A container's bytes, read as a file would be.
struct Bytes(Vec<u8>);

impl RangeSource for Bytes {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
        Ok(())
    }
}
