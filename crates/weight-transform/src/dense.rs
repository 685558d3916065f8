//! Matrix transforms in float64, a tile at a time.

use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

use crate::element::{Element, narrow, widen};
use crate::gather::{Layout, exp2};
use crate::lane::{Lane, Mix};

/// Computes `rows' * source * columns'` where either lane mixes positions. `gain` multiplies the
/// source's columns.
pub(crate) fn transform(
    layout: &Layout,
    rows: &Lane,
    columns: &Lane,
    gain: Option<&[f64]>,
    source: &[u8],
    out: &mut [u8],
) {
    let orientation = if widest(rows) > widest(columns) {
        Orientation::ByColumns
    } else {
        Orientation::ByRows
    };
    let row_factors = factors(rows, layout.rows, None);
    let column_factors = factors(columns, layout.columns, gain);
    let job = match orientation {
        Orientation::ByRows => Job {
            layout,
            orientation,
            outer: (rows, row_factors),
            inner: (columns, column_factors),
        },
        Orientation::ByColumns => Job {
            layout,
            orientation,
            outer: (columns, column_factors),
            inner: (rows, row_factors),
        },
    };
    let matrices = job.inner_matrices();
    let mut buffers = Buffers::default();
    for tile in tiles(job.outer.0, job.outer.1.len()) {
        job.run(tile, &matrices, &mut buffers, source, out);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Orientation {
    ByRows,
    ByColumns,
}

/// Tiles run along the outer axis; the inner one is whole in every tile.
struct Job<'a> {
    layout: &'a Layout,
    orientation: Orientation,
    outer: (&'a Lane, Vec<f64>),
    inner: (&'a Lane, Vec<f64>),
}

/// A tile's values, and those before the product at hand.
#[derive(Default)]
struct Buffers {
    values: Vec<f64>,
    taken: Vec<f64>,
}

impl Buffers {
    /// Moves the values to `taken`. `all` is whether every one of them will be written anew.
    fn take(&mut self, all: bool) {
        std::mem::swap(&mut self.values, &mut self.taken);
        if all {
            self.values.resize(self.taken.len(), 0.0);
        } else {
            self.values.clone_from(&self.taken);
        }
    }
}

impl Job<'_> {
    fn run(
        &self,
        tile: Range<usize>,
        matrices: &[Held<'_>],
        buffers: &mut Buffers,
        source: &[u8],
        out: &mut [u8],
    ) {
        let (height, depth) = (tile.len(), self.inner.1.len());
        buffers.values.resize(height * depth, 0.0);
        self.load(&tile, source, &mut buffers.values);
        let inside = |mix: &&Mix| tile.contains(&mix.start);
        let outer = || self.outer.0.mixes.iter().filter(inside);
        let mixed: usize = outer().map(|mix| mix.matrix.side()).sum();
        if mixed > 0 {
            buffers.take(mixed == height);
        }
        for mix in outer() {
            let (from, side) = (mix.start - tile.start, mix.matrix.side());
            matmul(
                self.view_mut(&mut buffers.values, height, depth)
                    .subrows_mut(from, side),
                Accum::Replace,
                mix.matrix.view().transpose(),
                self.view(&buffers.taken, height, depth).subrows(from, side),
                1.0,
                Par::rayon(0),
            );
        }
        let mixes = &self.inner.0.mixes;
        let mixed: usize = mixes.iter().map(|mix| mix.matrix.side()).sum();
        if mixed > 0 {
            buffers.take(mixed == depth);
        }
        for (mix, matrix) in mixes.iter().zip(matrices) {
            let side = mix.matrix.side();
            matmul(
                self.view_mut(&mut buffers.values, height, depth)
                    .subcols_mut(mix.start, side),
                Accum::Replace,
                self.view(&buffers.taken, height, depth)
                    .subcols(mix.start, side),
                matrix.view(),
                1.0,
                Par::rayon(0),
            );
        }
        self.store(&tile, &buffers.values, out);
    }

    /// The inner axis's matrices in the memory order of the tiles: a product whose three matrices
    /// are in one order takes half the time.
    fn inner_matrices(&self) -> Vec<Held<'_>> {
        let mixes = self.inner.0.mixes.iter();
        mixes
            .map(|mix| {
                let (view, side) = (mix.matrix.view(), mix.matrix.side());
                match self.orientation {
                    Orientation::ByColumns if view.row_stride() != 1 => {
                        Held::ByColumns(turned(view), side)
                    }
                    _ => Held::AsDrawn(view),
                }
            })
            .collect()
    }

    /// The tile's taken values, in the source's memory order.
    fn load(&self, tile: &Range<usize>, source: &[u8], values: &mut [f64]) {
        // Constant in each arm, so that the conversion is compiled for each type.
        match self.layout.element {
            Element::Bf16 => self.load_as(Element::Bf16, tile, source, values),
            Element::F16 => self.load_as(Element::F16, tile, source, values),
            _ => self.load_as(Element::F32, tile, source, values),
        }
    }

    #[inline(always)]
    fn load_as(&self, element: Element, tile: &Range<usize>, source: &[u8], values: &mut [f64]) {
        let (outer, outer_factors) = &self.outer;
        let (inner, inner_factors) = &self.inner;
        let row_bytes = self.layout.row_bytes();
        let width = element.width().unwrap_or(1);
        let at = |row: &[u8], column: usize| widen(element, &row[column * width..][..width]);
        match self.orientation {
            Orientation::ByRows => values
                .par_chunks_mut(inner_factors.len().max(1))
                .zip(tile.clone())
                .for_each(|(line, o)| {
                    let row = &source[outer.source(o) * row_bytes..][..row_bytes];
                    for (k, value) in line.iter_mut().enumerate() {
                        *value = at(row, inner.source(k)) * (outer_factors[o] * inner_factors[k]);
                    }
                }),
            Orientation::ByColumns => {
                let picks: Vec<_> = tile
                    .clone()
                    .map(|o| (outer.source(o), outer_factors[o]))
                    .collect();
                values
                    .par_chunks_mut(tile.len().max(1))
                    .enumerate()
                    .for_each(|(k, line)| {
                        let row = &source[inner.source(k) * row_bytes..][..row_bytes];
                        for (value, (column, factor)) in line.iter_mut().zip(&picks) {
                            *value = at(row, *column) * (factor * inner_factors[k]);
                        }
                    });
            }
        }
    }

    fn store(&self, tile: &Range<usize>, values: &[f64], out: &mut [u8]) {
        match self.layout.element {
            Element::Bf16 => self.store_as(Element::Bf16, tile, values, out),
            Element::F16 => self.store_as(Element::F16, tile, values, out),
            _ => self.store_as(Element::F32, tile, values, out),
        }
    }

    #[inline(always)]
    fn store_as(&self, element: Element, tile: &Range<usize>, values: &[f64], out: &mut [u8]) {
        let width = element.width().unwrap_or(1);
        let row_bytes = self.layout.row_bytes();
        let write = |cells: &mut [u8], line: &[f64]| {
            for (cell, value) in cells.chunks_exact_mut(width).zip(line) {
                narrow(element, *value, cell);
            }
        };
        match self.orientation {
            Orientation::ByRows => out[tile.start * row_bytes..tile.end * row_bytes]
                .par_chunks_mut(row_bytes.max(1))
                .zip(values.par_chunks(self.layout.columns.max(1)))
                .for_each(|(cells, line)| write(cells, line)),
            Orientation::ByColumns => out
                .par_chunks_mut(row_bytes.max(1))
                .zip(values.par_chunks(tile.len().max(1)))
                .for_each(|(cells, line)| {
                    write(&mut cells[tile.start * width..tile.end * width], line);
                }),
        }
    }

    /// The tile as outer by inner.
    fn view<'v>(&self, values: &'v [f64], height: usize, depth: usize) -> MatRef<'v, f64> {
        match self.orientation {
            Orientation::ByRows => MatRef::from_row_major_slice(values, height, depth),
            Orientation::ByColumns => MatRef::from_column_major_slice(values, height, depth),
        }
    }

    fn view_mut<'v>(&self, values: &'v mut [f64], height: usize, depth: usize) -> MatMut<'v, f64> {
        match self.orientation {
            Orientation::ByRows => MatMut::from_row_major_slice_mut(values, height, depth),
            Orientation::ByColumns => MatMut::from_column_major_slice_mut(values, height, depth),
        }
    }
}

/// A square matrix to multiply by.
enum Held<'a> {
    AsDrawn(MatRef<'a, f64>),
    /// Column-major, with its side.
    ByColumns(Vec<f64>, usize),
}

impl Held<'_> {
    fn view(&self) -> MatRef<'_, f64> {
        match self {
            Self::AsDrawn(view) => *view,
            Self::ByColumns(values, side) => MatRef::from_column_major_slice(values, *side, *side),
        }
    }
}

/// The values column by column; some columns at a time, so that each row's lines are read once.
fn turned(matrix: MatRef<'_, f64>) -> Vec<f64> {
    let side = matrix.nrows();
    let mut out = vec![0.0; side * side];
    out.par_chunks_mut(TURNED * side.max(1))
        .enumerate()
        .for_each(|(k, columns)| {
            for r in 0..side {
                for (c, column) in columns.chunks_exact_mut(side).enumerate() {
                    column[r] = matrix[(r, k * TURNED + c)];
                }
            }
        });
    out
}

fn widest(lane: &Lane) -> usize {
    lane.mixes
        .iter()
        .map(|mix| mix.matrix.side())
        .max()
        .unwrap_or(0)
}

fn factors(lane: &Lane, length: usize, gain: Option<&[f64]>) -> Vec<f64> {
    (0..length)
        .map(|i| {
            let gain = gain.map_or(1.0, |gain| gain[lane.source(i)]);
            lane.sign(i) * f64::from(exp2(lane.power(i))) * gain
        })
        .collect()
}

/// Runs of whole mixes and single positions, each of about [`TILE`] positions.
fn tiles(lane: &Lane, length: usize) -> Vec<Range<usize>> {
    let mut mixes = lane.mixes.iter().peekable();
    let (mut out, mut start, mut at) = (Vec::new(), 0, 0);
    while at < length {
        at = match mixes.next_if(|mix| mix.start == at) {
            Some(mix) => at + mix.matrix.side(),
            None => at + 1,
        };
        if at - start >= TILE || at == length {
            out.push(start..at);
            start = at;
        }
    }
    out
}

/// Wide enough that packing the matrix costs little, small enough that a tile of float64 stays far
/// below the tensor it is cut from.
const TILE: usize = 512;
/// Columns of float64 in a cache line.
const TURNED: usize = 8;

#[cfg(test)]
mod tests {
    use model_key::{Component, ModelKey};
    use secret::Secret;

    use super::*;
    use crate::axis::{Axis, Residual, ResidualForm};
    use crate::lane::Drawer;

    /// Readers and writers over more rows or columns than a tile, beside the plain sums.
    #[test]
    fn tiles_join_to_the_whole_product() {
        let key = ModelKey::new(Secret::fill_with(|bytes| bytes.fill(5)));
        let drawer = Drawer::new(&key);
        let side = 24;
        let axis = Axis::Residual(Residual {
            component: Component::Model,
            width: side,
            form: ResidualForm::Orthogonal,
        });
        let mixed = drawer.lane(&axis).unwrap();
        let long = 2 * TILE + 77;
        let moved = Lane {
            index: (0..long as u32).map(|i| (i + 13) % long as u32).collect(),
            flip: (0..long).map(|i| i % 3 == 0).collect(),
            ..Lane::default()
        };
        let matrix = mixed.mixes[0].matrix.view();
        for writes in [false, true] {
            let (rows, columns) = if writes { (side, long) } else { (long, side) };
            let layout = Layout {
                element: Element::F32,
                rows,
                columns,
                packed: false,
            };
            let value = |r: usize, c: usize| ((r * 37 + c * 11) % 101) as f32 / 50.0 - 1.0;
            let source: Vec<u8> = (0..rows * columns)
                .flat_map(|at| value(at / columns, at % columns).to_le_bytes())
                .collect();
            let mut out = vec![0; source.len()];
            let (row_lane, column_lane) = if writes {
                (&*mixed, &moved)
            } else {
                (&moved, &*mixed)
            };
            transform(&layout, row_lane, column_lane, None, &source, &mut out);
            for (at, cell) in out.as_chunks::<4>().0.iter().enumerate() {
                let (r, c) = (at / columns, at % columns);
                let sum: f64 = (0..side)
                    .map(|k| {
                        let taken = if writes {
                            value(k, moved.source(c))
                        } else {
                            value(moved.source(r), k)
                        };
                        f64::from(taken) * matrix[(k, if writes { r } else { c })]
                    })
                    .sum();
                let sign = moved.sign(if writes { c } else { r });
                let found = f64::from(f32::from_le_bytes(*cell));
                assert!(
                    (found - sign * sum).abs() < 1e-6,
                    "{r}, {c}: {found} for {sum}"
                );
            }
        }
    }
}
