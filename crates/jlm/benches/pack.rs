//! `cargo bench -p jlm`: packing and unpacking against a copy of as many bytes, as ratios of the best
//! times in one run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench measures time, prints and fails loudly"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use jlm::{DType, PlaneBytes, PlaneBytesMut, Sheet};

/// A matrix of an 8B model's attention, which caches hold in part, and one of a 70B model's
/// feed-forward part, which they do not.
const SHAPES: [(usize, usize); 2] = [(4096, 4096), (8192, 28672)];
const ROUNDS: usize = 15;

fn main() {
    println!("GB/s of source bytes, best of {ROUNDS}; in brackets the ratio to memcpy");
    for (k, rows) in SHAPES {
        println!("{k} x {rows}        memcpy          pack        unpack");
        let packed = DType::ALL.into_iter().filter(|t| t.packed().is_some());
        packed.for_each(|dtype| measure(Sheet { dtype, k, rows }));
    }
}

fn measure(sheet: Sheet) {
    let (k, rows) = (sheet.k as u64, sheet.rows as u64);
    let length = sheet.dtype.source_bytes(k, rows).unwrap() as usize;
    // No byte is 0 or 255, which MXFP4 refuses as an exponent.
    let source: Vec<u8> = (0..length).map(|i| (i * 31 % 241) as u8 + 7).collect();
    let mut planes = sheet
        .dtype
        .planes(k, rows)
        .unwrap()
        .as_array()
        .map(|len| vec![1; len as usize]);
    let (mut copy, mut back) = (vec![1; length], vec![1; length]);
    let mut best = [Duration::MAX; 3];
    for _ in 0..ROUNDS {
        let times = [
            timed(|| black_box(&mut copy).copy_from_slice(black_box(&source))),
            timed(|| {
                let [qs, d, sc] = &mut planes;
                sheet
                    .pack(black_box(&source), PlaneBytesMut { qs, d, sc })
                    .unwrap();
            }),
            timed(|| {
                let [qs, d, sc] = &planes;
                sheet
                    .unpack(black_box(PlaneBytes { qs, d, sc }), &mut back)
                    .unwrap();
            }),
        ];
        best = std::array::from_fn(|i| best[i].min(times[i]));
    }
    assert!(back == source, "unpacking undoes packing");
    let rate = |time: Duration| length as f64 / time.as_secs_f64() / 1e9;
    let ratio = |time: Duration| best[0].as_secs_f64() / time.as_secs_f64();
    println!(
        "{:>6} {:>18.2} {:>7.2} ({:.2}) {:>7.2} ({:.2})",
        sheet.dtype.ggml().0,
        rate(best[0]),
        rate(best[1]),
        ratio(best[1]),
        rate(best[2]),
        ratio(best[2]),
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
