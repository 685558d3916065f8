//! Rearrangement of bits: positions move, signs flip, powers of two scale.

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

trait Bits: Copy + Eq + Send + Sync + BitXor<Output = Self> + BitAnd<Output = Self> + 'static {
    const ZERO: Self;
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
            const ZERO: Self = 0;
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
    let picks = Picks::new(columns, width);
    let factors = Factors::new(layout.element, rows, columns);
    let block = ROWS_AT_ONCE * width * N;
    out.par_chunks_mut(block.max(1))
        .with_min_len(CHUNK_BYTES.div_ceil(block.max(1)).max(1))
        .enumerate()
        .for_each(|(k, chunk)| {
            let first = k * ROWS_AT_ONCE;
            let (cells, _) = chunk.as_chunks_mut::<N>();
            let row = |r: usize| &source[rows.source(r) * width..][..width];
            let all_plain = picks.zeros == Zero::Follow
                && (first..first + ROWS_AT_ONCE).all(|r| zero_rule(rows, r) == Zero::Follow);
            match cells.as_chunks_mut::<1>().0.len() == ROWS_AT_ONCE * width && all_plain {
                true if picks.order.is_some() => {
                    let sources = std::array::from_fn(|j| row(first + j));
                    let flips = std::array::from_fn(|j| mask::<B>(flip(rows, first + j)));
                    gather_rows::<B, N>(&picks, sources, flips, cells, width);
                }
                _ => {
                    for (j, cells) in cells.chunks_exact_mut(width).enumerate() {
                        let r = first + j;
                        let partner = match zero_rule(rows, r) {
                            Zero::Partner { index, .. } => {
                                &source[index as usize * width..][..width]
                            }
                            _ => row(r),
                        };
                        gather_row::<B, N>(&picks, rows, r, row(r), partner, cells);
                    }
                }
            }
            if let Some(factors) = &factors {
                for (j, bytes) in chunk.chunks_exact_mut(width * N).enumerate() {
                    factors.scale(layout.element, rows.power(first + j), bytes);
                }
            }
        });
}

/// Four rows through one column order, so that each index is loaded once.
#[inline(always)]
fn gather_rows<B: LittleEndian<N>, const N: usize>(
    picks: &Picks,
    sources: [&[[u8; N]]; ROWS_AT_ONCE],
    flips: [B; ROWS_AT_ONCE],
    cells: &mut [[u8; N]],
    width: usize,
) {
    let Some(order) = &picks.order else { return };
    let (a, rest) = cells.split_at_mut(width);
    let (b, rest) = rest.split_at_mut(width);
    let (c, d) = rest.split_at_mut(width);
    let targets = a.iter_mut().zip(b).zip(c).zip(d);
    for (pick, (((a, b), c), d)) in order.iter().zip(targets) {
        let at = (pick & INDEX) as usize;
        let sign = mask::<B>(pick & FLIP != 0);
        let take = |j: usize| (B::load(sources[j][at]) ^ (flips[j] ^ sign)).store();
        *a = take(0);
        *b = take(1);
        *c = take(2);
        *d = take(3);
    }
}

fn gather_row<B: LittleEndian<N>, const N: usize>(
    picks: &Picks,
    rows: &Lane,
    r: usize,
    source: &[[u8; N]],
    partner: &[[u8; N]],
    cells: &mut [[u8; N]],
) {
    let flip = mask::<B>(flip(rows, r));
    let rule = zero_rule(rows, r);
    let Some(order) = &picks.order else {
        if rule == Zero::Follow && picks.zeros == Zero::Follow && flip == B::ZERO {
            return cells.copy_from_slice(source);
        }
        return each(
            cells,
            source.iter().zip(partner).map(|(v, p)| {
                let (value, partner) = (B::load(*v), B::load(*p));
                settle(value ^ flip, partner, rule, picks.zeros, flip).store()
            }),
        );
    };
    each(
        cells,
        order.iter().map(|pick| {
            let at = (pick & INDEX) as usize;
            let sign = mask::<B>(pick & FLIP != 0);
            let value = B::load(source[at]) ^ sign ^ flip;
            settle(value, B::load(partner[at]) ^ sign, rule, picks.zeros, flip).store()
        }),
    );
}

fn each<T>(cells: &mut [T], values: impl Iterator<Item = T>) {
    for (cell, value) in cells.iter_mut().zip(values) {
        *cell = value;
    }
}

/// The sign of a zero, as the reference's arithmetic leaves it (spec: section 3).
#[inline(always)]
fn settle<B: Bits>(value: B, partner: B, row: Zero, column: Zero, row_flip: B) -> B {
    if value & B::REST != B::ZERO {
        return value;
    }
    match (row, column) {
        (Zero::Follow, Zero::Follow) => value,
        (Zero::Partner { flip, .. }, _) => value & (partner ^ mask::<B>(flip)),
        (Zero::Positive, _) => B::ZERO,
        (Zero::Follow, _) => row_flip,
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

/// A column order: the source position in the low 31 bits, the flip in the top one.
struct Picks {
    order: Option<Vec<u32>>,
    zeros: Zero,
}

impl Picks {
    fn new(columns: &Lane, width: usize) -> Self {
        let order = (!columns.is_identity()).then(|| {
            (0..width)
                .map(|c| columns.source(c) as u32 | if flip(columns, c) { FLIP } else { 0 })
                .collect()
        });
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
    if flip { B::TOP } else { B::ZERO }
}

const INDEX: u32 = FLIP - 1;
const FLIP: u32 = 1 << 31;
const ROWS_AT_ONCE: usize = 4;
const CHUNK_BYTES: usize = 128 << 10;
