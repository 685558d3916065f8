//! The arithmetic: products with matrices read in place, and attention.
//!
//! Sums are f32. The instruction set is chosen once, at run time.

mod attention;
mod packed;
mod rows;
mod simd;

use jlm::DType;
use rayon::prelude::*;

use packed::Packed;
use simd::Portable;
#[cfg(target_arch = "x86_64")]
use simd::{Avx2, Avx512};

/// An instruction set that the processor has.
#[derive(Debug, Clone, Copy)]
pub struct Level(Set);

#[derive(Debug, Clone, Copy)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// The widest set of this processor.
    #[must_use]
    pub fn detect() -> Self {
        Self::available()[0]
    }

    /// Every set of this processor, widest first; the last is plain Rust.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            sets.extend(Avx512::detect().map(|proof| Self(Set::Avx512(proof))));
            sets.extend(Avx2::detect().map(|proof| Self(Set::Avx2(proof))));
        }
        sets.push(Self(Set::Portable));
        sets
    }

    /// The set's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
        }
    }
}

/// A matrix of `rows` rows of `k` values, in place: for float types `qs` is the rows one after
/// another, for packed types the three planes of the container format.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a>(Packed<'a>);

impl<'a> Matrix<'a> {
    /// A matrix; `None` when a plane is shorter than the type, `k` and `rows` need, or the type
    /// cannot hold rows of `k`.
    #[must_use]
    pub fn new(
        dtype: DType,
        k: usize,
        rows: usize,
        qs: &'a [u8],
        d: &'a [u8],
        sc: &'a [u8],
    ) -> Option<Self> {
        let lens = dtype.planes(k as u64, rows as u64)?;
        let cut = |plane: &'a [u8], length: u64| plane.get(..usize::try_from(length).ok()?);
        Some(Self(Packed {
            dtype,
            k,
            rows,
            qs: cut(qs, lens.qs)?,
            d: cut(d, lens.d)?,
            sc: cut(sc, lens.sc)?,
        }))
    }

    /// Values of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.0.k
    }

    /// Rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.0.rows
    }

    /// Bytes of the planes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.qs.len() + self.0.d.len() + self.0.sc.len()
    }

    /// Writes the values of row `row` to `out` (`k` values).
    pub fn row(&self, level: Level, row: usize, out: &mut [f32]) {
        assert!(
            row < self.0.rows && out.len() == self.0.k,
            "a row of the matrix"
        );
        run(
            level,
            Task::Row {
                w: self.0,
                row,
                out,
            },
        );
    }

    /// `y[t * rows + r]` = row `r` times token `t`, for `tokens` vectors of `k` in `x`.
    ///
    /// A token's result has the same bits whatever `tokens` is.
    pub fn product(&self, level: Level, x: &[f32], tokens: usize, y: &mut [f32]) {
        let w = self.0;
        assert!(tokens > 0 && x.len() == tokens * w.k, "one vector a token");
        assert!(y.len() == tokens * w.rows, "one result a row and token");
        let part_rows = (PART_WORK / (w.k * tokens).max(1)).next_multiple_of(PART_ROWS);
        if tokens == 1 {
            let parts = y.par_chunks_mut(part_rows).enumerate();
            if part_rows >= w.rows {
                run(
                    level,
                    Task::Product {
                        w,
                        first: 0,
                        x,
                        tokens,
                        out: y,
                    },
                );
            } else {
                parts.for_each(|(i, out)| {
                    run(
                        level,
                        Task::Product {
                            w,
                            first: i * part_rows,
                            x,
                            tokens,
                            out,
                        },
                    );
                });
            }
            return;
        }
        // Row by row first: the parts of different threads must not overlap.
        let mut by_row = vec![0.0; y.len()];
        let parts = by_row.par_chunks_mut(part_rows * tokens).enumerate();
        parts.for_each(|(i, out)| {
            run(
                level,
                Task::Product {
                    w,
                    first: i * part_rows,
                    x,
                    tokens,
                    out,
                },
            );
        });
        for (t, y) in y.chunks_exact_mut(w.rows).enumerate() {
            for (r, y) in y.iter_mut().enumerate() {
                *y = by_row[r * tokens + t];
            }
        }
    }
}

/// `scores[i] = scale * (query . keys[i])` over `keys` of `[query.len(), scores.len()]`.
pub(crate) fn scores(level: Level, query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    run(
        level,
        Task::Scores {
            query,
            keys,
            scale,
            scores,
        },
    );
}

/// `out += sum of weights[i] * values[i]` over `values` of `[out.len(), weights.len()]`.
pub(crate) fn mix(level: Level, weights: &[f32], values: &[f32], out: &mut [f32]) {
    run(
        level,
        Task::Mix {
            weights,
            values,
            out,
        },
    );
}

/// One call of a kernel.
enum Task<'a> {
    Row {
        w: Packed<'a>,
        row: usize,
        out: &'a mut [f32],
    },
    Product {
        w: Packed<'a>,
        first: usize,
        x: &'a [f32],
        tokens: usize,
        out: &'a mut [f32],
    },
    Scores {
        query: &'a [f32],
        keys: &'a [f32],
        scale: f32,
        scores: &'a mut [f32],
    },
    Mix {
        weights: &'a [f32],
        values: &'a [f32],
        out: &'a mut [f32],
    },
}

impl Task<'_> {
    #[inline(always)]
    fn run<S: simd::Simd>(self, s: S) {
        match self {
            Task::Row { w, row, out } => {
                let bytes = |width| &w.qs[row * w.k * width..][..w.k * width];
                match w.dtype {
                    DType::F32 => rows::expand::<S, rows::F32>(s, bytes(4), out),
                    DType::F16 => rows::expand::<S, rows::F16>(s, bytes(2), out),
                    DType::Bf16 => rows::expand::<S, rows::Bf16>(s, bytes(2), out),
                    _ => packed::expand(s, w, row, out),
                }
            }
            Task::Product {
                w,
                first,
                x,
                tokens,
                out,
            } => match w.dtype {
                DType::F32 => rows::product::<S, rows::F32>(s, w.qs, w.k, first, x, tokens, out),
                DType::F16 => rows::product::<S, rows::F16>(s, w.qs, w.k, first, x, tokens, out),
                DType::Bf16 => rows::product::<S, rows::Bf16>(s, w.qs, w.k, first, x, tokens, out),
                _ => packed::product(s, w, first, x, tokens, out),
            },
            Task::Scores {
                query,
                keys,
                scale,
                scores,
            } => {
                attention::scores(s, query, keys, scale, scores);
            }
            Task::Mix {
                weights,
                values,
                out,
            } => attention::mix(s, weights, values, out),
        }
    }
}

fn run(level: Level, task: Task<'_>) {
    match level.0 {
        Set::Portable => task.run(Portable),
        // SAFETY: the proof says that the processor has every feature of `run_avx2`.
        #[cfg(target_arch = "x86_64")]
        Set::Avx2(proof) => unsafe { run_avx2(proof, task) },
        // SAFETY: the proof says that the processor has AVX-512F.
        #[cfg(target_arch = "x86_64")]
        Set::Avx512(proof) => unsafe { run_avx512(proof, task) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn run_avx2(proof: Avx2, task: Task<'_>) {
    task.run(proof);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn run_avx512(proof: Avx512, task: Task<'_>) {
    task.run(proof);
}

/// Multiplications that are worth a task of their own.
const PART_WORK: usize = 1 << 17;
/// Rows of a part are a multiple of this: whole vectors of rows for packed types.
const PART_ROWS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator of repeatable bytes.
    fn noise(seed: u64) -> impl FnMut() -> u32 {
        let mut state = seed;
        move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        }
    }

    /// Planes of random codes with small finite scales.
    fn planes(dtype: DType, k: usize, rows: usize) -> [Vec<u8>; 3] {
        let lens = dtype.planes(k as u64, rows as u64).unwrap();
        let mut next = noise(u64::from(dtype.code()) << 32 | (k * rows) as u64);
        let float = |next: &mut dyn FnMut() -> u32| next() as f32 / (1u64 << 31) as f32 - 0.5;
        let qs = match dtype {
            DType::F32 => (0..k * rows)
                .flat_map(|_| float(&mut next).to_le_bytes())
                .collect(),
            DType::F16 => (0..k * rows)
                .flat_map(|_| half::f16::from_f32(float(&mut next)).to_le_bytes())
                .collect(),
            DType::Bf16 => (0..k * rows)
                .flat_map(|_| half::bf16::from_f32(float(&mut next)).to_le_bytes())
                .collect(),
            _ => (0..lens.qs).map(|_| next() as u8).collect(),
        };
        let d = if dtype == DType::Mx4 {
            (0..lens.d).map(|_| 120 + (next() % 8) as u8).collect()
        } else {
            (0..lens.d / 2)
                .flat_map(|_| half::f16::from_f32(float(&mut next) / 64.0).to_le_bytes())
                .collect()
        };
        let sc = (0..lens.sc).map(|_| next() as u8).collect();
        [qs, d, sc]
    }

    #[test]
    fn products_are_the_rows_values_times_the_vectors_at_every_level() {
        for dtype in DType::ALL {
            // Rows that fill no vector, and enough of them for several.
            for (k, rows) in [(256, 1), (512, 37), (768, 16)] {
                let [qs, d, sc] = planes(dtype, k, rows);
                let matrix = Matrix::new(dtype, k, rows, &qs, &d, &sc).unwrap();
                let tokens = 11;
                let mut next = noise(7);
                let x: Vec<f32> = (0..k * tokens)
                    .map(|_| next() as f32 / (1u64 << 31) as f32 - 0.5)
                    .collect();
                for level in Level::available() {
                    let mut y = vec![0.0; rows * tokens];
                    matrix.product(level, &x, tokens, &mut y);
                    let mut row = vec![0.0; k];
                    for r in 0..rows {
                        matrix.row(level, r, &mut row);
                        for t in 0..tokens {
                            let terms = row.iter().zip(&x[t * k..]);
                            let exact: f64 = terms
                                .clone()
                                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                                .sum();
                            let size: f64 = terms
                                .map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs())
                                .sum();
                            let error = (f64::from(y[t * rows + r]) - exact).abs();
                            assert!(
                                error <= 4e-6 * size.max(1e-3),
                                "{dtype:?} {k}x{rows} {} row {r} token {t}: {error}",
                                level.name()
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_tokens_result_does_not_depend_on_its_batch() {
        for dtype in DType::ALL {
            let (k, rows, tokens) = (256, 50, 13);
            let [qs, d, sc] = planes(dtype, k, rows);
            let matrix = Matrix::new(dtype, k, rows, &qs, &d, &sc).unwrap();
            let mut next = noise(3);
            let x: Vec<f32> = (0..k * tokens).map(|_| next() as f32 / 1e9).collect();
            for level in Level::available() {
                let mut together = vec![0.0; rows * tokens];
                matrix.product(level, &x, tokens, &mut together);
                for t in 0..tokens {
                    let mut alone = vec![0.0; rows];
                    matrix.product(level, &x[t * k..][..k], 1, &mut alone);
                    assert_eq!(
                        alone,
                        together[t * rows..][..rows],
                        "{dtype:?} {}",
                        level.name()
                    );
                }
            }
        }
    }

    #[test]
    fn float_rows_of_any_length_are_whole() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for k in 1..40 {
                let [qs, d, sc] = planes(dtype, k, 5);
                let matrix = Matrix::new(dtype, k, 5, &qs, &d, &sc).unwrap();
                let ones = vec![1.0; k];
                for level in Level::available() {
                    let mut y = vec![0.0; 5];
                    matrix.product(level, &ones, 1, &mut y);
                    for (r, y) in y.iter().enumerate() {
                        let mut row = vec![0.0; k];
                        matrix.row(level, r, &mut row);
                        let sum: f32 = row.iter().sum();
                        assert!((sum - y).abs() < 1e-5, "{dtype:?} {k}");
                    }
                }
            }
        }
    }

    #[test]
    fn short_planes_make_no_matrix() {
        assert!(Matrix::new(DType::F32, 4, 2, &[0; 31], &[], &[]).is_none());
        assert!(Matrix::new(DType::Q8, 33, 1, &[0; 99], &[0; 99], &[]).is_none());
        assert!(Matrix::new(DType::Q8, 32, 2, &[0; 64], &[0; 3], &[]).is_none());
    }
}
