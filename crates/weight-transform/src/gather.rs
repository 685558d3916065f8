//! Rearrangement of bits: positions move, signs flip, powers of two scale.

use std::array::from_fn;
use std::ops::{BitAnd, BitXor};

use rayon::prelude::*;

use crate::element::{Bf16Bits, Element, F16Bits, Scalable};
use crate::lane::{Lane, Zero};

/// A matrix of one element type, row-major; `run` neighbours move together along a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub element: Element,
    pub rows: usize,
    /// Elements in a row.
    pub columns: usize,
    /// Whether each byte holds two 4-bit codes; `columns` then counts codes.
    pub packed: bool,
}

impl Layout {
    /// Bytes of one row.
    pub(crate) fn row_bytes(&self) -> usize {
        if self.packed {
            self.columns / 2
        } else {
            self.columns * self.element.width().unwrap_or(1)
        }
    }
}

/// Writes `out[r][c] = source[rows[r]][columns[c]]` with signs, zeros and exponents as the lanes
/// say. Both slices hold `layout.rows` rows.
pub(crate) fn gather(layout: &Layout, rows: &Lane, columns: &Lane, source: &[u8], out: &mut [u8]) {
    if rows.ones || columns.ones {
        return fill_ones(layout.element, out);
    }
    if layout.packed {
        return gather_packed(layout, rows, columns, source, out);
    }
    match layout.element.width() {
        Some(1) => gather_bits::<u8, 1>(layout, rows, columns, source, out),
        Some(2) => gather_bits::<u16, 2>(layout, rows, columns, source, out),
        Some(4) => gather_bits::<u32, 4>(layout, rows, columns, source, out),
        _ => gather_bits::<u64, 8>(layout, rows, columns, source, out),
    }
}

trait Bits:
    Copy + Default + Eq + Send + Sync + BitXor<Output = Self> + BitAnd<Output = Self> + 'static
{
    const TOP: Self;
    const REST: Self;
}

trait LittleEndian<const N: usize>: Bits {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
}

macro_rules! bits {
    ($($type:ty, $width:literal);*) => {$(
        impl Bits for $type {
            const TOP: Self = 1 << (<$type>::BITS - 1);
            const REST: Self = !Self::TOP;
        }
        impl LittleEndian<$width> for $type {
            #[inline(always)]
            fn load(bytes: [u8; $width]) -> Self {
                <$type>::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn store(self) -> [u8; $width] {
                self.to_le_bytes()
            }
        }
    )*};
}

bits!(u8, 1; u16, 2; u32, 4; u64, 8);

fn gather_bits<B: LittleEndian<N>, const N: usize>(
    layout: &Layout,
    rows: &Lane,
    columns: &Lane,
    source: &[u8],
    out: &mut [u8],
) {
    let (source, _) = source.as_chunks::<N>();
    let width = layout.columns.max(1);
    let picks = Picks::<B>::new(columns, width);
    let factors = Factors::new(layout.element, rows, columns);
    let together = if width * N <= NARROW_ROW { MANY } else { FEW };
    out.par_chunks_mut(together * width * N)
        .with_min_len((CHUNK_BYTES / (together * width * N)).max(1))
        .enumerate()
        .for_each_init(Windows::<B>::new, |windows, (k, chunk)| {
            let first = k * together;
            let (cells, _) = chunk.as_chunks_mut::<N>();
            let row = |j: usize| &source[rows.source(first + j) * width..][..width];
            let flipped = |j: usize| mask::<B>(flip(rows, first + j));
            match (&picks.order, cells.len() / width) {
                (Order::Windowed(order), MANY) => {
                    let (sources, flips) = (from_fn(row), from_fn(flipped));
                    windows.gather::<N, MANY>(order, sources, flips, cells);
                }
                (Order::Windowed(order), FEW) => {
                    let (sources, flips) = (from_fn(row), from_fn(flipped));
                    windows.gather::<N, FEW>(order, sources, flips, cells);
                }
                (order, _) => {
                    for (j, cells) in cells.chunks_exact_mut(width).enumerate() {
                        match order {
                            Order::Windowed(order) => {
                                windows.gather::<N, 1>(order, [row(j)], [flipped(j)], cells);
                            }
                            Order::Wide => wide_row(columns, row(j), flipped(j), cells),
                            Order::Identity => copy_row(row(j), flipped(j), cells),
                        }
                    }
                }
            }
            for (j, cells) in cells.chunks_exact_mut(width).enumerate() {
                let rule = zero_rule(rows, first + j);
                if rule != Zero::Follow || picks.zeros != Zero::Follow {
                    let row_flip = flipped(j);
                    settle_zeros(source, width, columns, rule, row_flip, cells);
                }
            }
            if let Some(factors) = &factors {
                for (j, bytes) in chunk.chunks_exact_mut(width * N).enumerate() {
                    factors.scale(layout.element, rows.power(first + j), bytes);
                }
            }
        });
}

/// Copies of source rows that any 16-bit index lies in, so that a gather needs no bounds check.
struct Windows<B>(Vec<Box<[B; WINDOW]>>);

impl<B: Bits> Windows<B> {
    fn new() -> Self {
        Self(Vec::new())
    }

    /// Gathers `R` rows through one column order, so that each index is loaded once for all.
    #[inline(always)]
    fn gather<const N: usize, const R: usize>(
        &mut self,
        order: &[(u16, B)],
        sources: [&[[u8; N]]; R],
        flips: [B; R],
        cells: &mut [[u8; N]],
    ) where
        B: LittleEndian<N>,
    {
        while self.0.len() < R {
            let window = vec![B::default(); WINDOW].into_boxed_slice();
            self.0.extend(window.try_into().ok());
        }
        for (window, source) in self.0.iter_mut().zip(sources) {
            for (value, bytes) in window.iter_mut().zip(source) {
                *value = B::load(*bytes);
            }
        }
        let windows: [&[B; WINDOW]; R] = from_fn(|j| &*self.0[j]);
        let mut rest = cells;
        let targets: [&mut [[u8; N]]; R] = from_fn(|_| {
            let (own, after) = std::mem::take(&mut rest).split_at_mut(order.len());
            rest = after;
            own
        });
        for (c, (at, sign)) in order.iter().enumerate() {
            for j in 0..R {
                let value = windows[j][usize::from(*at)] ^ (*sign ^ flips[j]);
                targets[j][c] = value.store();
            }
        }
    }
}

fn wide_row<B: LittleEndian<N>, const N: usize>(
    columns: &Lane,
    source: &[[u8; N]],
    row_flip: B,
    cells: &mut [[u8; N]],
) {
    for (c, cell) in cells.iter_mut().enumerate() {
        let sign = mask::<B>(flip(columns, c)) ^ row_flip;
        *cell = (B::load(source[columns.source(c)]) ^ sign).store();
    }
}

fn copy_row<B: LittleEndian<N>, const N: usize>(
    source: &[[u8; N]],
    row_flip: B,
    cells: &mut [[u8; N]],
) {
    if row_flip == B::default() {
        return cells.copy_from_slice(source);
    }
    for (cell, bytes) in cells.iter_mut().zip(source) {
        *cell = (B::load(*bytes) ^ row_flip).store();
    }
}

/// Gives the zeros of a gathered row the signs that the reference's arithmetic leaves
/// (spec: section 3). Rows seldom hold any, so they are looked for a stretch at a time.
fn settle_zeros<B: LittleEndian<N>, const N: usize>(
    source: &[[u8; N]],
    width: usize,
    columns: &Lane,
    rule: Zero,
    row_flip: B,
    cells: &mut [[u8; N]],
) {
    let is_zero = |cell: &[u8; N]| B::load(*cell) & B::REST == B::default();
    for (k, stretch) in cells.chunks_mut(STRETCH).enumerate() {
        if !stretch.iter().fold(false, |any, cell| any | is_zero(cell)) {
            continue;
        }
        for (at, cell) in stretch
            .iter_mut()
            .enumerate()
            .filter(|(_, cell)| is_zero(cell))
        {
            let c = k * STRETCH + at;
            let settled = match rule {
                Zero::Partner { index, flip: minus } => {
                    let partner = B::load(source[index as usize * width + columns.source(c)]);
                    let sign = mask::<B>(flip(columns, c)) ^ mask::<B>(minus);
                    B::load(*cell) & (partner ^ sign)
                }
                Zero::Positive => B::default(),
                Zero::Follow => row_flip,
            };
            *cell = settled.store();
        }
    }
}

fn gather_packed(layout: &Layout, rows: &Lane, columns: &Lane, source: &[u8], out: &mut [u8]) {
    let width = layout.row_bytes().max(1);
    let nibble = |row: &[u8], c: usize| {
        let at = columns.source(c);
        let code = row[at / 2] >> (4 * (at % 2)) & 0xF;
        code ^ if columns.flip.get(c) == Some(&true) {
            0x8
        } else {
            0
        }
    };
    out.par_chunks_mut(width)
        .with_min_len(CHUNK_BYTES.div_ceil(width))
        .enumerate()
        .for_each(|(r, cells)| {
            let row = &source[rows.source(r) * width..][..width];
            let flip = if flip(rows, r) { 0x88 } else { 0 };
            for (at, cell) in cells.iter_mut().enumerate() {
                *cell = (nibble(row, 2 * at) | nibble(row, 2 * at + 1) << 4) ^ flip;
            }
        });
}

fn fill_ones(element: Element, out: &mut [u8]) {
    let width = element.width().unwrap_or(1);
    for cell in out.chunks_exact_mut(width) {
        crate::element::narrow(element, 1.0, cell);
    }
}

/// A column order and the sign that each column gets.
struct Picks<B> {
    order: Order<B>,
    zeros: Zero,
}

enum Order<B> {
    Identity,
    /// Every index fits a window.
    Windowed(Vec<(u16, B)>),
    /// Rows longer than a window.
    Wide,
}

impl<B: Bits> Picks<B> {
    fn new(columns: &Lane, width: usize) -> Self {
        let pick = |c: usize| (columns.source(c) as u16, mask(flip(columns, c)));
        let order = if columns.is_identity() {
            Order::Identity
        } else if width <= WINDOW {
            Order::Windowed((0..width).map(pick).collect())
        } else {
            Order::Wide
        };
        Self {
            order,
            zeros: columns.zeros.first().copied().unwrap_or(Zero::Follow),
        }
    }
}

/// Powers of two to multiply by, where any differs from 1.
struct Factors {
    columns: Option<Vec<f32>>,
}

impl Factors {
    fn new(element: Element, rows: &Lane, columns: &Lane) -> Option<Self> {
        let scaled = |lane: &Lane| lane.exponent.iter().any(|power| *power != 0);
        if !element.is_dense() || !(scaled(rows) || scaled(columns)) {
            return None;
        }
        let columns =
            scaled(columns).then(|| columns.exponent.iter().map(|power| exp2(*power)).collect());
        Some(Self { columns })
    }

    fn scale(&self, element: Element, power: i8, bytes: &mut [u8]) {
        let row = exp2(power);
        match element {
            Element::Bf16 => self.scale_cells(row, bytes.as_chunks_mut::<2>().0, |c, f| {
                Bf16Bits(u16::from_le_bytes(c)).times(f).0.to_le_bytes()
            }),
            Element::F16 => self.scale_cells(row, bytes.as_chunks_mut::<2>().0, |c, f| {
                F16Bits(u16::from_le_bytes(c)).times(f).0.to_le_bytes()
            }),
            Element::F32 => self.scale_cells(row, bytes.as_chunks_mut::<4>().0, |c, f| {
                f32::from_le_bytes(c).times(f).to_le_bytes()
            }),
            _ => {}
        }
    }

    #[inline(always)]
    fn scale_cells<const N: usize>(
        &self,
        row: f32,
        cells: &mut [[u8; N]],
        times: impl Fn([u8; N], f32) -> [u8; N],
    ) {
        match &self.columns {
            Some(columns) => {
                for (cell, column) in cells.iter_mut().zip(columns) {
                    *cell = times(*cell, row * column);
                }
            }
            None if row == 1.0 => {}
            None => cells.iter_mut().for_each(|cell| *cell = times(*cell, row)),
        }
    }
}

/// `2^power`.
pub(crate) fn exp2(power: i8) -> f32 {
    f32::from(power).exp2()
}

fn flip(lane: &Lane, i: usize) -> bool {
    lane.flip.get(i).copied().unwrap_or(false)
}

fn zero_rule(lane: &Lane, i: usize) -> Zero {
    lane.zeros.get(i).copied().unwrap_or(Zero::Follow)
}

#[inline(always)]
fn mask<B: Bits>(flip: bool) -> B {
    if flip { B::TOP } else { B::default() }
}

/// As many as a 16-bit index tells apart.
const WINDOW: usize = 1 << 16;
/// Rows gathered together where they fit the first-level cache, and where they do not.
const MANY: usize = 4;
const FEW: usize = 2;
const NARROW_ROW: usize = 8 << 10;
const STRETCH: usize = 128;
const CHUNK_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Every row and column rule at once, over widths that take each path.
    #[test]
    fn gathers_equal_the_arithmetic_of_the_specification() {
        for (rows, columns) in [(1, 1), (3, 5), (4, 64), (9, 5000), (6, 5000), (3, 70_000)] {
            let source = values(rows * columns);
            let bytes: Vec<u8> = source.iter().flat_map(|v| v.to_le_bytes()).collect();
            for exponents in [false, true] {
                for rule in 0..4 {
                    let row = lane(rows, 3, exponents, rule);
                    let column = lane(columns, 7, exponents, if rule == 3 { 1 } else { 0 });
                    let layout = Layout {
                        element: Element::Bf16,
                        rows,
                        columns,
                        packed: false,
                    };
                    let mut out = vec![0; bytes.len()];
                    gather(&layout, &row, &column, &bytes, &mut out);
                    for (at, cell) in out.as_chunks::<2>().0.iter().enumerate() {
                        let expected = one(&source, columns, &row, &column, at);
                        let found = bf16::from_le_bytes(*cell);
                        assert_eq!(
                            found.to_bits(),
                            expected.to_bits(),
                            "{rows}x{columns} rule {rule} at {at}: {found} for {expected}"
                        );
                    }
                }
            }
        }
    }

    /// One output value in float64, rounded to float32 and then to bfloat16.
    fn one(source: &[bf16], width: usize, row: &Lane, column: &Lane, at: usize) -> bf16 {
        let (r, c) = (at / width, at % width);
        let read = |r: usize| source[r * width + column.source(c)].to_f64() * column.sign(c);
        let mut value = read(row.source(r));
        if zero_rule(column, c) == Zero::Positive {
            value += 0.0;
        }
        value *= row.sign(r);
        match zero_rule(row, r) {
            Zero::Follow => {}
            Zero::Positive => value += 0.0,
            Zero::Partner { index, flip } => {
                let partner = read(index as usize) * 0.0;
                value += if flip { -partner } else { partner };
            }
        }
        let power = f64::from(row.power(r)) + f64::from(column.power(c));
        bf16::from_f32((value * power.exp2()) as f32)
    }

    /// A shifted order with some flips; rule 1 is positive zeros, rule 2 partners, 3 follows.
    fn lane(length: usize, step: usize, exponents: bool, rule: usize) -> Lane {
        let n = length as u32;
        let zero = |i: u32| match rule {
            1 => Zero::Positive,
            2 => Zero::Partner {
                index: (i + 1) % n,
                flip: i.is_multiple_of(3),
            },
            _ => Zero::Follow,
        };
        Lane {
            index: (0..n).map(|i| (i + step as u32) % n).collect(),
            flip: (0..n).map(|i| i % 5 < 2).collect(),
            exponent: if exponents {
                (0..n).map(|i| (i % 5) as i8 - 2).collect()
            } else {
                Vec::new()
            },
            zeros: (0..n).map(zero).collect(),
            ..Lane::default()
        }
    }

    /// Ordinary values, zeros of both signs and subnormals.
    fn values(count: usize) -> Vec<bf16> {
        let bits = (0..count).map(|i| match i % 11 {
            0 => 0x0000,
            1 => 0x8000,
            2 => 0x0001 + (i as u16 & 0x7F),
            _ => (i as u16).wrapping_mul(40_503) & 0xBFFF,
        });
        bits.map(bf16::from_bits).collect()
    }
}
