use std::iter::Sum;
use std::ops::Add;

use crate::PageArray;

/// What a pager did and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// The budget in bytes.
    pub budget: u64,
    /// Bytes of frames, those of leases and reads under way included.
    pub resident: u64,
    /// Leases that are out.
    pub leases: u64,
    /// Frames that were made; the others were reused.
    pub frames_made: u64,
    pub(crate) arrays: [ArrayStats; 3],
}

impl Stats {
    /// Counts of one array.
    #[must_use]
    pub const fn array(&self, array: PageArray) -> &ArrayStats {
        &self.arrays[array.ordinal()]
    }

    /// Counts of all arrays together.
    #[must_use]
    pub fn total(&self) -> ArrayStats {
        self.arrays.iter().copied().sum()
    }
}

/// Counts of one array since the pager was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArrayStats {
    /// Requests that found the page resident.
    pub hits: u64,
    /// Requests that read the page.
    pub misses: u64,
    /// Requests that waited for a read that was under way.
    pub waits: u64,
    /// Pages that were read ahead.
    pub read_ahead: u64,
    /// Reads that failed.
    pub failures: u64,
    /// Pages that made room for others.
    pub evictions: u64,
    /// Bytes that were read and opened.
    pub bytes_read: u64,
}

impl Add for ArrayStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            waits: self.waits + other.waits,
            read_ahead: self.read_ahead + other.read_ahead,
            failures: self.failures + other.failures,
            evictions: self.evictions + other.evictions,
            bytes_read: self.bytes_read + other.bytes_read,
        }
    }
}

impl Sum for ArrayStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}
