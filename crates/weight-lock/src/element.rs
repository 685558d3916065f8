use std::fmt;
use std::str::FromStr;

use crate::error::{DomainError, UnknownVersion};

/// A lock's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// AES-256-CTR streams; floats only.
    V1,
    /// ChaCha20 streams.
    V2,
}

/// How values are coded, as a version 2 record names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// `float`: sign and magnitude.
    Float,
    /// `e2m1x2`: two 4-bit floats a byte, the low nibble first.
    E2m1x2,
    /// `e8m0`: exponents.
    E8m0,
    /// `index`: a table of non-negative integers.
    Index,
}

/// The element types that the lock codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// bfloat16
    Bf16,
    /// IEEE half
    F16,
    /// IEEE single
    F32,
    /// 8-bit float without infinities
    F8E4m3,
    /// 8-bit float
    F8E5m2,
    /// Two packed 4-bit floats in a byte
    E2m1x2,
    /// 8-bit exponents
    E8m0,
    /// 16-bit table
    I16,
    /// 32-bit table
    I32,
    /// 64-bit table
    I64,
}

/// The domain of one tensor: how many codes its magnitudes are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Domain {
    element: Element,
    size: u64,
}

impl Element {
    /// Every element type.
    pub const ALL: [Self; 10] = [
        Self::Bf16,
        Self::F16,
        Self::F32,
        Self::F8E4m3,
        Self::F8E5m2,
        Self::E2m1x2,
        Self::E8m0,
        Self::I16,
        Self::I32,
        Self::I64,
    ];

    /// The element type of a safetensors dtype, by its name in a header; `None` for those that
    /// stay as they are. Bytes are locked only where the model's architecture says that they pack
    /// 4-bit floats (`packed_fp4`).
    #[must_use]
    pub fn of_dtype(name: &str, packed_fp4: bool) -> Option<Self> {
        Some(match name {
            "BF16" => Self::Bf16,
            "F16" => Self::F16,
            "F32" => Self::F32,
            "F8_E4M3" => Self::F8E4m3,
            "F8_E5M2" => Self::F8E5m2,
            "F8_E8M0" => Self::E8m0,
            "I8" | "U8" if packed_fp4 => Self::E2m1x2,
            "I16" => Self::I16,
            "I32" => Self::I32,
            "I64" => Self::I64,
            _ => return None,
        })
    }

    /// The element type of a locked tensor: its dtype read with its record's format. `None` where
    /// the two do not fit.
    #[must_use]
    pub fn of_locked(dtype: &str, format: Format) -> Option<Self> {
        let element = Self::of_dtype(dtype, format == Format::E2m1x2)?;
        (element.format() == format).then_some(element)
    }

    /// How it is coded.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::Bf16 | Self::F16 | Self::F32 | Self::F8E4m3 | Self::F8E5m2 => Format::Float,
            Self::E2m1x2 => Format::E2m1x2,
            Self::E8m0 => Format::E8m0,
            Self::I16 | Self::I32 | Self::I64 => Format::Index,
        }
    }

    /// Whether a lock of this version codes it; version 1 codes floats only.
    #[must_use]
    pub fn is_coded_by(self, version: Version) -> bool {
        version == Version::V2 || self.format() == Format::Float
    }

    /// Bytes of the smallest unit: of one value, or of a packed pair.
    #[must_use]
    pub const fn width(self) -> usize {
        match self {
            Self::F8E4m3 | Self::F8E5m2 | Self::E2m1x2 | Self::E8m0 => 1,
            Self::Bf16 | Self::F16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// Values in a unit of [`Element::width`] bytes.
    #[must_use]
    pub const fn values_per_unit(self) -> u64 {
        match self {
            Self::E2m1x2 => 2,
            _ => 1,
        }
    }

    /// The greatest magnitude code that is a finite value.
    pub(crate) const fn top(self) -> u64 {
        match self {
            Self::Bf16 => 0x7F7F,
            Self::F16 => 0x7BFF,
            Self::F32 => 0x7F7F_FFFF,
            Self::F8E4m3 => 0x7E,
            Self::F8E5m2 => 0x7B,
            Self::E2m1x2 => 7,
            Self::E8m0 => 0xFE,
            Self::I16 => 0x7FFF,
            Self::I32 | Self::I64 => 0x7FFF_FFFF,
        }
    }

    /// Bits of the mantissa; 0 for what is coded whole.
    const fn mantissa_bits(self) -> u32 {
        match self {
            Self::Bf16 => 7,
            Self::F16 => 10,
            Self::F32 => 23,
            Self::F8E4m3 => 3,
            Self::F8E5m2 => 2,
            Self::E2m1x2 => 1,
            Self::E8m0 | Self::I16 | Self::I32 | Self::I64 => 0,
        }
    }

    const fn is_signed(self) -> bool {
        matches!(self.format(), Format::Float | Format::E2m1x2)
    }
}

impl Domain {
    /// The domain of a tensor with this largest magnitude code: up to the end of its binade.
    pub(crate) fn of_largest(element: Element, largest: u64) -> Self {
        let bits = element.mantissa_bits();
        let binade = ((largest >> bits) + 1) << bits;
        Self {
            element,
            size: binade.min(element.top() + 1),
        }
    }

    /// A domain read from a record; it must be one that the lock writes.
    pub fn new(element: Element, size: u64) -> Result<Self, DomainError> {
        let step = 1_u64 << element.mantissa_bits();
        let top = element.top() + 1;
        if size == 0 || size > top || (!size.is_multiple_of(step) && size != top) {
            return Err(DomainError {
                domain: size,
                of: element,
            });
        }
        Ok(Self { element, size })
    }

    /// The widest domain of an element type, to reserve room for its record.
    #[must_use]
    pub fn widest(element: Element) -> Self {
        Self {
            element,
            size: element.top() + 1,
        }
    }

    /// The element type.
    #[must_use]
    pub const fn element(self) -> Element {
        self.element
    }

    /// The number in the record: magnitudes are below it.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.size
    }

    /// How many codes values are shifted around: twice the domain where there is a sign.
    #[must_use]
    pub const fn span(self) -> u64 {
        if self.element.is_signed() {
            2 * self.size
        } else {
            self.size
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

impl FromStr for Version {
    type Err = UnknownVersion;

    fn from_str(name: &str) -> Result<Self, UnknownVersion> {
        match name {
            "v1" => Ok(Self::V1),
            "v2" => Ok(Self::V2),
            _ => Err(UnknownVersion {
                name: name.chars().take(64).collect(),
            }),
        }
    }
}

impl Format {
    /// The format of that name in a version 2 record.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let all = [Self::Float, Self::E2m1x2, Self::E8m0, Self::Index];
        all.into_iter().find(|format| format.name() == name)
    }

    /// The name in a version 2 record.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::E2m1x2 => "e2m1x2",
            Self::E8m0 => "e8m0",
            Self::Index => "index",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F8E4m3 => "f8_e4m3fn",
            Self::F8E5m2 => "f8_e5m2",
            Self::E2m1x2 => "e2m1x2",
            Self::E8m0 => "e8m0",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
        })
    }
}
