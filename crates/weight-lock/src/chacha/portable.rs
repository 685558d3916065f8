use zeroize::Zeroize;

use super::{BATCH, Batch, NarrowBatch};

/// Fills `out` with batch number `batch` of the key stream; with `SCALED` every word `w` becomes
/// `(w * span) >> 32`.
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    for group in 0..BATCH / (16 * LANES) {
        let first = batch.wrapping_mul(16) + (group * LANES) as u32;
        let blocks = blocks(state, first);
        let out = &mut out.0[group * LANES * 16..][..LANES * 16];
        for (position, lanes) in blocks.iter().enumerate() {
            for (lane, word) in lanes.iter().enumerate() {
                out[lane * 16 + position] = if SCALED {
                    ((u64::from(*word) * u64::from(span)) >> 32) as u32
                } else {
                    *word
                };
            }
        }
    }
}

/// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span of at most
/// 2^16.
pub(crate) fn fill_narrow(state: &[u32; 16], batch: u32, span: u32, out: &mut NarrowBatch) {
    let mut wide = Batch([0; BATCH]);
    fill::<true>(state, batch, span, &mut wide);
    for (narrow, wide) in out.0.iter_mut().zip(&wide.0) {
        *narrow = *wide as u16;
    }
    wide.zeroize();
}

/// `LANES` blocks side by side, which compilers turn into vector code where there is any.
fn blocks(state: &[u32; 16], first: u32) -> [[u32; LANES]; 16] {
    let mut start = state.map(|word| [word; LANES]);
    for (lane, counter) in start[12].iter_mut().enumerate() {
        *counter = first.wrapping_add(lane as u32);
    }
    let mut x = start;
    for _ in 0..10 {
        for [a, b, c, d] in COLUMNS_AND_DIAGONALS {
            quarter_round(&mut x, a, b, c, d);
        }
    }
    for (word, start) in x.iter_mut().zip(&start) {
        for (word, start) in word.iter_mut().zip(start) {
            *word = word.wrapping_add(*start);
        }
    }
    x
}

fn quarter_round(x: &mut [[u32; LANES]; 16], a: usize, b: usize, c: usize, d: usize) {
    step(x, a, b, d, 16);
    step(x, c, d, b, 12);
    step(x, a, b, d, 8);
    step(x, c, d, b, 7);
}

fn step(x: &mut [[u32; LANES]; 16], to: usize, from: usize, mix: usize, turn: u32) {
    let added = x[from];
    for (word, added) in x[to].iter_mut().zip(added) {
        *word = word.wrapping_add(added);
    }
    let sum = x[to];
    for (word, sum) in x[mix].iter_mut().zip(sum) {
        *word = (*word ^ sum).rotate_left(turn);
    }
}

const LANES: usize = 4;
const COLUMNS_AND_DIAGONALS: [[usize; 4]; 8] = [
    [0, 4, 8, 12],
    [1, 5, 9, 13],
    [2, 6, 10, 14],
    [3, 7, 11, 15],
    [0, 5, 10, 15],
    [1, 6, 11, 12],
    [2, 7, 8, 13],
    [3, 4, 9, 14],
];
