//! Eight rows at a time with AVX2.

#![expect(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;
use std::ops::{BitAnd, BitOr, BitXor, Shl, Shr};

use super::{Columns, ColumnsMut, Sink, Source, Stack, Tile, Word};
use crate::block;
use crate::dtype::DType;

/// Proof that the processor has AVX2.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    pub(super) fn turn(self, dtype: DType, bytes: &[u8], stack: Stack, tile: &mut Tile) {
        // SAFETY: `self` proves AVX2.
        unsafe { turn(self, dtype, bytes, stack, tile) }
    }

    pub(super) fn turn_back(self, dtype: DType, tile: &Tile, stack: Stack, bytes: &mut [u8]) {
        // SAFETY: `self` proves AVX2.
        unsafe { turn_back(self, dtype, tile, stack, bytes) }
    }

    /// Writes words to a run as long: whole cache lines past the caches, the rest through them.
    pub(super) fn stream(self, words: &[u32], run: &mut [u8]) {
        let lead = run.as_ptr().addr().wrapping_neg() % LINE;
        let lead = if lead.is_multiple_of(4) {
            lead / 4
        } else {
            words.len()
        };
        let (lead_words, words) = words.split_at(lead.min(words.len()));
        let (lead, run) = run.split_at_mut(4 * lead_words.len());
        super::write_words(lead_words, lead);
        let whole = words.len() / (LINE / 4) * (LINE / 4);
        let (middle, tail) = run.split_at_mut(4 * whole);
        // SAFETY: `self` proves AVX2; the middle starts on a line and ends on one.
        unsafe { stream(&words[..whole], middle) };
        super::write_words(&words[whole..], tail);
    }

    pub(super) fn fence(self) {
        // SAFETY: every x86-64 processor has SSE.
        unsafe { _mm_sfence() }
    }
}

/// A word of eight rows. Made only by [`EightRows`] and [`Rows`], which have a proof of AVX2.
#[derive(Clone, Copy)]
struct Eight(__m256i);

impl Eight {
    #[inline(always)]
    fn to_array(self) -> [u32; 8] {
        let mut words = [0; 8];
        // SAFETY: an `Eight` proves AVX2; the array has 32 bytes.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), self.0) };
        words
    }
}

impl BitAnd<u32> for Eight {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, mask: u32) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_and_si256(self.0, _mm256_set1_epi32(mask as i32))) }
    }
}

impl BitXor<u32> for Eight {
    type Output = Self;
    #[inline(always)]
    fn bitxor(self, mask: u32) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_xor_si256(self.0, _mm256_set1_epi32(mask as i32))) }
    }
}

impl BitOr for Eight {
    type Output = Self;
    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_or_si256(self.0, other.0)) }
    }
}

impl Shl<u32> for Eight {
    type Output = Self;
    #[inline(always)]
    fn shl(self, bits: u32) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_sll_epi32(self.0, _mm_cvtsi32_si128(bits as i32))) }
    }
}

impl Shr<u32> for Eight {
    type Output = Self;
    #[inline(always)]
    fn shr(self, bits: u32) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_srl_epi32(self.0, _mm_cvtsi32_si128(bits as i32))) }
    }
}

impl Word for Eight {
    #[inline(always)]
    fn none(self) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_setzero_si256()) }
    }

    #[inline(always)]
    fn times(self, factor: u32) -> Self {
        // SAFETY: an `Eight` proves AVX2.
        unsafe { Self(_mm256_mullo_epi32(self.0, _mm256_set1_epi32(factor as i32))) }
    }
}

/// Eight rows of a tile, from `row`.
struct Rows<'a> {
    _proof: Avx2,
    tile: &'a Tile,
    row: usize,
}

impl Columns<Eight> for Rows<'_> {
    #[inline(always)]
    fn get(&self, column: usize) -> Eight {
        let words = &self.tile[column].0[self.row..self.row + 8];
        // SAFETY: the proof is of AVX2; the slice has 32 bytes.
        unsafe { Eight(_mm256_loadu_si256(words.as_ptr().cast())) }
    }
}

struct RowsMut<'a> {
    tile: &'a mut Tile,
    row: usize,
}

impl ColumnsMut<Eight> for RowsMut<'_> {
    #[inline(always)]
    fn put(&mut self, column: usize, words: Eight) {
        let place = &mut self.tile[column].0[self.row..self.row + 8];
        // SAFETY: an `Eight` proves AVX2; the slice has 32 bytes.
        unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), words.0) }
    }
}

/// A block of eight rows, `stride` bytes apart.
struct EightRows<'a> {
    _proof: Avx2,
    bytes: &'a [u8],
    stride: usize,
}

impl EightRows<'_> {
    /// Asks for the blocks that come next: the hardware does not foresee as many streams as there
    /// are rows in a tile.
    #[inline(always)]
    fn prefetch(&self, block: usize) {
        let next = self.bytes.as_ptr().wrapping_add(block.max(AHEAD));
        for row in 0..8 {
            for line in (0..block).step_by(64) {
                let at = next.wrapping_add(row * self.stride + line);
                // SAFETY: a prefetch never faults, wherever it points.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
            }
        }
    }
}

impl Source for EightRows<'_> {
    type Word = Eight;

    #[inline(always)]
    fn quad(&self, at: usize) -> [Eight; 4] {
        assert!(
            at + 7 * self.stride + 16 <= self.bytes.len(),
            "rows lie in the source"
        );
        // SAFETY: the proof is of AVX2; every read of 16 bytes ends at or before the eighth
        // row's, which was compared with the length.
        unsafe {
            let rows = self.bytes.as_ptr().add(at);
            let (a, b) = (pair(rows, self.stride, 0), pair(rows, self.stride, 1));
            let (c, d) = (pair(rows, self.stride, 2), pair(rows, self.stride, 3));
            let (low_ab, low_cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (high_ab, high_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                Eight(_mm256_unpacklo_epi64(low_ab, low_cd)),
                Eight(_mm256_unpackhi_epi64(low_ab, low_cd)),
                Eight(_mm256_unpacklo_epi64(high_ab, high_cd)),
                Eight(_mm256_unpackhi_epi64(high_ab, high_cd)),
            ]
        }
    }
}

/// 16 bytes of row `row`, and of the fourth row after it.
///
/// # Safety
/// The processor has AVX2, and both rows have 16 bytes.
#[inline(always)]
unsafe fn pair(rows: *const u8, stride: usize, row: usize) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let low = _mm_loadu_si128(rows.add(row * stride).cast());
        let high = _mm_loadu_si128(rows.add((row + 4) * stride).cast());
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
    }
}

struct EightRowsMut<'a> {
    bytes: &'a mut [u8],
    stride: usize,
}

impl Sink for EightRowsMut<'_> {
    type Word = Eight;

    #[inline(always)]
    fn set_half(&mut self, at: usize, word: Eight) {
        for (row, word) in word.to_array().into_iter().enumerate() {
            let at = at + row * self.stride;
            self.bytes[at..at + 2].copy_from_slice(&(word as u16).to_le_bytes());
        }
    }

    #[inline(always)]
    fn set_word(&mut self, at: usize, word: Eight) {
        for (row, word) in word.to_array().into_iter().enumerate() {
            let at = at + row * self.stride;
            self.bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    #[inline(always)]
    fn set_quad(&mut self, at: usize, words: [Eight; 4]) {
        assert!(
            at + 7 * self.stride + 16 <= self.bytes.len(),
            "rows lie in the output"
        );
        let [Eight(a), Eight(b), Eight(c), Eight(d)] = words;
        // SAFETY: an `Eight` proves AVX2; every write of 16 bytes ends at or before the eighth
        // row's, which was compared with the length.
        unsafe {
            let (low_ab, low_cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (high_ab, high_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            let pairs = [
                _mm256_unpacklo_epi64(low_ab, low_cd),
                _mm256_unpackhi_epi64(low_ab, low_cd),
                _mm256_unpacklo_epi64(high_ab, high_cd),
                _mm256_unpackhi_epi64(high_ab, high_cd),
            ];
            for (r, pair) in pairs.into_iter().enumerate() {
                let row = self.bytes.as_mut_ptr().add(at + r * self.stride);
                _mm_storeu_si128(row.cast(), _mm256_castsi256_si128(pair));
                let row = row.add(4 * self.stride);
                _mm_storeu_si128(row.cast(), _mm256_extracti128_si256::<1>(pair));
            }
        }
    }
}

/// Evaluates `$run` with the packed type as the constant `$constant`, so that each type has a loop
/// of its own.
macro_rules! by_type {
    ($dtype:expr, $constant:ident, $run:expr) => {
        by_type!($dtype, $constant, $run, Q4 Q8 Q3S Q4S Q5S Q6S Q5 Mx4 Q51)
    };
    ($dtype:expr, $constant:ident, $run:expr, $($name:ident)*) => {
        match $dtype {
            $(DType::$name => {
                const $constant: DType = DType::$name;
                $run
            })*
            DType::F32 | DType::F16 | DType::Bf16 => {}
        }
    };
}

#[target_feature(enable = "avx2")]
fn turn(proof: Avx2, dtype: DType, bytes: &[u8], stack: Stack, tile: &mut Tile) {
    by_type!(dtype, TYPE, turn_type(TYPE, proof, bytes, stack, tile))
}

#[inline(always)]
fn turn_type(dtype: DType, proof: Avx2, bytes: &[u8], stack: Stack, tile: &mut Tile) {
    let block = dtype
        .packed()
        .map_or(0, |format| format.block_bytes as usize);
    for row in (0..stack.rows).step_by(8) {
        let eight = EightRows {
            _proof: proof,
            bytes: &bytes[row * stack.stride..],
            stride: stack.stride,
        };
        eight.prefetch(block);
        block::to_words(dtype, &eight, &mut RowsMut { tile, row });
    }
}

#[target_feature(enable = "avx2")]
fn turn_back(proof: Avx2, dtype: DType, tile: &Tile, stack: Stack, bytes: &mut [u8]) {
    by_type!(dtype, TYPE, turn_type_back(TYPE, proof, tile, stack, bytes))
}

#[inline(always)]
fn turn_type_back(dtype: DType, proof: Avx2, tile: &Tile, stack: Stack, bytes: &mut [u8]) {
    for row in (0..stack.rows).step_by(8) {
        let mut eight = EightRowsMut {
            bytes: &mut bytes[row * stack.stride..],
            stride: stack.stride,
        };
        let words = Rows {
            _proof: proof,
            tile,
            row,
        };
        block::from_words(dtype, &words, &mut eight);
    }
}

/// # Safety
/// `run` is aligned to 32 bytes and has the length of `words`, a multiple of 32 bytes.
#[target_feature(enable = "avx2")]
unsafe fn stream(words: &[u32], run: &mut [u8]) {
    for (words, bytes) in words
        .as_chunks::<8>()
        .0
        .iter()
        .zip(run.as_chunks_mut::<32>().0)
    {
        // SAFETY: both arrays have 32 bytes, and the run is aligned; x86 is little-endian.
        unsafe {
            let vector = _mm256_loadu_si256(words.as_ptr().cast());
            _mm256_stream_si256(bytes.as_mut_ptr().cast(), vector);
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes ahead of a small block that are asked for.
const AHEAD: usize = 136;
