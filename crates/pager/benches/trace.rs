//! `cargo bench -p pager --bench trace`: bytes read for a token, by simulation.
//!
//! Replays synthetic traces of a dense model of 70 billion weights and of a mixture of experts of 235
//! billion through the replacement decision at true sizes, and prints hit rates and bytes a token at
//! several budgets, and the budget below which each disk and link is the bound. Then replays the
//! start of each trace through a [`Pager`] over a sparse file, sizes divided by 1024, which must
//! count the same hits. Nothing is timed, so every run prints the same.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints and fails loudly"
)]

use std::sync::Arc;

use direct_io::File;
use jlm::{DType, align};
use pager::{
    Admission, ArrayGeometry, ArrayRules, Geometry, PageArray, PageId, Pager, PagerOptions,
    PlainSource, Policy, Residency,
};

/// Shapes of a model's matrices: elements a row, and rows.
struct Model {
    name: &'static str,
    blocks: u32,
    /// Matrices of a block's text page.
    block: &'static [(u64, u64)],
    /// Matrices of one expert.
    expert: &'static [(u64, u64)],
    experts: u32,
    used: u32,
}

/// Llama 3 70B.
const DENSE: Model = Model {
    name: "70B dense",
    blocks: 80,
    block: &[
        (8192, 8192),
        (8192, 1024),
        (8192, 1024),
        (8192, 8192),
        (8192, 28672),
        (8192, 28672),
        (28672, 8192),
    ],
    expert: &[],
    experts: 0,
    used: 0,
};

/// Qwen3 235B-A22B.
const MIXTURE: Model = Model {
    name: "235B mixture, 8 of 128 experts",
    blocks: 94,
    block: &[
        (4096, 8192),
        (4096, 512),
        (4096, 512),
        (8192, 4096),
        (4096, 128),
    ],
    expert: &[(4096, 1536), (4096, 1536), (1536, 4096)],
    experts: 128,
    used: 8,
};

/// How the router spreads tokens over a block's experts: the weight of the expert at rank r is
/// (r + 1)^-exponent. With 0 none is worth more than another.
const EXPONENTS: [f64; 2] = [0.0, 1.0];

fn main() {
    for dtype in [DType::Bf16, DType::Q8, DType::Q4S] {
        report(&DENSE, dtype, 0.0);
    }
    for dtype in [DType::Bf16, DType::Q8, DType::Q4S] {
        for exponent in EXPONENTS {
            report(&MIXTURE, dtype, exponent);
        }
    }
    for (model, exponent) in [(&DENSE, 0.0), (&MIXTURE, 0.0), (&MIXTURE, 1.0)] {
        replay_through_a_pager(model, exponent);
    }
}

impl Model {
    fn page_sizes(&self, dtype: DType) -> (u64, u64) {
        let page = |shapes: &[(u64, u64)]| {
            let planes = shapes.iter().flat_map(|(k, rows)| {
                let planes = dtype.planes(*k, *rows).unwrap();
                planes.as_array().map(|plane| align(plane).unwrap())
            });
            planes.sum()
        };
        (page(self.block), page(self.expert))
    }

    fn expert_pages(&self) -> u32 {
        self.blocks * self.experts
    }

    /// The pages of one token, in the order in which the engine asks for them.
    fn token(&self, router: &mut Router) -> Vec<PageId> {
        let mut pages = Vec::new();
        for block in 0..self.blocks {
            pages.push(PageId::text(block));
            if self.experts > 0 {
                let chosen = router.choose(block, self.used);
                let first = block * self.experts;
                pages.extend(chosen.iter().map(|expert| PageId::expert(first + expert)));
            }
        }
        pages
    }
}

/// Draws experts: each block has its own ranking of its experts, the same for every token.
struct Router {
    state: u64,
    /// Sums of the ranks' weights.
    sums: Vec<f64>,
    rankings: Vec<Vec<u32>>,
}

impl Router {
    fn new(model: &Model, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (0..model.experts).map(|rank| {
            sum += f64::from(rank + 1).powf(-exponent);
            sum
        });
        let mut router = Self {
            state: 1,
            sums: sums.collect(),
            rankings: Vec::new(),
        };
        for _ in 0..model.blocks {
            let mut ranking: Vec<u32> = (0..model.experts).collect();
            for at in (1..ranking.len()).rev() {
                let other = (router.uniform() * (at + 1) as f64) as usize;
                ranking.swap(at, other);
            }
            router.rankings.push(ranking);
        }
        router
    }

    /// Knuth's multiplier, the upper bits.
    fn uniform(&mut self) -> f64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Experts of one token in one block, ascending, as the engine computes them.
    fn choose(&mut self, block: u32, used: u32) -> Vec<u32> {
        let mut chosen = Vec::new();
        let whole = *self.sums.last().unwrap();
        while chosen.len() < used as usize {
            let at = self.uniform() * whole;
            let rank = self.sums.partition_point(|sum| *sum <= at);
            let expert = self.rankings[block as usize][rank];
            if !chosen.contains(&expert) {
                chosen.push(expert);
            }
        }
        chosen.sort_unstable();
        chosen
    }
}

/// What the tokens after the first ones cost.
#[derive(Clone, Copy)]
struct Cost {
    hit_rate: f64,
    bytes_a_token: f64,
}

fn rules(sizes: (u64, u64)) -> [ArrayRules; 3] {
    PageArray::ALL.map(|array| match array {
        PageArray::Expert => ArrayRules {
            page_size: sizes.1,
            policy: Policy::Lru,
        },
        _ => ArrayRules {
            page_size: sizes.0,
            policy: Policy::Mru,
        },
    })
}

fn size(page: PageId, sizes: (u64, u64)) -> u64 {
    match page.array {
        PageArray::Expert => sizes.1,
        _ => sizes.0,
    }
}

/// Asks for one page and lets it go: true when it was resident.
fn ask(residency: &mut Residency, page: PageId) -> bool {
    let pinned = residency.pin(page);
    let generation = pinned.unwrap_or_else(|| {
        let mut evicted = Vec::new();
        residency
            .admit(page, Admission::Demand, &mut evicted)
            .unwrap()
    });
    residency.unpin(page, generation);
    pinned.is_some()
}

fn simulate(trace: &[Vec<PageId>], experts: u32, sizes: (u64, u64), budget: u64) -> Cost {
    let mut residency = Residency::new(budget, rules(sizes));
    // Every expert was there once, so that the first use of a rare one does not count as a loss.
    for index in 0..experts {
        ask(&mut residency, PageId::expert(index));
    }
    let (mut asked, mut hits, mut bytes) = (0u64, 0u64, 0u64);
    for (token, pages) in trace.iter().enumerate() {
        for page in pages {
            let hit = ask(&mut residency, *page);
            if token >= WARM_UP {
                asked += 1;
                hits += u64::from(hit);
                bytes += if hit { 0 } else { size(*page, sizes) };
            }
        }
    }
    Cost {
        hit_rate: hits as f64 / asked as f64,
        bytes_a_token: bytes as f64 / (trace.len() - WARM_UP) as f64,
    }
}

fn report(model: &Model, dtype: DType, exponent: f64) {
    let sizes = model.page_sizes(dtype);
    let total = sizes.0 * u64::from(model.blocks) + sizes.1 * u64::from(model.expert_pages());
    let mut router = Router::new(model, exponent);
    let trace: Vec<Vec<PageId>> = (0..TOKENS).map(|_| model.token(&mut router)).collect();
    let touched: u64 = trace[0].iter().map(|page| size(*page, sizes)).sum();
    println!(
        "\n{}, {}{}: pages of {:.1} MB{}, {:.1} GB in all, a token uses {:.2} GB",
        model.name,
        dtype.ggml().0,
        match (model.experts, exponent) {
            (0, _) => String::new(),
            (_, 0.0) => ", experts used evenly".to_owned(),
            _ => format!(", experts used by rank^-{exponent}"),
        },
        sizes.0 as f64 / 1e6,
        match model.experts {
            0 => String::new(),
            _ => format!(" and {:.1} MB", sizes.1 as f64 / 1e6),
        },
        total as f64 / 1e9,
        touched as f64 / 1e9,
    );
    println!("   budget GB  of all  hit rate  GB a token  of all used");
    let least = 2 * sizes.0.max(sizes.1);
    let curve: Vec<(u64, Cost)> = (0..=STEPS)
        .map(|step| {
            let budget = (total * step / STEPS).max(least);
            let cost = simulate(&trace, model.expert_pages(), sizes, budget);
            (budget, cost)
        })
        .collect();
    for step in [
        0,
        STEPS / 10,
        STEPS / 4,
        STEPS / 2,
        STEPS * 3 / 4,
        STEPS * 9 / 10,
        STEPS,
    ] {
        let (budget, cost) = curve[step as usize];
        println!(
            "{:12.1} {:6.0}% {:8.1}% {:11.3} {:11.2}",
            budget as f64 / 1e9,
            100.0 * budget as f64 / total as f64,
            100.0 * cost.hit_rate,
            cost.bytes_a_token / 1e9,
            cost.bytes_a_token / touched as f64,
        );
    }
    println!("   below this budget (GB) the source is the bound, for a token rate of");
    print!("   source          ");
    RATES.iter().for_each(|rate| print!("{rate:>7}/s"));
    println!();
    for (name, bytes_a_second) in SOURCES {
        print!("   {name:<16}");
        for rate in RATES {
            let allowed = bytes_a_second / rate;
            let enough = curve.iter().find(|(_, cost)| cost.bytes_a_token <= allowed);
            // The last budget holds everything and reads nothing.
            print!("{:9.0}", enough.unwrap().0 as f64 / 1e9);
        }
        println!();
    }
}

/// The trace through frames and a file that has the sizes and no data.
fn replay_through_a_pager(model: &Model, exponent: f64) {
    let (text, expert) = model.page_sizes(DType::Q4S);
    let scaled = |size: u64| align(size / SCALE).unwrap();
    let sizes = (scaled(text), scaled(expert));
    let text = ArrayGeometry {
        offset: 0,
        pages: model.blocks,
        page_size: sizes.0,
    };
    let expert = ArrayGeometry {
        offset: sizes.0 * u64::from(model.blocks),
        pages: model.expert_pages(),
        page_size: sizes.1,
    };
    let geometry = Geometry::new(text, ArrayGeometry::default(), expert).unwrap();
    let sparse = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    sparse.as_file().set_len(geometry.total()).unwrap();
    let source = PlainSource::new(File::open(sparse.path()).unwrap(), geometry);
    let options = PagerOptions {
        prefetch_threads: 0,
        ..PagerOptions::new(geometry.total() / 2)
    };
    let pager = Pager::with_options(Arc::new(source), geometry, options).unwrap();
    let mut residency = Residency::new(options.budget, rules(sizes));
    let mut router = Router::new(model, exponent);
    let (mut hits, mut misses, mut bytes) = (0, 0, 0);
    for _ in 0..REPLAYED {
        for page in model.token(&mut router) {
            drop(pager.get(page).unwrap());
            if ask(&mut residency, page) {
                hits += 1;
            } else {
                misses += 1;
                bytes += size(page, sizes);
            }
        }
    }
    let counted = pager.stats().total();
    assert_eq!(
        (counted.hits, counted.misses, counted.bytes_read),
        (hits, misses, bytes)
    );
    println!(
        "\n{} through a pager, a sparse file of {:.1} MB: {hits} hits and {misses} misses, as simulated",
        model.name,
        geometry.total() as f64 / 1e6
    );
}

const SOURCES: [(&str, f64); 7] = [
    ("disk 1 GB/s", 1e9),
    ("disk 3.5 GB/s", 3.5e9),
    ("disk 7 GB/s", 7e9),
    ("disk 14 GB/s", 14e9),
    ("link 10 Gbit/s", 1.25e9),
    ("link 25 Gbit/s", 3.125e9),
    ("link 100 Gbit/s", 12.5e9),
];
/// Tokens a second.
const RATES: [f64; 3] = [0.5, 2.0, 10.0];
/// Tokens of a simulated trace, and those that fill the budget first.
const TOKENS: usize = 160;
const WARM_UP: usize = 120;
/// Budgets of a curve.
const STEPS: u64 = 40;
/// Divides sizes in the replay through a pager.
const SCALE: u64 = 1024;
const REPLAYED: usize = 8;
