//! Gaussian draws and orthogonal matrices (spec: sealed checkpoint, section 2).

use std::f64::consts::TAU;

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_sequence_transpose_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_sequence_transpose_on_the_left_in_place_with_conj as apply_transpose,
};
use faer::linalg::qr::no_pivoting::factor::{
    qr_in_place, qr_in_place_scratch, recommended_block_size,
};
use faer::{Conj, Mat, MatMut, Par, Spec};
use rayon::prelude::*;
use zeroize::Zeroizing;

use crate::error::{DrawError, MAX_LENGTH};
use crate::label::{Label, Path};
use crate::source::{Scoped, Subkey};
use crate::stream::keystream_at;

/// `batch` orthogonal matrices of `n` by `n` float64 entries.
pub struct Orthogonal {
    n: usize,
    entries: Zeroizing<Vec<f64>>,
}

impl Orthogonal {
    /// Rows, and columns, of each matrix.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// How many matrices there are.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.entries.len().checked_div(self.n * self.n).unwrap_or(0)
    }

    /// Matrix `index`, row-major.
    ///
    /// # Panics
    /// If `index` is not below [`Orthogonal::batch`].
    #[must_use]
    pub fn matrix(&self, index: usize) -> &[f64] {
        let size = self.n * self.n;
        &self.entries[index * size..(index + 1) * size]
    }
}

impl std::fmt::Debug for Orthogonal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Orthogonal({} of {n} by {n})", self.batch(), n = self.n)
    }
}

/// `Orthogonal(path, n, batch)`: the Q of the QR decomposition with a positive diagonal of R, of
/// each of `batch` Gaussian matrices. Runs on the current rayon pool.
///
/// Asks its source for `stream_id(component, path)`.
pub fn orthogonal(
    source: &Scoped<'_>,
    path: &Path,
    n: usize,
    batch: usize,
) -> Result<Orthogonal, DrawError> {
    let mut entries = Zeroizing::new(gaussian(source, path, &[batch, n, n])?);
    for matrix in entries.chunks_exact_mut((n * n).max(1)) {
        orthogonalise(matrix, n);
    }
    Ok(Orthogonal { n, entries })
}

/// `Gaussian(path, shape)`: normal samples, row-major. Runs on the current rayon pool.
///
/// Asks its source for `stream_id(component, path)`.
pub fn gaussian(source: &Scoped<'_>, path: &Path, shape: &[usize]) -> Result<Vec<f64>, DrawError> {
    let samples = shape
        .iter()
        .try_fold(1u64, |product, n| product.checked_mul(*n as u64))
        .unwrap_or(u64::MAX);
    if samples > MAX_LENGTH {
        return Err(DrawError::TooLong {
            path: path.to_string(),
            n: samples,
            maximum: MAX_LENGTH,
        });
    }
    let subkey = source.subkey(Label::Stream(path.clone()))?;
    Ok(samples_of(&subkey, samples as usize))
}

/// Box-Muller: pairs of words give a cosine in the first half and a sine in the second.
fn samples_of(subkey: &Subkey, samples: usize) -> Vec<f64> {
    let pairs = samples.div_ceil(2);
    let mut out = vec![0.0; 2 * pairs];
    let (cosines, sines) = out.split_at_mut(pairs);
    let parts = cosines
        .par_chunks_mut(PAIRS)
        .zip(sines.par_chunks_mut(PAIRS));
    parts.enumerate().for_each(|(part, (cosines, sines))| {
        let mut bytes = Zeroizing::new(vec![0; cosines.len() * PAIR_BYTES]);
        keystream_at(subkey, (part * PAIRS * PAIR_BYTES) as u64, &mut bytes);
        let words = bytes.as_chunks::<PAIR_BYTES>().0;
        for ((pair, cosine), sine) in words.iter().zip(cosines).zip(sines) {
            let word = |at: usize| {
                let bytes = pair[at..at + 8].try_into();
                u64::from_le_bytes(bytes.expect("a pair has 16 bytes")) >> 11
            };
            let u1 = (word(0) as f64 + 0.5) * ULP;
            let u2 = word(8) as f64 * ULP;
            let radius = (-2.0 * u1.ln()).sqrt();
            let (sin, cos) = (TAU * u2).sin_cos();
            *cosine = radius * cos;
            *sine = radius * sin;
        }
    });
    out.truncate(samples);
    out
}

/// Replaces a row-major Gaussian matrix by its Q, with the columns' signs fixed.
fn orthogonalise(matrix: &mut [f64], n: usize) {
    if n == 0 {
        return;
    }
    let par = Par::rayon(0);
    let mut factors = MatMut::from_row_major_slice_mut(&mut *matrix, n, n).to_owned();
    let block = recommended_block_size::<f64>(n, n);
    let mut coefficients = Mat::zeros(block, n);
    let scratch = qr_in_place_scratch::<f64>(n, n, block, par, Spec::default());
    qr_in_place(
        factors.as_mut(),
        coefficients.as_mut(),
        par,
        MemStack::new(&mut MemBuffer::new(scratch)),
        Spec::default(),
    );

    // The identity's column-major Q^T is Q row-major, so the input's memory takes the result.
    let mut transposed = MatMut::from_column_major_slice_mut(matrix, n, n);
    transposed.fill(0.0);
    (0..n).for_each(|i| transposed[(i, i)] = 1.0);
    apply_transpose(
        factors.as_ref(),
        coefficients.as_ref(),
        Conj::No,
        transposed.as_mut(),
        par,
        MemStack::new(&mut MemBuffer::new(apply_scratch::<f64>(n, block, n))),
    );
    let negative: Vec<bool> = (0..n).map(|j| factors[(j, j)] < 0.0).collect();
    for row in matrix.chunks_exact_mut(n) {
        for (entry, negative) in row.iter_mut().zip(&negative) {
            if *negative {
                *entry = -*entry;
            }
        }
    }
}

/// 2^-53.
const ULP: f64 = f64::EPSILON / 2.0;
const PAIR_BYTES: usize = 16;
const PAIRS: usize = 4096;
