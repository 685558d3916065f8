//! `cargo bench -p pager --bench page_in`: page-in of plain and of sealed pages against raw direct
//! reads, as ratios in one run, and what a lease of a resident page costs.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench measures time, prints and fails loudly"
)]

mod blocks;
#[path = "../../sealed-jlm/tests/model/mod.rs"]
mod model;

use std::hint::black_box;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use direct_io::{AlignedBuf, Arrived, File, ReadAt};
use model_key::SubkeySource;
use pager::{
    ArrayGeometry, ContainerUnsealer, Geometry, KeyRing, PageId, PageSource, Pager, PlainSource,
    RangeSource, SealedSource, SourceError,
};

const PAGE: u64 = 64 << 20;
const ROUNDS: usize = 48;

/// What is timed, and which line it is a part of.
const READS: [(&str, usize); 7] = [
    ("raw O_DIRECT, buffer in use", 0),
    ("raw O_DIRECT, new buffer", 0),
    ("plain page-in, frame in use", 0),
    ("plain page-in, new frame", 1),
    ("sealed page-in, frame in use", 2),
    ("sealed page-in, new frame", 3),
    ("opening in memory, one core", 2),
];

fn main() {
    let key = model::key();
    let plain = blocks::two(PAGE);
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
    let (_, len) = geometry.span(PageId::text(0)).unwrap();
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
    let in_memory = Bytes(sealed.bytes);
    drop(plain);
    let raw = File::open(plain_file.path()).unwrap();
    println!("{} MiB a page, engine {}", len >> 20, raw.engine().name());

    let plain_source = PlainSource::new(File::open(plain_file.path()).unwrap(), geometry);
    let header = Arc::new(header);
    let unsealer = || ContainerUnsealer::new(header.clone(), ring.clone());
    let sealed_source = File::open(sealed_file.path()).unwrap();
    let sealed_source = SealedSource::new(sealed_source, geometry, unsealer());
    let in_memory = SealedSource::new(in_memory, geometry, unsealer());
    // Room for one of the two pages: each read takes the frame of the other.
    let pager_of = |source: Arc<dyn PageSource>| Pager::new(source, geometry, len as u64).unwrap();
    let plain_pager = pager_of(Arc::new(plain_source));
    let sealed_pager = pager_of(Arc::new(sealed_source));
    let mut buffer = AlignedBuf::new(len).unwrap();

    let mut times = [const { Vec::new() }; READS.len()];
    for round in 0..ROUNDS {
        for turn in 0..READS.len() {
            // Each takes each place in a round.
            let which = (round + turn) % READS.len();
            let page = PageId::text((round % 2) as u32);
            let (offset, _) = geometry.span(page).unwrap();
            let pager = if which < 4 {
                &plain_pager
            } else {
                &sealed_pager
            };
            times[which].push(match which {
                0 => timed(|| raw.read_exact_at(offset, &mut buffer).unwrap()),
                1 => {
                    // Unmapped outside the time.
                    let mut new = None;
                    timed(|| {
                        let new = new.insert(AlignedBuf::new(len).unwrap());
                        raw.read_exact_at(offset, new).unwrap();
                    })
                }
                2 | 4 => {
                    let other = PageId::text(1 - page.index);
                    drop(pager.get(other).unwrap());
                    let made = pager.stats().frames_made;
                    let time = page_in(pager, page);
                    assert_eq!(pager.stats().frames_made, made);
                    time
                }
                3 | 5 => {
                    pager.clear();
                    page_in(pager, page)
                }
                _ => timed(|| in_memory.read_page(page, &mut buffer).unwrap()),
            });
        }
    }
    let times = times.map(|mut times| {
        times.sort_unstable();
        [times[0], times[times.len() / 2]]
    });
    println!("{:30} {:>16} {:>16}", "", "best", "median");
    for ((what, against), of_read) in READS.iter().zip(&times) {
        print!("{what:30}");
        for (time, baseline) in of_read.iter().zip(&times[*against]) {
            let rate = len as f64 / time.as_secs_f64() / 1e6;
            let ratio = baseline.as_secs_f64() / time.as_secs_f64();
            print!(" {rate:5.0} MB/s {ratio:4.2} x");
        }
        println!("  of {}", READS[*against].0);
    }

    drop(plain_pager.get(PageId::text(0)).unwrap());
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

/// A sealed container in memory: what is left is copying its pieces and opening them.
struct Bytes(Vec<u8>);

impl RangeSource for Bytes {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        out.copy_from_slice(&self.0[offset as usize..][..out.len()]);
        Ok(())
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        for (index, part) in out.chunks_mut(piece).enumerate() {
            let at = index * piece;
            self.read_range(offset + at as u64, part)?;
            if arrived(at, part).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn page_in(pager: &Pager, page: PageId) -> Duration {
    timed(|| drop(black_box(pager.get(page).unwrap())))
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
