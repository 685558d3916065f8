//! Source blocks to planes and back (spec: container, B.6).

use crate::block::{self, MAX_COLUMNS};
use crate::dtype::{DType, PackedFormat};
use crate::error::JlmError;
use crate::lanes::{Column, Level, Stack, TILE};

/// The three planes of a sheet, to be read.
#[derive(Debug, Clone, Copy)]
pub struct PlaneBytes<'a> {
    /// Payload.
    pub qs: &'a [u8],
    /// Scales of super-blocks.
    pub d: &'a [u8],
    /// Scales of sub-blocks.
    pub sc: &'a [u8],
}

/// The three planes of a sheet, to be written.
#[derive(Debug)]
pub struct PlaneBytesMut<'a> {
    /// Payload.
    pub qs: &'a mut [u8],
    /// Scales of super-blocks.
    pub d: &'a mut [u8],
    /// Scales of sub-blocks.
    pub sc: &'a mut [u8],
}

/// A sheet's shape: `rows` rows of `k` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sheet {
    /// Its type.
    pub dtype: DType,
    /// Elements of a row.
    pub k: usize,
    /// Rows.
    pub rows: usize,
}

impl Sheet {
    /// Packs source blocks (row after row, as a GGUF holds them) into planes.
    ///
    /// Every slice must have the length that the type and shape give.
    pub fn pack(&self, source: &[u8], planes: PlaneBytesMut<'_>) -> Result<(), JlmError> {
        let Some(format) = self.dtype.packed() else {
            return check_len(source.len(), planes.qs.len())
                .map(|()| planes.qs.copy_from_slice(source));
        };
        let lens = self.check(&format, planes.qs.len(), planes.d.len(), planes.sc.len())?;
        check_len(source.len(), lens)?;
        let stream = planes.qs.len() >= STREAMED;
        self.pack_at(Level::detect(), stream, source, planes)
    }

    fn pack_at(
        &self,
        level: Level,
        stream: bool,
        source: &[u8],
        planes: PlaneBytesMut<'_>,
    ) -> Result<(), JlmError> {
        let Some(format) = self.dtype.packed() else {
            return Ok(());
        };
        let shape = Shape::new(self, &format);
        let PlaneBytesMut { qs, d, sc } = planes;
        let (sc_columns, d_columns) = block::scale_columns(self.dtype);
        if d_columns == 0 {
            d.fill(0);
        }
        let mut tile = [Column([0; TILE]); MAX_COLUMNS];
        for (stack, first, at) in shape.tiles() {
            let bytes = &source[(first * shape.blocks + at) * shape.block_bytes..];
            level.turn(self.dtype, bytes, stack, &mut tile);
            if self.dtype == DType::Mx4 {
                self.pack_exponents(bytes, stack, (first, at), d)
                    .map_err(|(row, reason)| {
                        self.refuse((first + row) * shape.blocks + at, reason)
                    })?;
            }
            let (payload, scales) = tile.split_at_mut(shape.block_words);
            let (sc_tile, d_tile) = scales.split_at_mut(sc_columns);
            for (plane, columns) in [(&mut *qs, payload), (&mut *sc, sc_tile)] {
                let words = columns.len();
                for (w, column) in columns.iter().enumerate() {
                    let from = 4 * ((at * words + w) * self.rows + first);
                    let run = &mut plane[from..from + 4 * stack.rows];
                    level.write_run(&column.0[..stack.rows], run, stream);
                }
            }
            if d_columns > 0 {
                let words = join(&mut d_tile[0].0[..stack.rows], shape.rows_per_d);
                let from = self.d_word(first, at, shape.rows_per_d);
                level.write_run(words, &mut d[from..from + 4 * words.len()], stream);
            }
        }
        level.finish();
        Ok(())
    }

    /// Puts MXFP4's exponents, a byte a row, to their places. An error names the row that is
    /// refused, counted from `first`.
    fn pack_exponents(
        &self,
        bytes: &[u8],
        stack: Stack,
        (first, at): (usize, usize),
        d: &mut [u8],
    ) -> Result<(), (usize, &'static str)> {
        for (row, block) in bytes.chunks(stack.stride).take(stack.rows).enumerate() {
            let byte = block::e8m0(block).map_err(|reason| (row, reason))?;
            d[self.byte_slot(first + row, at)] = byte;
        }
        Ok(())
    }

    /// Planes back to source blocks: the inverse of [`Self::pack`] (an MXFP4 block of zeros
    /// comes back with exponent 1).
    pub fn unpack(&self, planes: PlaneBytes<'_>, out: &mut [u8]) -> Result<(), JlmError> {
        let Some(format) = self.dtype.packed() else {
            return check_len(planes.qs.len(), out.len()).map(|()| out.copy_from_slice(planes.qs));
        };
        let lens = self.check(&format, planes.qs.len(), planes.d.len(), planes.sc.len())?;
        check_len(out.len(), lens)?;
        self.unpack_at(Level::detect(), planes, out);
        Ok(())
    }

    fn unpack_at(&self, level: Level, planes: PlaneBytes<'_>, out: &mut [u8]) {
        let Some(format) = self.dtype.packed() else {
            return;
        };
        let shape = Shape::new(self, &format);
        let PlaneBytes { qs, d, sc } = planes;
        let (sc_columns, d_columns) = block::scale_columns(self.dtype);
        let mut tile = [Column([0; TILE]); MAX_COLUMNS];
        for (stack, first, at) in shape.tiles() {
            let (payload, scales) = tile.split_at_mut(shape.block_words);
            let (sc_tile, d_tile) = scales.split_at_mut(sc_columns);
            for (plane, columns) in [(qs, payload), (sc, sc_tile)] {
                let words = columns.len();
                for (w, column) in columns.iter_mut().enumerate() {
                    let from = 4 * ((at * words + w) * self.rows + first);
                    read_run(&plane[from..from + 4 * stack.rows], &mut column.0);
                }
            }
            if d_columns > 0 {
                let from = self.d_word(first, at, shape.rows_per_d);
                let len = 4 * stack.rows.div_ceil(shape.rows_per_d);
                read_run(&d[from..from + len], &mut d_tile[0].0);
                part(&mut d_tile[0].0[..stack.rows], shape.rows_per_d);
            }
            let bytes = &mut out[(first * shape.blocks + at) * shape.block_bytes..];
            level.turn_back(self.dtype, &tile, stack, bytes);
            if self.dtype == DType::Mx4 {
                for (row, block) in bytes.chunks_mut(stack.stride).take(stack.rows).enumerate() {
                    block[0] = d[self.byte_slot(first + row, at)].saturating_add(1);
                }
            }
        }
    }

    /// Checks the planes' lengths; gives the source's.
    pub(crate) fn check(
        &self,
        format: &PackedFormat,
        qs: usize,
        d: usize,
        sc: usize,
    ) -> Result<usize, JlmError> {
        let lens = self
            .dtype
            .planes(self.k as u64, self.rows as u64)
            .ok_or(JlmError::Model("a row is not a whole number of blocks"))?;
        for (given, needed) in [(qs, lens.qs), (d, lens.d), (sc, lens.sc)] {
            check_len(given, needed as usize)?;
        }
        Ok(self.k / format.block_elements as usize * self.rows * format.block_bytes as usize)
    }

    fn refuse(&self, block: usize, reason: &'static str) -> JlmError {
        JlmError::Block {
            format: self.dtype.ggml().0,
            block: block as u64,
            reason,
        }
    }

    /// Byte place of the `d` word of super-block `at` of `row`, with `n` rows a word.
    pub(crate) const fn d_word(&self, row: usize, at: usize, n: usize) -> usize {
        4 * (at * self.rows.div_ceil(n) + row / n)
    }

    /// Byte place of the half of block `at` of `row` in a `d` plane with two rows a word.
    pub(crate) const fn half_slot(&self, row: usize, at: usize) -> usize {
        self.d_word(row, at, 2) + 2 * (row % 2)
    }

    /// Byte place of the exponent of block `at` of `row` in a `d` plane with four rows a word.
    pub(crate) const fn byte_slot(&self, row: usize, at: usize) -> usize {
        self.d_word(row, at, 4) + row % 4
    }

    /// Byte place of scale `i` of block `at` of `row` in an `sc` plane of sixteen bytes a block.
    pub(crate) const fn sc_byte(&self, row: usize, at: usize, i: usize) -> usize {
        self.sc_word(row, at * 4 + i / 4) + i % 4
    }

    /// Byte place of word `word` of `row` in the `sc` plane.
    pub(crate) const fn sc_word(&self, row: usize, word: usize) -> usize {
        4 * (word * self.rows + row)
    }
}

/// Places in a payload plane.
struct Shape {
    rows: usize,
    rows_per_d: usize,
    blocks: usize,
    block_bytes: usize,
    block_words: usize,
}

impl Shape {
    fn new(sheet: &Sheet, format: &PackedFormat) -> Self {
        Self {
            rows: sheet.rows,
            rows_per_d: format.rows_per_d as usize,
            blocks: sheet.k / format.block_elements as usize,
            block_bytes: format.block_bytes as usize,
            block_words: (format.block_elements / format.sub * format.words()) as usize,
        }
    }

    /// The tiles of a sheet: how many rows, the first of them, and the block's place in them.
    fn tiles(&self) -> impl Iterator<Item = (Stack, usize, usize)> {
        let (rows, blocks) = (self.rows, self.blocks);
        let stride = blocks * self.block_bytes;
        (0..rows).step_by(TILE).flat_map(move |first| {
            let rows = TILE.min(rows - first);
            (0..blocks).map(move |at| (Stack { stride, rows }, first, at))
        })
    }
}

/// Halves of rows that share a word, two a word, become words.
fn join(column: &mut [u32], rows_per_word: usize) -> &[u32] {
    if rows_per_word == 1 {
        return column;
    }
    let words = column.len().div_ceil(2);
    for i in 0..words {
        let second = column.get(2 * i + 1).map_or(0, |half| half << 16);
        column[i] = column[2 * i] | second;
    }
    &column[..words]
}

/// The inverse of [`join`].
fn part(column: &mut [u32], rows_per_word: usize) {
    if rows_per_word > 1 {
        for row in (0..column.len()).rev() {
            column[row] = (column[row / 2] >> (16 * (row % 2))) & 0xffff;
        }
    }
}

fn read_run(run: &[u8], words: &mut [u32]) {
    for (word, bytes) in words.iter_mut().zip(run.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
}

pub(crate) fn check_len(given: usize, needed: usize) -> Result<(), JlmError> {
    if given == needed {
        return Ok(());
    }
    Err(JlmError::Model(
        "a buffer is not of the length that type and shape give",
    ))
}

/// Payload bytes from which writes go past the caches: more than a core's own caches hold.
const STREAMED: usize = 1 << 20;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test support")]
mod tests {
    use super::*;

    /// Bytes of every value, from a linear congruence; exponents that MXFP4 refuses are mended.
    fn blocks(sheet: Sheet, format: &PackedFormat) -> Vec<u8> {
        let count = sheet.k * sheet.rows / format.block_elements as usize;
        let mut state = 1u32;
        let mut bytes: Vec<u8> = (0..count * format.block_bytes as usize)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        if sheet.dtype == DType::Mx4 {
            for block in bytes.chunks_mut(17) {
                block[0] = block[0].clamp(2, 254);
            }
        }
        bytes
    }

    /// Planes in buffers that start `skew` bytes after a boundary, filled with what must not stay.
    fn pack(sheet: Sheet, level: Level, stream: bool, skew: usize, source: &[u8]) -> [Vec<u8>; 3] {
        let lens = sheet.dtype.planes(sheet.k as u64, sheet.rows as u64);
        let mut planes = lens
            .unwrap()
            .as_array()
            .map(|len| vec![0xee; len as usize + skew]);
        let [qs, d, sc] = planes.each_mut().map(|plane| &mut plane[skew..]);
        sheet
            .pack_at(level, stream, source, PlaneBytesMut { qs, d, sc })
            .unwrap();
        planes.map(|plane| plane[skew..].to_vec())
    }

    #[test]
    fn every_level_packs_and_unpacks_to_the_same_bytes() {
        for dtype in DType::ALL {
            let Some(format) = dtype.packed() else {
                continue;
            };
            for rows in [1, 7, 8, 9, 31, 120, TILE - 1, TILE, TILE + 1, 2 * TILE + 13] {
                let k = 3 * format.block_elements as usize;
                let sheet = Sheet { dtype, k, rows };
                let source = blocks(sheet, &format);
                let expected = pack(sheet, Level::Portable, false, 0, &source);
                for (stream, skew) in [(false, 0), (true, 0), (true, 1), (true, 4), (true, 48)] {
                    let planes = pack(sheet, Level::detect(), stream, skew, &source);
                    assert!(planes == expected, "{} x {rows}, {skew}", dtype.name());
                }
                let [qs, d, sc] = &expected;
                for level in [Level::Portable, Level::detect()] {
                    let mut back = vec![0xee; source.len()];
                    sheet.unpack_at(level, PlaneBytes { qs, d, sc }, &mut back);
                    assert!(back == source, "{} x {rows} unpacked", dtype.name());
                }
            }
        }
    }

    #[test]
    fn the_refused_block_is_named() {
        let sheet = Sheet {
            dtype: DType::Mx4,
            k: 64,
            rows: 300,
        };
        let mut source = blocks(sheet, &sheet.dtype.packed().unwrap());
        source[17 * 561] = 255;
        let lens = sheet.dtype.planes(64, 300).unwrap().as_array();
        let mut planes = lens.map(|len| vec![0; len as usize]);
        let [qs, d, sc] = &mut planes;
        let refused = sheet.pack(&source, PlaneBytesMut { qs, d, sc });
        assert!(
            matches!(refused, Err(JlmError::Block { block: 561, .. })),
            "{refused:?}"
        );
    }
}
