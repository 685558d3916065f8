//! Scales of quantized weights, which follow the weight's rearrangement.

use std::ops::Range;

use crate::element::{Element, narrow, widen};
use crate::lane::Lane;

/// How a scale tensor covers its weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Coverage {
    /// One scale.
    Whole,
    /// One scale a row.
    Rows,
    /// One scale for each block of this many rows and columns; edge blocks may be partial.
    Blocks(usize, usize),
}

/// Rearranges a scale: the weight's lanes applied to the scale expanded to the weight's shape,
/// in absolute value, one entry kept for each block. `None` where a block would not be constant.
///
/// Scales that are not floats (E8M0 bytes) move as they are.
pub(crate) fn rearrange(
    element: Element,
    coverage: Coverage,
    shape: (usize, usize),
    rows: &Lane,
    columns: &Lane,
    source: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let width = element.width()?;
    let (row_block, column_block) = match coverage {
        Coverage::Whole => (shape.0, shape.1),
        Coverage::Rows => (1, shape.1),
        Coverage::Blocks(rows, columns) => (rows, columns),
    };
    let row_picks = picks(rows, shape.0, row_block)?;
    let column_picks = picks(columns, shape.1, column_block)?;
    let line = column_picks.len();
    for (r, (row, row_power)) in row_picks.iter().enumerate() {
        for (c, (column, column_power)) in column_picks.iter().enumerate() {
            let from = (row * line + column) * width;
            let to = (r * line + c) * width;
            let (cell, target) = (
                source.get(from..from + width)?,
                out.get_mut(to..to + width)?,
            );
            if element.is_dense() {
                let power = f64::from(row_power + column_power).exp2();
                narrow(element, (widen(element, cell) * power).abs(), target);
            } else {
                target.copy_from_slice(cell);
            }
        }
    }
    Some(())
}

/// For each block of output positions, the block that they come from and their exponent; `None`
/// where a block has several.
fn picks(lane: &Lane, length: usize, block: usize) -> Option<Vec<(usize, i8)>> {
    (0..length)
        .step_by(block.max(1))
        .map(|start| {
            let range: Range<usize> = start..(start + block).min(length);
            let of = |i: usize| (lane.source(i) / block, lane.power(i));
            let first = of(start);
            range.clone().all(|i| of(i) == first).then_some(first)
        })
        .collect()
}
