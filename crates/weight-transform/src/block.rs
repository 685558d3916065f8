//! Column gathers of many rows at once: a block of rows is turned so that the elements of one
//! column lie side by side, whole columns are taken in the new order, and turned back.

use std::array::from_fn;

use crate::vector::{Vector, transpose};

/// What one thread needs for blocks of rows.
pub(crate) struct Block<V> {
    /// For each source column, its elements in the block's rows.
    turned: Vec<V>,
    /// Some output columns of every row of the block, row-major.
    taken: Vec<[u8; 16]>,
}

impl<V: Vector> Block<V> {
    pub(crate) fn new() -> Self {
        Self {
            turned: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Calls `finish` with a row of the block, the first of some columns, and the elements that
    /// these columns take from that row, for all rows and columns. `order` lists the source of
    /// each column, filled up to a multiple of `L`. `ahead` is called with a row and a column
    /// once for each 64 bytes, before they are finished.
    #[inline(always)]
    pub(crate) fn gather<const N: usize, const L: usize>(
        &mut self,
        sources: [&[[u8; N]]; L],
        order: &[u32],
        ahead: impl Fn(usize, usize),
        mut finish: impl FnMut(usize, usize, &[[u8; N]]),
    ) {
        let wide = (TAKEN_BYTES / 16 / L).next_multiple_of(LINE);
        // One line more than a power of two, so that rows do not share the lines of a cache set.
        let stride = wide + LINE;
        self.taken.resize(stride * L, [0; 16]);
        self.turn::<N, L>(sources);
        for (k, picks) in order.chunks(wide * L).enumerate() {
            for (t, picks) in picks.as_chunks::<L>().0.iter().enumerate() {
                for row in (t % LINE..L).step_by(LINE) {
                    ahead(row, (k * wide + t - t % LINE) * L);
                }
                let square = from_fn(|i| self.turned[picks[i] as usize]);
                for (i, vector) in transpose::<V, N, L>(square).into_iter().enumerate() {
                    self.taken[i * stride + t] = vector.store();
                }
            }
            for (j, row) in self.taken.chunks_exact(stride).enumerate() {
                let (cells, _) = row.as_flattened().as_chunks::<N>();
                finish(j, k * wide * L, &cells[..picks.len()]);
            }
        }
    }

    #[inline(always)]
    fn turn<const N: usize, const L: usize>(&mut self, sources: [&[[u8; N]]; L]) {
        let rows = sources.map(|row| row.as_flattened().as_chunks::<16>());
        let whole = rows[0].0.len();
        let squares = whole + usize::from(!rows[0].1.is_empty());
        self.turned.resize(squares * L, V::load(&[0; 16]));
        let (squares, _) = self.turned.as_chunks_mut::<L>();
        let (squares, edge) = squares.split_at_mut(whole);
        let lines = rows.map(|(line, _)| &line[..squares.len()]);
        for (t, columns) in squares.iter_mut().enumerate() {
            *columns = transpose::<V, N, L>(from_fn(|i| V::load(&lines[i][t])));
        }
        if let [columns] = edge {
            *columns = transpose::<V, N, L>(rows.map(|(_, end)| {
                let mut filled = [0; 16];
                filled[..end.len()].copy_from_slice(end);
                V::load(&filled)
            }));
        }
    }
}

/// Well within the first-level cache.
const TAKEN_BYTES: usize = 16 << 10;
/// Vectors in a cache line.
const LINE: usize = 4;
