//! Blocks of many rows turned into columns and back: eight rows at a time with AVX2, or one by one.
//!
//! The planes hold each word of a block for all rows side by side, so packing is a transpose. A
//! [`Tile`] has the words of one block of [`TILE`] rows, and goes to the planes in whole runs.

#[cfg(target_arch = "x86_64")]
mod avx2;

use std::ops::{BitAnd, BitOr, BitXor, Range, Shl, Shr};

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;

use crate::block;
use crate::dtype::DType;

/// Rows that are turned together: runs of 1024 bytes spare the TLB and fill whole cache lines, as
/// words of one row are a whole plane column apart.
pub(crate) const TILE: usize = 256;

/// One block of consecutive rows: `rows` of them, `stride` bytes from one to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stack {
    pub(crate) stride: usize,
    pub(crate) rows: usize,
}

/// A word of a block, of one row or of several.
pub(crate) trait Word:
    Copy
    + BitAnd<u32, Output = Self>
    + BitXor<u32, Output = Self>
    + BitOr<Output = Self>
    + Shl<u32, Output = Self>
    + Shr<u32, Output = Self>
{
    /// Zero.
    fn none(self) -> Self;
    /// The product's low 32 bits.
    fn times(self, factor: u32) -> Self;
}

/// One block of one row or of several, to be read.
pub(crate) trait Source {
    type Word: Word;
    /// The four words from byte `at` of the block.
    fn quad(&self, at: usize) -> [Self::Word; 4];
}

/// One block of one row or of several, to be written.
pub(crate) trait Sink {
    type Word: Word;
    /// Replaces two bytes by the low half of `word`.
    fn set_half(&mut self, at: usize, word: Self::Word);
    fn set_word(&mut self, at: usize, word: Self::Word);
    fn set_quad(&mut self, at: usize, words: [Self::Word; 4]);
}

/// The words of a block's columns, of one row or of several.
pub(crate) trait Columns<W> {
    fn get(&self, column: usize) -> W;
}

/// The words of a block's columns, to be written.
pub(crate) trait ColumnsMut<W> {
    fn put(&mut self, column: usize, word: W);
}

/// A column of words, one a row; aligned for streaming stores.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Column(pub(crate) [u32; TILE]);

/// Columns of one block of up to [`TILE`] rows.
pub(crate) type Tile = [Column; block::MAX_COLUMNS];

/// How rows are turned: what this processor can do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Level {
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = Avx2::detect() {
            return Self::Avx2(proof);
        }
        Self::Portable
    }

    /// Turns one block of rows, the first of which starts `bytes`, into columns.
    pub(crate) fn turn(self, dtype: DType, bytes: &[u8], stack: Stack, tile: &mut Tile) {
        match self {
            Self::Portable => turn_rows(dtype, bytes, stack.stride, 0..stack.rows, tile),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => {
                let (eights, rest) = stack.eights();
                proof.turn(dtype, bytes, eights, tile);
                turn_rows(dtype, bytes, stack.stride, rest, tile);
            }
        }
    }

    /// The inverse of [`Self::turn`]; bytes that hold no word of a column are left alone.
    pub(crate) fn turn_back(self, dtype: DType, tile: &Tile, stack: Stack, bytes: &mut [u8]) {
        match self {
            Self::Portable => turn_rows_back(dtype, tile, stack.stride, 0..stack.rows, bytes),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) => {
                let (eights, rest) = stack.eights();
                proof.turn_back(dtype, tile, eights, bytes);
                turn_rows_back(dtype, tile, stack.stride, rest, bytes);
            }
        }
    }

    /// Writes words to a run of a plane. `stream` says that the plane is too large to be kept in
    /// the caches; after the last run [`Self::finish`] is due.
    pub(crate) fn write_run(self, words: &[u32], run: &mut [u8], stream: bool) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(proof) if stream => proof.stream(words, run),
            _ => write_words(words, run),
        }
    }

    /// Orders the runs that were streamed before whatever is written next.
    pub(crate) fn finish(self) {
        #[cfg(target_arch = "x86_64")]
        if let Self::Avx2(proof) = self {
            proof.fence();
        }
    }
}

fn write_words(words: &[u32], run: &mut [u8]) {
    for (bytes, word) in run.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}

impl Stack {
    /// The rows that come in eights, and the others.
    #[cfg(target_arch = "x86_64")]
    const fn eights(self) -> (Self, Range<usize>) {
        let rows = self.rows / 8 * 8;
        (Self { rows, ..self }, rows..self.rows)
    }
}

fn turn_rows(dtype: DType, bytes: &[u8], stride: usize, rows: Range<usize>, tile: &mut Tile) {
    for row in rows {
        let one = OneRow(&bytes[row * stride..]);
        block::to_words(dtype, &one, &mut RowMut { tile, row });
    }
}

fn turn_rows_back(dtype: DType, tile: &Tile, stride: usize, rows: Range<usize>, bytes: &mut [u8]) {
    for row in rows {
        let mut one = OneRowMut(&mut bytes[row * stride..]);
        block::from_words(dtype, &Row { tile, row }, &mut one);
    }
}

/// A row of a tile.
struct Row<'a> {
    tile: &'a Tile,
    row: usize,
}

impl Columns<u32> for Row<'_> {
    #[inline(always)]
    fn get(&self, column: usize) -> u32 {
        self.tile[column].0[self.row]
    }
}

struct RowMut<'a> {
    tile: &'a mut Tile,
    row: usize,
}

impl ColumnsMut<u32> for RowMut<'_> {
    #[inline(always)]
    fn put(&mut self, column: usize, word: u32) {
        self.tile[column].0[self.row] = word;
    }
}

impl Word for u32 {
    #[inline(always)]
    fn none(self) -> Self {
        0
    }

    #[inline(always)]
    fn times(self, factor: u32) -> Self {
        self.wrapping_mul(factor)
    }
}

/// A block of one row.
pub(crate) struct OneRow<'a>(pub(crate) &'a [u8]);

impl Source for OneRow<'_> {
    type Word = u32;
    #[inline(always)]
    fn quad(&self, at: usize) -> [u32; 4] {
        let bytes = self.0[at..at + 16].as_chunks::<4>().0;
        std::array::from_fn(|i| u32::from_le_bytes(bytes[i]))
    }
}

struct OneRowMut<'a>(&'a mut [u8]);

impl Sink for OneRowMut<'_> {
    type Word = u32;
    #[inline(always)]
    fn set_half(&mut self, at: usize, word: u32) {
        self.0[at..at + 2].copy_from_slice(&(word as u16).to_le_bytes());
    }
    #[inline(always)]
    fn set_word(&mut self, at: usize, word: u32) {
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    #[inline(always)]
    fn set_quad(&mut self, at: usize, words: [u32; 4]) {
        for (i, word) in words.into_iter().enumerate() {
            self.set_word(at + 4 * i, word);
        }
    }
}
