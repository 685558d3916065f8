//! Metadata values.

use codec::{DecodeError, Fault, Reader};

use crate::{count, text};

/// A metadata value. Integers of every width are one kind, and so are floats.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An integer.
    Int(i64),
    /// An unsigned integer above the largest `i64`.
    Large(u64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Text.
    Text(String),
    /// A list.
    Array(Array),
}

/// A list of values of one kind. Lists of lists are refused.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Booleans.
    Bools(Vec<bool>),
    /// Texts.
    Texts(Vec<String>),
}

impl Value {
    /// The text.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The integer.
    #[must_use]
    pub const fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The float.
    #[must_use]
    pub const fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The boolean.
    #[must_use]
    pub const fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let before = reader.clone();
        let kind = reader.u32("value type")?;
        if kind != ARRAY {
            return Self::scalar(reader, kind, &before);
        }
        let before = reader.clone();
        let kind = reader.u32("element type")?;
        let width = match kind {
            0 | 1 | BOOL => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 | TEXT => 8,
            _ => return Err(unknown(&before, kind)),
        };
        let n = count(reader, "list length", width)?;
        let mut elements = (0..n).map(|_| Self::scalar(reader, kind, &before));
        // Every element is of one kind, so each `collect` takes all or fails.
        let wrong = || unknown(&before, kind);
        Ok(Self::Array(match kind {
            TEXT => Array::Texts(collect(&mut elements, wrong, |value| match value {
                Self::Text(text) => Some(text),
                _ => None,
            })?),
            BOOL => Array::Bools(collect(&mut elements, wrong, |value| value.as_bool())?),
            6 | 12 => Array::Floats(collect(&mut elements, wrong, |value| value.as_float())?),
            _ => Array::Ints(collect(&mut elements, wrong, |value| value.as_int())?),
        }))
    }

    fn scalar(
        reader: &mut Reader<'_>,
        kind: u32,
        before: &Reader<'_>,
    ) -> Result<Self, DecodeError> {
        let field = "value";
        Ok(match kind {
            0 => Self::Int(reader.u8(field)?.into()),
            1 => Self::Int((reader.u8(field)? as i8).into()),
            2 => Self::Int(reader.u16(field)?.into()),
            3 => Self::Int((reader.u16(field)? as i16).into()),
            4 => Self::Int(reader.u32(field)?.into()),
            5 => Self::Int(reader.i32(field)?.into()),
            6 => Self::Float(reader.f32(field)?.into()),
            BOOL => Self::Bool(reader.bool(field)?),
            TEXT => Self::Text(text(reader, field)?),
            10 => {
                let value = reader.u64(field)?;
                i64::try_from(value).map_or(Self::Large(value), Self::Int)
            }
            11 => Self::Int(reader.u64(field)? as i64),
            12 => Self::Float(f64::from_bits(reader.u64(field)?)),
            _ => return Err(unknown(before, kind)),
        })
    }
}

fn collect<T>(
    elements: &mut dyn Iterator<Item = Result<Value, DecodeError>>,
    wrong: impl Fn() -> DecodeError,
    convert: impl Fn(Value) -> Option<T>,
) -> Result<Vec<T>, DecodeError> {
    elements
        .map(|value| convert(value?).ok_or_else(&wrong))
        .collect()
}

fn unknown(at: &Reader<'_>, kind: u32) -> DecodeError {
    at.error(
        "value type",
        Fault::Invalid(format!("{kind} is no type that is read here")),
    )
}

const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
