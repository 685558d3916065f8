//! Products with matrices against reading the same bytes, and tokens per second of a fixture's
//! model: `cargo bench -p engine`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark reports"
)]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../tests/support/mod.rs"]
#[allow(
    dead_code,
    clippy::print_stderr,
    reason = "a benchmark uses a part of it"
)]
mod support;

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use convert::Options;
use engine::{InMemory, KvPool, Level, Matrix, Model, Request, Sampling, Session, Weights};
use jlm::DType;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng;
use rayon::prelude::*;
use support::Made;

/// Seconds of the fastest of several runs.
fn best(mut run: impl FnMut()) -> f64 {
    let times = (0..9).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::MAX, f64::min)
}

/// Bytes per second of reading `bytes` once, by all threads: what memory gives.
fn reading(bytes: &[u8]) -> f64 {
    let time = best(|| {
        let sum: u64 = bytes
            .par_chunks(1 << 20)
            .map(|part| {
                let (words, _) = part.as_chunks::<8>();
                words
                    .iter()
                    .map(|word| u64::from_le_bytes(*word))
                    .fold(0, u64::wrapping_add)
            })
            .reduce(|| 0, u64::wrapping_add);
        black_box(sum);
    });
    bytes.len() as f64 / time
}

fn products() {
    let (k, rows) = (4096, 8192);
    println!("{rows} x {k}, {} threads", rayon::current_num_threads());
    println!(
        "{:<6} {:<9} {:>7} {:>12} {:>9} {:>14}",
        "type", "set", "MiB", "GB/s", "of read", "8 tokens GFLOP/s"
    );
    for dtype in DType::ALL {
        let lens = dtype.planes(k as u64, rows as u64).unwrap();
        // Byte 0x2c: small finite numbers in every float type.
        let [qs, d, sc] = lens.as_array().map(|length| vec![0x2c_u8; length as usize]);
        let matrix = Matrix::new(dtype, k, rows, &qs, &d, &sc).unwrap();
        let baseline = reading(&qs);
        let x = vec![0.5; 8 * k];
        let mut y = vec![0.0; 8 * rows];
        for level in Level::available() {
            let one = best(|| matrix.product(level, &x[..k], 1, black_box(&mut y[..rows])));
            let eight = best(|| matrix.product(level, &x, 8, black_box(&mut y)));
            let rate = matrix.bytes() as f64 / one;
            println!(
                "{:<6} {:<9} {:>7} {:>12.2} {:>9.2} {:>14.1}",
                dtype.name(),
                level.name(),
                matrix.bytes() >> 20,
                rate / 1e9,
                rate / baseline,
                2.0 * 8.0 * (k * rows) as f64 / eight / 1e9,
            );
        }
    }
}

fn tokens() {
    let Some(fixtures) = support::fixtures() else {
        return;
    };
    for name in ["tiny-qwen3", "tiny-qwen3-moe"] {
        let made = Made::from_folder(&fixtures.join("models").join(name), &Options::default());
        let model = Arc::new(Model::new(&made.container).unwrap());
        let weights: Arc<dyn Weights> =
            Arc::new(InMemory::new(&made.container, made.bytes).unwrap());
        let prompt: Vec<u32> = (0..128).collect();
        let mut first = 0.0;
        let time = best(|| {
            let pool = KvPool::new(model.kv_shape(), 64 << 20);
            let mut session = Session::new(model.clone(), weights.clone(), pool).unwrap();
            let start = Instant::now();
            let request = Request {
                prompt: &prompt,
                max_tokens: 129,
                stop: &[],
                sampling: Sampling::Greedy,
            };
            let mut rng = ChaCha20Rng::seed_from_u64(0);
            let mut seen = 0;
            session
                .generate(&request, &mut rng, &false.into(), |_| {
                    if seen == 0 {
                        first = start.elapsed().as_secs_f64();
                    }
                    seen += 1;
                    ControlFlow::Continue(())
                })
                .unwrap();
        });
        println!(
            "{name}: prefill {:.0} tokens/s, decode {:.0} tokens/s",
            128.0 / first,
            128.0 / (time - first)
        );
    }
}

fn main() {
    products();
    tokens();
}
