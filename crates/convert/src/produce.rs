//! Tensor bytes as the container holds them: read, permuted, widened, quantized.

use checkpoint::{TensorInfo, TensorSource};
use jlm::{Container, DType, PlaneBytesMut, Planes, Sheet, Span, TensorEntry};

use crate::error::ConvertError;

/// How a tensor's bytes come to be.
#[derive(Debug)]
pub(crate) struct Recipe {
    source: Source,
    /// Type of the source's values.
    stored: DType,
    /// Heads whose rows are permuted for interleaved rotary pairs.
    heads: Option<u64>,
}

/// Bytes of a GGUF file, by absolute offset.
pub trait BlockSource: Sync {
    /// Fills `out` with the file's bytes from `offset` on.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()>;
}

/// What is converted.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    Checkpoint(&'a dyn TensorSource),
    Gguf(&'a dyn BlockSource),
}

impl Origin<'_> {
    /// Reads a whole sheet as the source holds it.
    fn read(&self, source: &Source, sheet: u64, out: &mut [u8]) -> Result<(), ConvertError> {
        let at = sheet as usize;
        match (self, source) {
            (_, Source::Computed(bytes)) => out.copy_from_slice(bytes),
            (Self::Checkpoint(source), Source::Tensor(name)) => source.read(name, out)?,
            (Self::Checkpoint(source), Source::Bank(names)) => source.read(&names[at], out)?,
            (Self::Gguf(source), Source::Sheets(offsets)) => source
                .read_at(offsets[at], out)
                .map_err(ConvertError::Read)?,
            _ => unreachable!("a plan's sources are all of its origin's kind"),
        }
        Ok(())
    }
}

/// Where a tensor's values come from.
#[derive(Debug)]
pub(crate) enum Source {
    /// Offsets of the sheets in a GGUF file.
    Sheets(Vec<u64>),
    /// A tensor of the checkpoint.
    Tensor(String),
    /// A bank: a tensor of the checkpoint for each expert.
    Bank(Vec<String>),
    /// Bytes computed from the config.
    Computed(Vec<u8>),
}

impl Recipe {
    pub(crate) const fn new(source: Source, stored: DType, heads: Option<u64>) -> Self {
        Self {
            source,
            stored,
            heads,
        }
    }
}

/// Produces every plane that lies in `span` into `out`, which holds that span's bytes.
pub(crate) fn write_span(
    origin: Origin<'_>,
    container: &Container,
    recipes: &[Recipe],
    span: Span,
    out: &mut [u8],
) -> Result<(), ConvertError> {
    out.fill(0);
    for (entry, recipe) in container.tensors().iter().zip(recipes) {
        for sheet in 0..entry.sheets() {
            let Some(planes) = container.sheet(entry, sheet) else {
                break;
            };
            if span.contains(planes.qs) {
                write_sheet(origin, entry, recipe, sheet, planes, span, out)?;
            }
        }
    }
    Ok(())
}

/// Produces the planes of one sheet into `out`, back to back.
pub(crate) fn write_planes(
    origin: Origin<'_>,
    entry: &TensorEntry,
    recipe: &Recipe,
    sheet: u64,
    planes: Planes,
    out: &mut [u8],
) -> Result<(), ConvertError> {
    let [qs, d, sc] = planes.as_array().map(|plane| plane.length);
    let together = Planes {
        qs: Span::new(0, qs),
        d: Span::new(qs, d),
        sc: Span::new(qs + d, sc),
    };
    out.fill(0);
    let span = Span::new(0, out.len() as u64);
    write_sheet(origin, entry, recipe, sheet, together, span, out)
}

fn write_sheet(
    origin: Origin<'_>,
    entry: &TensorEntry,
    recipe: &Recipe,
    sheet: u64,
    planes: Planes,
    span: Span,
    out: &mut [u8],
) -> Result<(), ConvertError> {
    let place = |plane: Span| {
        let from = (plane.offset - span.offset) as usize;
        from..from + plane.length as usize
    };
    let (k, rows) = (entry.k() as usize, entry.rows() as usize);
    let verbatim = recipe.stored == entry.dtype && recipe.heads.is_none();
    if verbatim && entry.dtype.packed().is_none() {
        return origin.read(&recipe.source, sheet, &mut out[place(planes.qs)]);
    }
    let source_len = recipe.stored.source_bytes(entry.k(), entry.rows());
    let mut values = vec![0; source_len.unwrap_or(0) as usize];
    origin.read(&recipe.source, sheet, &mut values)?;
    if verbatim {
        let layout = Sheet {
            dtype: entry.dtype,
            k,
            rows,
        };
        let packed = layout.pack(&values, three_planes(out, planes, span));
        return packed.map_err(|error| ConvertError::tensor(&entry.name, error.to_string()));
    }
    if let Some(heads) = recipe.heads {
        // A bias is a row of one element for each output.
        let outputs = if entry.dims.len() == 1 { k } else { rows };
        values = interleave(&values, outputs, heads as usize);
    }
    match entry.dtype {
        DType::Q8 => {
            let mut floats = vec![0.0; k * rows];
            jlm::floats(recipe.stored, &values, &mut floats);
            drop(values);
            let planes = three_planes(out, planes, span);
            jlm::quantize_q8_sheet(&floats, k, rows, planes)
                .map_err(|error| ConvertError::tensor(&entry.name, error.to_string()))
        }
        stored if stored == recipe.stored => {
            out[place(planes.qs)].copy_from_slice(&values);
            Ok(())
        }
        _ => {
            widen(&values, &mut out[place(planes.qs)]);
            Ok(())
        }
    }
}

/// bf16 to f32: the same value, sixteen zero bits more.
fn widen(halves: &[u8], out: &mut [u8]) {
    let halves = halves.as_chunks::<2>().0;
    for (wide, half) in out.as_chunks_mut::<4>().0.iter_mut().zip(halves) {
        *wide = [0, 0, half[0], half[1]];
    }
}

/// Moves row `j * hd/2 + i` of every head to row `2i + j`, so that pairs (i, i + hd/2) become
/// (2i, 2i + 1).
fn interleave(bytes: &[u8], rows: usize, heads: usize) -> Vec<u8> {
    let row = bytes.len() / rows;
    let half = rows / heads / 2;
    let mut out = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(2 * half * row) {
        for i in 0..half {
            for j in 0..2 {
                let from = (j * half + i) * row;
                out.extend_from_slice(&head[from..from + row]);
            }
        }
    }
    out
}

/// The planes of a sheet in a buffer that holds `span`. They follow one another; those that the
/// type does not have are empty.
fn three_planes(out: &mut [u8], planes: Planes, span: Span) -> PlaneBytesMut<'_> {
    let mut rest = out;
    let mut at = span.offset;
    let [qs, d, sc] = planes.as_array().map(|plane| {
        if plane.length == 0 {
            return &mut [][..];
        }
        let (_, from) = std::mem::take(&mut rest).split_at_mut((plane.offset - at) as usize);
        let (bytes, after) = from.split_at_mut(plane.length as usize);
        rest = after;
        at = plane.offset + plane.length;
        bytes
    });
    PlaneBytesMut { qs, d, sc }
}

/// Whether two tensors of the checkpoint have the same type, shape and bytes.
pub(crate) fn equal(
    source: &dyn TensorSource,
    left: &TensorInfo,
    right: &TensorInfo,
) -> Result<bool, ConvertError> {
    if left.dtype != right.dtype || left.shape != right.shape {
        return Ok(false);
    }
    let piece = left.bytes.min(COMPARED) as usize;
    let (mut a, mut b) = (vec![0; piece], vec![0; piece]);
    let mut at = 0;
    while at < left.bytes {
        let length = (left.bytes - at).min(COMPARED) as usize;
        source.read_at(&left.name, at, &mut a[..length])?;
        source.read_at(&right.name, at, &mut b[..length])?;
        if a[..length] != b[..length] {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}

/// Bytes of two tensors that are compared at a time.
const COMPARED: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_head_are_interleaved() {
        // Two heads of four rows, one byte a row.
        let rows = [0, 1, 2, 3, 10, 11, 12, 13];
        assert_eq!(interleave(&rows, 8, 2), [0, 2, 1, 3, 10, 12, 11, 13]);
    }

    #[test]
    fn widening_keeps_the_value() {
        let mut out = [0xff; 8];
        widen(&half::bf16::from_f32(-1.5).to_le_bytes(), &mut out[..4]);
        assert_eq!(f32::from_le_bytes([out[0], out[1], out[2], out[3]]), -1.5);
    }
}
