//! A bounded little-endian byte reader and writer.
//!
//! Every read names the field it reads, so a failure says which field was wrong and at which
//! offset. Nothing is allocated from a length before that length was compared with a named
//! maximum and with the bytes that are left.

use std::fmt;

/// Why bytes could not be decoded: the field, its offset in the input, and the fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} at offset {offset}: {fault}")]
pub struct DecodeError {
    /// Name of the field being read.
    pub field: &'static str,
    /// Byte offset of the field in the input.
    pub offset: u64,
    /// What was wrong with it.
    pub fault: Fault,
}

/// What was wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The input ended: `needed` bytes were required and `left` remained.
    Truncated {
        /// Bytes the field needs.
        needed: u64,
        /// Bytes that remained.
        left: u64,
    },
    /// A length or count is above its named maximum.
    TooLong {
        /// The claimed length.
        length: u64,
        /// The largest accepted.
        maximum: u64,
    },
    /// Text that is not UTF-8.
    NotUtf8,
    /// Bytes remained after the last field.
    Trailing {
        /// How many.
        left: u64,
    },
    /// A value outside the set the format allows.
    Invalid(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, left } => {
                write!(f, "needs {needed} bytes, {left} are left")
            }
            Self::TooLong { length, maximum } => {
                write!(f, "length {length} is above the maximum {maximum}")
            }
            Self::NotUtf8 => f.write_str("is not UTF-8"),
            Self::Trailing { left } => write!(f, "{left} bytes follow the last field"),
            Self::Invalid(reason) => f.write_str(reason),
        }
    }
}

/// Reads fields from a byte slice, front to back.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Offset of the next byte.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Exactly `length` bytes.
    pub fn bytes(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], DecodeError> {
        if length > self.left() {
            let fault = Fault::Truncated {
                needed: length as u64,
                left: self.left() as u64,
            };
            return Err(self.error(field, fault));
        }
        let start = self.at;
        self.at += length;
        Ok(&self.bytes[start..self.at])
    }

    /// A fixed array of bytes.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(field, N)?);
        Ok(out)
    }

    /// One byte.
    pub fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(self.array::<1>(field)?[0])
    }

    /// A `u16`, little-endian.
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    /// A `u32`, little-endian.
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    /// An `i32`, little-endian.
    pub fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        Ok(i32::from_le_bytes(self.array(field)?))
    }

    /// A `u64`, little-endian.
    pub fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    /// An `f32`, little-endian, any bit pattern.
    pub fn f32(&mut self, field: &'static str) -> Result<f32, DecodeError> {
        Ok(f32::from_bits(self.u32(field)?))
    }

    /// A byte that must be 0 or 1.
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        let at = self.at;
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(DecodeError {
                field,
                offset: at as u64,
                fault: Fault::Invalid(format!("{other} is not a boolean")),
            }),
        }
    }

    /// A `u32` count of elements that each take at least `element` bytes, compared with
    /// `maximum` and with what is left before anything is allocated.
    pub fn count(
        &mut self,
        field: &'static str,
        element: usize,
        maximum: usize,
    ) -> Result<usize, DecodeError> {
        let at = self.at;
        let count = u64::from(self.u32(field)?);
        let here = |fault| DecodeError {
            field,
            offset: at as u64,
            fault,
        };
        if count > maximum as u64 {
            return Err(here(Fault::TooLong {
                length: count,
                maximum: maximum as u64,
            }));
        }
        let needed = count.saturating_mul(element as u64);
        if needed > self.left() as u64 {
            return Err(here(Fault::Truncated {
                needed,
                left: self.left() as u64,
            }));
        }
        Ok(count as usize)
    }

    /// UTF-8 text of `length` bytes, at most `maximum`.
    pub fn text(
        &mut self,
        field: &'static str,
        length: usize,
        maximum: usize,
    ) -> Result<&'a str, DecodeError> {
        if length > maximum {
            let fault = Fault::TooLong {
                length: length as u64,
                maximum: maximum as u64,
            };
            return Err(self.error(field, fault));
        }
        let at = self.at;
        std::str::from_utf8(self.bytes(field, length)?).map_err(|_| DecodeError {
            field,
            offset: at as u64,
            fault: Fault::NotUtf8,
        })
    }

    /// Ends the input: an error if bytes are left.
    pub fn finish(self, field: &'static str) -> Result<(), DecodeError> {
        if self.left() == 0 {
            return Ok(());
        }
        let fault = Fault::Trailing {
            left: self.left() as u64,
        };
        Err(self.error(field, fault))
    }

    /// An error at the next byte.
    #[must_use]
    pub fn error(&self, field: &'static str, fault: Fault) -> DecodeError {
        DecodeError {
            field,
            offset: self.at as u64,
            fault,
        }
    }
}

/// Appends little-endian fields to a byte vector.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty writer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Raw bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// One byte.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// A byte that is 0 or 1.
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// A `u16`, little-endian.
    pub fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    /// A `u32`, little-endian.
    pub fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    /// An `i32`, little-endian.
    pub fn i32(&mut self, value: i32) {
        self.bytes(&value.to_le_bytes());
    }

    /// A `u64`, little-endian.
    pub fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// An `f32`, little-endian.
    pub fn f32(&mut self, value: f32) {
        self.bytes(&value.to_bits().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_compared_with_what_is_left_before_it_is_used() {
        let mut reader = Reader::new(&[0xff, 0xff, 0, 0, 1]);
        let error = reader.count("tokens", 4, 1 << 20).unwrap_err();
        assert_eq!(error.offset, 0);
        assert_eq!(
            error.fault,
            Fault::Truncated {
                needed: 65535 * 4,
                left: 1
            }
        );
    }

    #[test]
    fn every_truncation_names_the_field_and_its_offset() {
        let mut writer = Writer::new();
        writer.u16(7);
        writer.u64(9);
        let bytes = writer.into_bytes();
        for length in 0..bytes.len() {
            let mut reader = Reader::new(&bytes[..length]);
            let error = reader
                .u16("first")
                .and_then(|_| reader.u64("second"))
                .unwrap_err();
            let expected = if length < 2 {
                ("first", 0)
            } else {
                ("second", 2)
            };
            assert_eq!((error.field, error.offset), expected);
        }
    }

    #[test]
    fn trailing_bytes_are_an_error() {
        let mut reader = Reader::new(&[1, 2]);
        assert_eq!(reader.u8("flag"), Ok(1));
        assert_eq!(
            reader.finish("record").unwrap_err().fault,
            Fault::Trailing { left: 1 }
        );
    }
}
