//! Rearrangement of bits: positions move, signs flip, powers of two scale.

use std::array::from_fn;
use std::ops::{BitAnd, BitXor};

use rayon::prelude::*;

use crate::block::Block;
use crate::element::{Bf16Bits, Element, F16Bits, Scalable};
use crate::lane::{Lane, Zero};
use crate::vector::{Native, Vector, fetch_to_write};

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
        Some(1) => gather_bits::<u8, 1, 16>(layout, rows, columns, source, out),
        Some(2) => gather_bits::<u16, 2, 8>(layout, rows, columns, source, out),
        Some(4) => gather_bits::<u32, 4, 4>(layout, rows, columns, source, out),
        _ => gather_bits::<u64, 8, 2>(layout, rows, columns, source, out),
    }
}

trait Bits:
    Copy + Default + Ord + Send + Sync + BitXor<Output = Self> + BitAnd<Output = Self> + 'static
{
    const TOP: Self;
    const REST: Self;

    /// `number * 2^shift`, negative ones in two's complement.
    fn shifted(number: i32, shift: u32) -> Self;
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
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
            fn shifted(number: i32, shift: u32) -> Self {
                (number as Self).wrapping_shl(shift)
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
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

/// `L` elements of `N` bytes fill a vector.
fn gather_bits<B: LittleEndian<N>, const N: usize, const L: usize>(
    layout: &Layout,
    rows: &Lane,
    columns: &Lane,
    source: &[u8],
    out: &mut [u8],
) {
    let width = layout.columns.max(1);
    let job = Job {
        rows,
        columns,
        source: source.as_chunks::<N>().0,
        width,
        element: layout.element,
        signs: (0..width).map(|c| mask::<B>(flip(columns, c))).collect(),
        zeros: columns.zeros.first().copied().unwrap_or(Zero::Follow),
        factors: Factors::new(layout.element, rows, columns),
    };
    if columns.is_identity() || width < L {
        job.each_row(out);
    } else {
        job.in_blocks::<Native, L>(out);
    }
}

/// A gather of elements of `N` bytes.
struct Job<'a, B, const N: usize> {
    rows: &'a Lane,
    columns: &'a Lane,
    source: &'a [[u8; N]],
    width: usize,
    element: Element,
    /// What each column's sign bit is turned by.
    signs: Vec<B>,
    /// The rule of every column.
    zeros: Zero,
    factors: Option<Factors<B>>,
}

impl<B: LittleEndian<N>, const N: usize> Job<'_, B, N> {
    fn in_blocks<V: Vector, const L: usize>(&self, out: &mut [u8]) {
        let width = self.width;
        let order: Vec<u32> = (0..width.next_multiple_of(L))
            .map(|c| self.columns.source(c.min(width - 1)) as u32)
            .collect();
        let last = (out.len() / (width * N)).saturating_sub(1);
        out.par_chunks_mut(L * width * N)
            .with_min_len((CHUNK_BYTES / (L * width * N)).max(1))
            .enumerate()
            .for_each_init(Block::<V>::new, |block, (k, chunk)| {
                let first = k * L;
                let (cells, _) = chunk.as_chunks_mut::<N>();
                let start = cells.as_ptr();
                block.gather::<N, L>(
                    from_fn(|j| self.source_row((first + j).min(last))),
                    &order,
                    |j, c| fetch_to_write(start.wrapping_add(j * width + c)),
                    |j, from, taken| {
                        if let Some(row) = cells.get_mut(j * width..(j + 1) * width) {
                            let to = (from + taken.len()).min(width);
                            self.finish(first + j, from, taken, &mut row[from..to]);
                        }
                    },
                );
            });
    }

    /// For columns that keep their places, and few enough that vectors do not fit.
    fn each_row(&self, out: &mut [u8]) {
        let width = self.width;
        let together = (CHUNK_BYTES / (width * N)).max(1);
        out.par_chunks_mut(together * width * N)
            .enumerate()
            .for_each_init(Vec::new, |taken, (k, chunk)| {
                let (cells, _) = chunk.as_chunks_mut::<N>();
                for (j, cells) in cells.chunks_exact_mut(width).enumerate() {
                    let source = self.source_row(k * together + j);
                    if self.columns.is_identity() {
                        self.finish(k * together + j, 0, source, cells);
                    } else {
                        taken.clear();
                        taken.extend((0..width).map(|c| source[self.columns.source(c)]));
                        self.finish(k * together + j, 0, taken, cells);
                    }
                }
            });
    }

    /// The row that output row `r` takes.
    fn source_row(&self, r: usize) -> &[[u8; N]] {
        &self.source[self.rows.source(r) * self.width..][..self.width]
    }

    /// Writes the columns of row `r` from `from` on, whose elements are taken already: signs,
    /// zeros and exponents.
    fn finish(&self, r: usize, from: usize, taken: &[[u8; N]], cells: &mut [[u8; N]]) {
        let row_flip = mask::<B>(flip(self.rows, r));
        let signs = &self.signs[from..from + cells.len()];
        if row_flip == B::default() && self.columns.flip.is_empty() {
            cells.copy_from_slice(&taken[..cells.len()]);
        } else {
            for ((cell, bytes), sign) in cells.iter_mut().zip(taken).zip(signs) {
                *cell = (B::load(*bytes) ^ (*sign ^ row_flip)).store();
            }
        }
        let rule = zero_rule(self.rows, r);
        if rule != Zero::Follow || self.zeros != Zero::Follow {
            self.settle_zeros(rule, row_flip, from, cells);
        }
        if let Some(factors) = &self.factors {
            factors.scale(self.element, self.rows.power(r), from, cells);
        }
    }

    /// Gives the zeros of a gathered row the signs that the reference's arithmetic leaves
    /// (spec: section 3). Rows seldom hold any, so they are looked for a stretch at a time.
    fn settle_zeros(&self, rule: Zero, row_flip: B, from: usize, cells: &mut [[u8; N]]) {
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
                let c = from + k * STRETCH + at;
                let settled = match rule {
                    Zero::Partner { index, flip: minus } => {
                        let at = index as usize * self.width + self.columns.source(c);
                        let sign = mask::<B>(flip(self.columns, c)) ^ mask::<B>(minus);
                        B::load(*cell) & (B::load(self.source[at]) ^ sign)
                    }
                    Zero::Positive => B::default(),
                    Zero::Follow => row_flip,
                };
                *cell = settled.store();
            }
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

/// Powers of two to multiply by, where any differs from 1.
struct Factors<B> {
    columns: Option<Columns<B>>,
    /// Bits of the mantissa.
    shift: u32,
    /// Magnitudes from `low` on and `span` in number only change in their exponent, whatever the
    /// power.
    low: B,
    span: B,
}

struct Columns<B> {
    factor: Vec<f32>,
    /// What is added to the bits.
    step: Vec<B>,
}

impl<B: Bits> Factors<B> {
    fn new(element: Element, rows: &Lane, columns: &Lane) -> Option<Self> {
        let most = |lane: &Lane| lane.exponent.iter().map(|power| power.unsigned_abs()).max();
        let bound = i32::from(most(rows).unwrap_or(0)) + i32::from(most(columns).unwrap_or(0));
        let (shift, special) = match element {
            Element::Bf16 => (7, 0xFF),
            Element::F16 => (10, 0x1F),
            Element::F32 => (23, 0xFF),
            _ => return None,
        };
        if bound == 0 {
            return None;
        }
        let scaled = columns.exponent.iter().any(|power| *power != 0);
        let columns = scaled.then(|| Columns {
            factor: columns.exponent.iter().map(|power| exp2(*power)).collect(),
            step: (columns.exponent.iter())
                .map(|power| B::shifted(i32::from(*power), shift))
                .collect(),
        });
        Some(Self {
            columns,
            shift,
            low: B::shifted(1 + bound, shift),
            span: B::shifted((special - 1 - 2 * bound).max(0), shift),
        })
    }

    /// Scales the columns of a row from `from` on.
    fn scale<const N: usize>(&self, element: Element, power: i8, from: usize, cells: &mut [[u8; N]])
    where
        B: LittleEndian<N>,
    {
        if power == 0 && self.columns.is_none() {
            return;
        }
        let row = B::shifted(i32::from(power), self.shift);
        let (whole, edge) = cells.as_chunks_mut::<SCALED>();
        let mut at = from;
        for cells in whole {
            let scaled = match &self.columns {
                Some(columns) => match columns.step[at..].first_chunk::<SCALED>() {
                    Some(steps) => self.stepped(cells, &steps.map(|step| row.plus(step))),
                    None => None,
                },
                None => self.stepped(cells, &[row; SCALED]),
            };
            match scaled {
                Some(scaled) => *cells = scaled,
                None => self.multiply(element, power, at, cells),
            }
            at += SCALED;
        }
        self.multiply(element, power, at, edge);
    }

    /// Adds to the exponents, where that is all there is to it; zeros have none.
    #[inline(always)]
    fn stepped<const N: usize>(
        &self,
        cells: &[[u8; N]; SCALED],
        steps: &[B; SCALED],
    ) -> Option<[[u8; N]; SCALED]>
    where
        B: LittleEndian<N>,
    {
        // Two loops without a branch or a running maximum, which compile to vectors everywhere.
        let zero = B::default();
        let usual = cells.iter().fold(true, |all, cell| {
            let magnitude = B::load(*cell) & B::REST;
            all & ((magnitude == zero) | (magnitude.minus(self.low) < self.span))
        });
        if !usual {
            return None;
        }
        let mut out = *cells;
        for (cell, step) in out.iter_mut().zip(steps) {
            let value = B::load(*cell);
            let any = B::shifted(i32::from(value & B::REST != zero), 0);
            *cell = value.plus(*step & zero.minus(any)).store();
        }
        Some(out)
    }

    fn multiply<const N: usize>(
        &self,
        element: Element,
        power: i8,
        from: usize,
        cells: &mut [[u8; N]],
    ) {
        let row = exp2(power);
        for (c, cell) in cells.iter_mut().enumerate() {
            let column = self
                .columns
                .as_ref()
                .map_or(1.0, |all| all.factor[from + c]);
            times(element, row * column, cell);
        }
    }
}

fn times(element: Element, factor: f32, cell: &mut [u8]) {
    match (element, cell) {
        (Element::Bf16, [a, b]) => {
            let bits = Bf16Bits(u16::from_le_bytes([*a, *b])).times(factor).0;
            [*a, *b] = bits.to_le_bytes();
        }
        (Element::F16, [a, b]) => {
            let bits = F16Bits(u16::from_le_bytes([*a, *b])).times(factor).0;
            [*a, *b] = bits.to_le_bytes();
        }
        (_, cell) => {
            if let Some(bytes) = cell.as_mut_array::<4>() {
                *bytes = f32::from_le_bytes(*bytes).times(factor).to_le_bytes();
            }
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

const STRETCH: usize = 128;
/// Values scaled together, all in one way.
const SCALED: usize = 64;
const CHUNK_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{narrow, widen};

    /// Every row and column rule at once, over widths that take each path.
    #[test]
    fn gathers_equal_the_arithmetic_of_the_specification() {
        for element in [Element::Bf16, Element::F16, Element::F32] {
            for (rows, columns) in SHAPES {
                let source = values(element, rows * columns);
                for exponents in [false, true] {
                    for rule in 0..4 {
                        let row = lane(rows, 3, exponents, rule);
                        let column = lane(columns, 7, exponents, if rule == 3 { 1 } else { 0 });
                        let out = gathered(element, rows, columns, &row, &column, &source);
                        let width = element.width().unwrap();
                        for (at, found) in out.chunks_exact(width).enumerate() {
                            let value = one(element, &source, columns, &row, &column, at);
                            let mut expected = vec![0; width];
                            narrow(element, value, &mut expected);
                            assert_eq!(
                                found, expected,
                                "{element:?} {rows}x{columns} rule {rule} at {at}: {value}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn other_types_move_and_flip() {
        for element in [Element::F8E4M3, Element::I64] {
            let width = element.width().unwrap();
            for (rows, columns) in SHAPES {
                let source: Vec<u8> = (0..rows * columns * width)
                    .map(|i| (i as u32).wrapping_mul(2_654_435_761).to_le_bytes()[2])
                    .collect();
                let (row, column) = (lane(rows, 3, true, 0), lane(columns, 7, true, 0));
                let out = gathered(element, rows, columns, &row, &column, &source);
                for (at, found) in out.chunks_exact(width).enumerate() {
                    let (r, c) = (at / columns, at % columns);
                    let from = (row.source(r) * columns + column.source(c)) * width;
                    let mut expected = source[from..from + width].to_vec();
                    if row.flip[r] != column.flip[c] {
                        expected[width - 1] ^= 0x80;
                    }
                    assert_eq!(found, expected, "{element:?} {rows}x{columns} at {at}");
                }
            }
        }
    }

    const SHAPES: [(usize, usize); 7] = [
        (1, 1),
        (3, 5),
        (4, 64),
        (9, 5000),
        (33, 131),
        (17, 16),
        (3, 70_000),
    ];

    fn gathered(
        element: Element,
        rows: usize,
        columns: usize,
        row: &Lane,
        column: &Lane,
        source: &[u8],
    ) -> Vec<u8> {
        let layout = Layout {
            element,
            rows,
            columns,
            packed: false,
        };
        let mut out = vec![0; source.len()];
        gather(&layout, row, column, source, &mut out);
        out
    }

    /// One output value in float64.
    fn one(
        element: Element,
        source: &[u8],
        width: usize,
        row: &Lane,
        column: &Lane,
        at: usize,
    ) -> f64 {
        let (r, c) = (at / width, at % width);
        let bytes = element.width().unwrap();
        let read = |r: usize| {
            let from = (r * width + column.source(c)) * bytes;
            widen(element, &source[from..from + bytes]) * column.sign(c)
        };
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
        value * power.exp2()
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

    /// Ordinary values, zeros of both signs, subnormals, and the smallest and the largest.
    fn values(element: Element, count: usize) -> Vec<u8> {
        let width = element.width().unwrap();
        let digits = match element {
            Element::Bf16 => 7,
            Element::F16 => 10,
            _ => 23,
        };
        let (top, one) = (1_u32 << (8 * width - 1), 1 << digits);
        let infinity = top - one;
        let bits = (0..count as u32).map(|i| match i % 11 {
            0 => 0,
            1 => top,
            2 => 1 + (i & 0x7F),
            3 if i % 3 == 0 => (i & 1) * top + (i % 7) * one + i % one,
            3 if i % 3 == 1 => (i & 1) * top + infinity - 1 - (i % 7) * one,
            _ => {
                let bits = i.wrapping_mul(2_654_435_761) >> (32 - 8 * width);
                if bits & infinity == infinity {
                    bits - one
                } else {
                    bits
                }
            }
        });
        bits.flat_map(|bits| bits.to_le_bytes().into_iter().take(width))
            .collect()
    }
}
