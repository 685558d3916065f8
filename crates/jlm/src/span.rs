//! Byte ranges of a file, and the format's alignment.

/// Every region, page and plane starts at a multiple of this many bytes.
pub const ALIGN: u64 = 4096;

/// `length` bytes of the file, from absolute offset `offset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Span {
    /// A span.
    #[must_use]
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset, length }
    }

    /// Offset after the last byte; `None` when it does not fit 64 bits.
    #[must_use]
    pub const fn end(self) -> Option<u64> {
        self.offset.checked_add(self.length)
    }

    /// Whether `other` lies inside this span.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        match (self.end(), other.end()) {
            (Some(end), Some(other_end)) => other.offset >= self.offset && other_end <= end,
            _ => false,
        }
    }
}

/// `length` rounded up to a multiple of [`ALIGN`]; `None` on overflow.
#[must_use]
pub const fn align(length: u64) -> Option<u64> {
    match length.checked_add(ALIGN - 1) {
        Some(sum) => Some(sum - sum % ALIGN),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligning_rounds_up_and_reports_overflow() {
        assert_eq!(align(0), Some(0));
        assert_eq!(align(1), Some(4096));
        assert_eq!(align(4096), Some(4096));
        assert_eq!(align(u64::MAX), None);
    }

    #[test]
    fn a_span_past_the_last_offset_is_contained_nowhere() {
        assert!(!Span::new(0, u64::MAX).contains(Span::new(u64::MAX, 1)));
        assert!(Span::new(4, 4).contains(Span::new(8, 0)));
    }
}
