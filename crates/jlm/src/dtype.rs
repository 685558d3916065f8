//! Tensor types, and how many bytes their planes take.

/// How a tensor's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DType {
    /// 32-bit float.
    F32 = 1,
    /// 16-bit float.
    F16 = 2,
    /// Q4_0.
    Q4 = 3,
    /// Q8_0.
    Q8 = 4,
    /// Q3_K, at four bits.
    Q3S = 5,
    /// Q4_K.
    Q4S = 6,
    /// Q5_K.
    Q5S = 7,
    /// Q6_K.
    Q6S = 8,
    /// bfloat16.
    Bf16 = 9,
    /// Q5_0.
    Q5 = 10,
    /// MXFP4.
    Mx4 = 11,
    /// Q5_1.
    Q51 = 12,
}

/// How a packed type's rows are cut (spec: container, A.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedFormat {
    /// Elements of a source block.
    pub block_elements: u64,
    /// Bytes of a source block.
    pub block_bytes: u64,
    /// Elements of a sub-block.
    pub sub: u64,
    /// Primary bits an element.
    pub bits: u64,
    /// Secondary bits an element.
    pub high: u64,
    /// Sub-blocks that share a `d` word.
    pub per_super: u64,
    /// Rows that share a `d` word.
    pub rows_per_d: u64,
    /// Words of the `sc` plane for one super-block of one row.
    pub sc_words: u64,
}

impl PackedFormat {
    /// Payload words of one sub-block of one row.
    #[must_use]
    pub const fn words(&self) -> u64 {
        self.sub * (self.bits + self.high) / 32
    }
}

/// Unaligned byte lengths of a sheet's three planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlaneLens {
    /// Payload.
    pub qs: u64,
    /// Scales of super-blocks.
    pub d: u64,
    /// Scales of sub-blocks.
    pub sc: u64,
}

impl PlaneLens {
    /// The lengths in file order.
    #[must_use]
    pub const fn as_array(self) -> [u64; 3] {
        [self.qs, self.d, self.sc]
    }
}

impl DType {
    /// Every type, by code.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::Q4,
        Self::Q8,
        Self::Q3S,
        Self::Q4S,
        Self::Q5S,
        Self::Q6S,
        Self::Bf16,
        Self::Q5,
        Self::Mx4,
        Self::Q51,
    ];

    /// The type with this code.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type's name in the format.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q4 => "q4",
            Self::Q8 => "q8",
            Self::Q3S => "q3s",
            Self::Q4S => "q4s",
            Self::Q5S => "q5s",
            Self::Q6S => "q6s",
            Self::Bf16 => "bf16",
            Self::Q5 => "q5",
            Self::Mx4 => "mx4",
            Self::Q51 => "q51",
        }
    }

    /// The GGML name and type number that the type holds.
    #[must_use]
    pub const fn ggml(self) -> (&'static str, u32) {
        match self {
            Self::F32 => ("F32", 0),
            Self::F16 => ("F16", 1),
            Self::Q4 => ("Q4_0", 2),
            Self::Q8 => ("Q8_0", 8),
            Self::Q3S => ("Q3_K", 11),
            Self::Q4S => ("Q4_K", 12),
            Self::Q5S => ("Q5_K", 13),
            Self::Q6S => ("Q6_K", 14),
            Self::Bf16 => ("BF16", 30),
            Self::Q5 => ("Q5_0", 6),
            Self::Mx4 => ("MXFP4", 39),
            Self::Q51 => ("Q5_1", 7),
        }
    }

    /// The type that holds a GGML type number; `None` for those the format has no form for.
    #[must_use]
    pub fn from_ggml(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.ggml().1 == code)
    }

    /// The packing; `None` for the three float types.
    #[must_use]
    pub const fn packed(self) -> Option<PackedFormat> {
        // Columns: block elements, block bytes, sub, bits, high, per super, rows per d, sc words.
        let (e, b, sub, bits, high, per_super, rows_per_d, sc_words) = match self {
            Self::F32 | Self::F16 | Self::Bf16 => return None,
            Self::Q4 => (32, 18, 32, 4, 0, 1, 2, 0),
            Self::Q8 => (32, 34, 32, 8, 0, 1, 2, 0),
            Self::Q3S => (256, 110, 16, 4, 0, 16, 1, 4),
            Self::Q4S => (256, 144, 32, 4, 0, 8, 1, 3),
            Self::Q5S => (256, 176, 32, 4, 1, 8, 1, 3),
            Self::Q6S => (256, 210, 16, 4, 2, 16, 1, 4),
            Self::Q5 => (32, 22, 32, 4, 1, 1, 2, 0),
            Self::Mx4 => (32, 17, 32, 4, 0, 1, 4, 0),
            Self::Q51 => (32, 24, 32, 4, 1, 1, 1, 0),
        };
        Some(PackedFormat {
            block_elements: e,
            block_bytes: b,
            sub,
            bits,
            high,
            per_super,
            rows_per_d,
            sc_words,
        })
    }

    /// Bytes of one value; `None` for packed types.
    #[must_use]
    pub const fn value_bytes(self) -> Option<u64> {
        match self {
            Self::F32 => Some(4),
            Self::F16 | Self::Bf16 => Some(2),
            _ => None,
        }
    }

    /// Plane lengths of a sheet of `rows` rows of `k` elements; `None` when `k` is not a whole
    /// number of blocks or a length does not fit 64 bits.
    #[must_use]
    pub fn planes(self, k: u64, rows: u64) -> Option<PlaneLens> {
        let Some(format) = self.packed() else {
            let bytes = self.value_bytes()?;
            return Some(PlaneLens {
                qs: k.checked_mul(rows)?.checked_mul(bytes)?,
                ..PlaneLens::default()
            });
        };
        if !k.is_multiple_of(format.block_elements) {
            return None;
        }
        let subs = k / format.sub;
        let supers = subs / format.per_super;
        let words = |per_row: u64, rows: u64| per_row.checked_mul(rows)?.checked_mul(4);
        Some(PlaneLens {
            qs: words(subs.checked_mul(format.words())?, rows)?,
            d: words(supers, rows.div_ceil(format.rows_per_d))?,
            sc: words(supers * format.sc_words, rows)?,
        })
    }

    /// Bytes that `k` x `rows` values take in a source file; `None` as for [`Self::planes`].
    #[must_use]
    pub fn source_bytes(self, k: u64, rows: u64) -> Option<u64> {
        match self.packed() {
            None => k.checked_mul(rows)?.checked_mul(self.value_bytes()?),
            Some(format) if k.is_multiple_of(format.block_elements) => (k / format.block_elements)
                .checked_mul(rows)?
                .checked_mul(format.block_bytes),
            Some(_) => None,
        }
    }
}
