//! Matrix transforms in float64, a tile at a time.

use std::ops::Range;

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use rayon::prelude::*;

use crate::element::{Element, narrow, widen};
use crate::gather::{Layout, exp2};
use crate::lane::Lane;

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
    for tile in tiles(job.outer.0, job.outer.1.len()) {
        job.run(tile, source, out);
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

impl Job<'_> {
    fn run(&self, tile: Range<usize>, source: &[u8], out: &mut [u8]) {
        let mut values = self.load(&tile, source);
        let (height, depth) = (tile.len(), self.inner.1.len());
        for mix in &self.outer.0.mixes {
            if tile.contains(&mix.start) {
                let from = mix.start - tile.start;
                let range = from..from + mix.matrix.side();
                let taken = values.clone();
                matmul(
                    self.view_mut(&mut values, height, depth)
                        .subrows_mut(range.start, range.len()),
                    Accum::Replace,
                    mix.matrix.view().transpose(),
                    self.view(&taken, height, depth)
                        .subrows(range.start, range.len()),
                    1.0,
                    Par::rayon(0),
                );
            }
        }
        if !self.inner.0.mixes.is_empty() {
            let taken = values.clone();
            for mix in &self.inner.0.mixes {
                matmul(
                    self.view_mut(&mut values, height, depth)
                        .subcols_mut(mix.start, mix.matrix.side()),
                    Accum::Replace,
                    self.view(&taken, height, depth)
                        .subcols(mix.start, mix.matrix.side()),
                    mix.matrix.view(),
                    1.0,
                    Par::rayon(0),
                );
            }
        }
        self.store(&tile, &values, out);
    }

    /// The tile's taken values, in the source's memory order.
    fn load(&self, tile: &Range<usize>, source: &[u8]) -> Vec<f64> {
        // Constant in each arm, so that the conversion is compiled for each type.
        match self.layout.element {
            Element::Bf16 => self.load_as(Element::Bf16, tile, source),
            Element::F16 => self.load_as(Element::F16, tile, source),
            _ => self.load_as(Element::F32, tile, source),
        }
    }

    #[inline(always)]
    fn load_as(&self, element: Element, tile: &Range<usize>, source: &[u8]) -> Vec<f64> {
        let (outer, outer_factors) = &self.outer;
        let (inner, inner_factors) = &self.inner;
        let columns = self.layout.columns;
        let width = element.width().unwrap_or(1);
        let at = |row: usize, column: usize| {
            let cell = (row * columns + column) * width;
            widen(element, &source[cell..cell + width])
        };
        let mut values = vec![0.0; tile.len() * inner_factors.len()];
        match self.orientation {
            Orientation::ByRows => values
                .par_chunks_mut(inner_factors.len().max(1))
                .zip(tile.clone())
                .for_each(|(line, o)| {
                    let row = outer.source(o);
                    for (k, value) in line.iter_mut().enumerate() {
                        *value = at(row, inner.source(k)) * (outer_factors[o] * inner_factors[k]);
                    }
                }),
            Orientation::ByColumns => values
                .par_chunks_mut(tile.len().max(1))
                .enumerate()
                .for_each(|(k, line)| {
                    let row = inner.source(k);
                    for (value, o) in line.iter_mut().zip(tile.clone()) {
                        *value = at(row, outer.source(o)) * (outer_factors[o] * inner_factors[k]);
                    }
                }),
        }
        values
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
