use crate::element::{Domain, Element, Format};
use crate::error::LockError;
use crate::implementation::Implementation;
use crate::shift;

/// The first pass over a tensor: its largest magnitude, and whether every value can be coded.
///
/// Parts of a tensor can be scanned apart and merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    element: Element,
    largest: Option<u64>,
    codable: bool,
}

impl Scan {
    /// A scan that has seen nothing.
    #[must_use]
    pub fn new(element: Element) -> Self {
        Self {
            element,
            largest: None,
            codable: true,
        }
    }

    /// Looks at the part of the tensor that starts at its byte `at`. An infinity, a NaN or the
    /// NaN scale is an error; a table with values that are negative or from 2^31 on is none: it
    /// stays as it is.
    pub fn update(&mut self, at: u64, bytes: &[u8]) -> Result<(), LockError> {
        check_whole(self.element, at, bytes.len())?;
        if bytes.is_empty() {
            return Ok(());
        }
        let largest = largest(self.element, bytes);
        if largest > self.element.top() {
            if self.element.format() != Format::Index {
                let bound = self.element.top() + 1;
                let within = shift::first_outside(self.element, bytes, bound).unwrap_or_default();
                return Err(LockError::NotFinite {
                    element: value_at(self.element, at) + within,
                    of: self.element,
                });
            }
            self.codable = false;
        }
        self.largest = self.largest.max(Some(largest));
        Ok(())
    }

    /// Adds what another scan saw of the same tensor.
    pub fn merge(&mut self, other: &Self) {
        self.largest = self.largest.max(other.largest);
        self.codable &= other.codable;
    }

    /// The tensor's domain; `None` where the tensor stays as it is: it is empty, or a table that
    /// cannot be coded.
    #[must_use]
    pub fn domain(&self) -> Option<Domain> {
        let largest = self.largest.filter(|_| self.codable)?;
        Some(Domain::of_largest(self.element, largest))
    }
}

/// Index of the value that starts at byte `at` of a tensor.
pub(crate) fn value_at(element: Element, at: u64) -> u64 {
    at / element.width() as u64 * element.values_per_unit()
}

/// Checks that a part starts and ends at values' edges.
pub(crate) fn check_whole(element: Element, at: u64, length: usize) -> Result<(), LockError> {
    let width = element.width();
    if !at.is_multiple_of(width as u64) || !length.is_multiple_of(width) {
        return Err(LockError::Partial {
            start: at,
            end: at.saturating_add(length as u64),
            of: element,
        });
    }
    Ok(())
}

fn largest(element: Element, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        match Implementation::best() {
            // SAFETY: the implementation is available, so the features are there.
            Implementation::Avx512 => return unsafe { largest_avx512(element, bytes) },
            // SAFETY: as above.
            Implementation::Avx2 => return unsafe { largest_avx2(element, bytes) },
            Implementation::Portable => {}
        }
    }
    shift::largest(element, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn largest_avx512(element: Element, bytes: &[u8]) -> u64 {
    shift::largest(element, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn largest_avx2(element: Element, bytes: &[u8]) -> u64 {
    shift::largest(element, bytes)
}
