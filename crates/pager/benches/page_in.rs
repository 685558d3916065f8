//! `cargo bench -p pager`: page-in of plain and of sealed pages against raw direct reads, as ratios in
//! one run, and what a lease of a resident page costs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench measures time, prints and fails loudly"
)]

#[path = "../../sealed-jlm/tests/model/mod.rs"]
mod model;

use std::hint::black_box;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use direct_io::{AlignedBuf, File, ReadAt};
use model_key::SubkeySource;
use pager::{
    ArrayGeometry, ContainerUnsealer, Geometry, KeyRing, PageId, PageSource, Pager, PlainSource,
    SealedSource,
};

const PAGE: u64 = 64 << 20;
const ROUNDS: usize = 9;

fn main() {
    let key = model::key();
    let plain = model::large(PAGE);
    let sealed = model::seal_with(&plain, 256 << 10, &key);
    let header = sealed.header().unwrap();
    let h = header.container().header();
    let text = ArrayGeometry {
        offset: h.data_off,
        pages: h.n_blocks,
        page_size: h.page_size,
    };
    let none = ArrayGeometry::default();
    let geometry = Geometry::new(text, none, none).unwrap();
    let (offset, len) = geometry.span(PageId::text(0)).unwrap();
    let ring = Arc::new(KeyRing::new());
    for unit in header.container().units() {
        ring.insert(unit, key.subkey(&header.subkey_id(unit)).unwrap());
    }
    let on_disk = |bytes: &[u8]| {
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        file.write_all(bytes).unwrap();
        file.as_file().sync_all().unwrap();
        file
    };
    let (plain_file, sealed_file) = (on_disk(&plain), on_disk(&sealed.bytes));
    let raw = File::open(plain_file.path()).unwrap();
    println!("{} MiB a page, engine {}", len >> 20, raw.engine().name());

    let plain_source = PlainSource::new(File::open(plain_file.path()).unwrap(), geometry);
    let unsealer = ContainerUnsealer::new(Arc::new(header), ring);
    let sealed_source =
        SealedSource::new(File::open(sealed_file.path()).unwrap(), geometry, unsealer);
    let pager_of = |source: Arc<dyn PageSource>| Pager::new(source, geometry, len as u64).unwrap();
    let plain_pager = pager_of(Arc::new(plain_source));
    let sealed_pager = pager_of(Arc::new(sealed_source));
    let mut buffer = AlignedBuf::new(len).unwrap();

    let mut times = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        times[0].push(timed(|| raw.read_exact_at(offset, &mut buffer).unwrap()));
        for (pager, times) in [&plain_pager, &sealed_pager]
            .into_iter()
            .zip(&mut times[1..])
        {
            // A frame is made anew after a clear, so its pages are touched outside the time.
            times.push(page_in(pager));
        }
    }
    let [raw, plain, sealed] = times.map(median);
    let rate = |time: Duration| len as f64 / time.as_secs_f64() / 1e6;
    println!("raw O_DIRECT     {:8.0} MB/s", rate(raw));
    println!(
        "plain page-in    {:8.0} MB/s  {:.2} of raw",
        rate(plain),
        ratio(raw, plain)
    );
    println!(
        "sealed page-in   {:8.0} MB/s  {:.2} of plain",
        rate(sealed),
        ratio(plain, sealed)
    );

    let resident = plain_pager.get(PageId::text(0)).unwrap();
    drop(resident);
    let leases = 200_000;
    let time = timed(|| {
        for _ in 0..leases {
            black_box(plain_pager.get(PageId::text(0)).unwrap()[0]);
        }
    });
    println!(
        "lease of a resident page  {:.0} ns",
        time.as_nanos() as f64 / f64::from(leases)
    );
}

/// The time of reading the page once more into a new frame.
fn page_in(pager: &Pager) -> Duration {
    pager.clear();
    timed(|| drop(black_box(pager.get(PageId::text(0)).unwrap())))
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn ratio(baseline: Duration, other: Duration) -> f64 {
    baseline.as_secs_f64() / other.as_secs_f64()
}
