//! The tensor table.

use codec::{DecodeError, Fault, Reader, Writer};

use crate::codes::Role;
use crate::dtype::{DType, PlaneLens};
use crate::header::Version;

/// What identifies a tensor; its name is a label only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorKey {
    /// What the tensor is to the model.
    pub role: Role,
    /// Block (layer), or -1 for tensors of no block.
    pub block: i32,
    /// Expert for per-expert tensors, else -1.
    pub index: i32,
}

/// One tensor: what it is, its type and shape, and where its planes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// Identity.
    pub key: TensorKey,
    /// Type.
    pub dtype: DType,
    /// One to four dims, fastest first: `[k]`, `[k, rows]` or `[k, rows, sheets..]`.
    pub dims: Vec<u64>,
    /// Absolute offset of the payload plane (of expert 0 for a split bank).
    pub qs_off: u64,
    /// Absolute offset of the scale plane; where it would be, when the type has none.
    pub d_off: u64,
    /// Absolute offset of the sub-scale plane; where it would be, when the type has none.
    pub sc_off: u64,
    /// The source's name of the tensor.
    pub name: String,
}

impl TensorEntry {
    /// Elements of a row.
    #[must_use]
    pub fn k(&self) -> u64 {
        self.dims[0]
    }

    /// Rows of a sheet.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.dims.get(1).copied().unwrap_or(1)
    }

    /// Matrices of the tensor.
    #[must_use]
    pub fn sheets(&self) -> u64 {
        self.dims.iter().skip(2).product()
    }

    /// Values of the tensor.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }

    /// Unaligned plane lengths of one sheet; `None` when the type cannot hold the shape.
    #[must_use]
    pub fn sheet_planes(&self) -> Option<PlaneLens> {
        self.dtype.planes(self.k(), self.rows())
    }

    /// Unaligned plane lengths of all sheets back to back; `None` as for
    /// [`Self::sheet_planes`] or when a length does not fit 64 bits.
    #[must_use]
    pub fn planes(&self) -> Option<PlaneLens> {
        let sheet = self.sheet_planes()?;
        let sheets = self.sheets();
        Some(PlaneLens {
            qs: sheet.qs.checked_mul(sheets)?,
            d: sheet.d.checked_mul(sheets)?,
            sc: sheet.sc.checked_mul(sheets)?,
        })
    }

    /// Whether the tensor's experts lie on pages of their own.
    #[must_use]
    pub fn is_expert_paged(&self) -> bool {
        self.key.role.is_expert_bank() && self.key.block >= 0 && self.dims.len() >= 3
    }

    /// Whether the tensor lies in the dense region.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.key.block < 0 || self.key.role.is_expanded()
    }

    /// Whether the tensor lies on a page of its block.
    #[must_use]
    pub fn is_paged(&self) -> bool {
        !self.is_dense() && !self.is_expert_paged()
    }

    pub(crate) fn encoded_len(&self) -> u64 {
        FIXED_LEN + 8 * self.dims.len() as u64 + self.name.len() as u64
    }

    fn decode(reader: &mut Reader<'_>, version: Version) -> Result<Self, DecodeError> {
        let invalid = |reader: &Reader<'_>, field, reason: String| {
            reader.error(field, Fault::Invalid(reason))
        };
        let before = reader.clone();
        let code = reader.u16("role")?;
        let role = Role::from_code(code)
            .filter(|role| version >= Version::V28 || !role.is_since_28())
            .ok_or_else(|| invalid(&before, "role", format!("{code} is no role")))?;
        let (block, index) = (reader.i32("block")?, reader.i32("index")?);
        if block < -1 || index < -1 {
            return Err(invalid(&before, "block", "is below -1".to_owned()));
        }
        let before = reader.clone();
        let code = reader.u8("type")?;
        let dtype = DType::from_code(code)
            .ok_or_else(|| invalid(&before, "type", format!("{code} is no type")))?;
        let before = reader.clone();
        let ndim = usize::from(reader.u8("ndim")?);
        if !(1..=MAX_DIMS).contains(&ndim) {
            return Err(invalid(&before, "ndim", format!("{ndim} is not 1 to 4")));
        }
        let before = reader.clone();
        let dims = (0..ndim)
            .map(|_| reader.u64("dims"))
            .collect::<Result<Vec<_>, _>>()?;
        let elements = dims
            .iter()
            .try_fold(1u64, |product, dim| product.checked_mul(*dim))
            .filter(|product| (1..=MAX_ELEMENTS).contains(product));
        if elements.is_none() {
            return Err(invalid(
                &before,
                "dims",
                "hold no or too many values".to_owned(),
            ));
        }
        let (qs_off, d_off, sc_off) = (
            reader.u64("qsOff")?,
            reader.u64("dOff")?,
            reader.u64("scOff")?,
        );
        let length = usize::from(reader.u16("name")?);
        let name = reader
            .text("name", length, usize::from(u16::MAX))?
            .to_owned();
        Ok(Self {
            key: TensorKey { role, block, index },
            dtype,
            dims,
            qs_off,
            d_off,
            sc_off,
            name,
        })
    }

    fn encode(&self, out: &mut Writer) -> Option<()> {
        out.u16(self.key.role.code());
        out.i32(self.key.block);
        out.i32(self.key.index);
        out.u8(self.dtype.code());
        out.u8(u8::try_from(self.dims.len()).ok()?);
        self.dims.iter().for_each(|dim| out.u64(*dim));
        out.u64(self.qs_off);
        out.u64(self.d_off);
        out.u64(self.sc_off);
        out.u16(u16::try_from(self.name.len()).ok()?);
        out.bytes(self.name.as_bytes());
        Some(())
    }
}

/// Decodes exactly `count` entries.
pub(crate) fn decode(
    bytes: &[u8],
    count: u32,
    version: Version,
) -> Result<Vec<TensorEntry>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let needed = u64::from(count) * (FIXED_LEN + 8);
    if needed > bytes.len() as u64 {
        let left = bytes.len() as u64;
        return Err(reader.error("NTensors", Fault::Truncated { needed, left }));
    }
    let entries = (0..count)
        .map(|_| TensorEntry::decode(&mut reader, version))
        .collect::<Result<Vec<_>, _>>()?;
    reader.finish("tensor table")?;
    Ok(entries)
}

/// The table's bytes; `None` when a name or a dim list is too long for its length field.
pub(crate) fn encode(entries: &[TensorEntry]) -> Option<Vec<u8>> {
    let mut out = Writer::new();
    entries
        .iter()
        .try_for_each(|entry| entry.encode(&mut out))?;
    Some(out.into_bytes())
}

/// Bytes of an entry without its dims and its name's text.
const FIXED_LEN: u64 = 2 + 4 + 4 + 1 + 1 + 24 + 2;
const MAX_DIMS: usize = 4;
/// Keeps every plane length of every type far below 64 bits.
const MAX_ELEMENTS: u64 = 1 << 56;
