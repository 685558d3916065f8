use crate::element::Element;

/// Why a tensor could not be locked or unlocked. `element` counts values from the tensor's start;
/// the caller knows the tensor's name. After an error the slice holds neither form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// A value that the lock has no code for: infinity, NaN.
    #[error("element {element}: not a finite {of} value, which the lock cannot code")]
    NotFinite {
        /// The value's index.
        element: u64,
        /// The element type.
        of: Element,
    },
    /// A value outside the domain: in a locked tensor a sign of a wrong domain or of damage, in
    /// one to be locked a domain that was scanned from other data.
    #[error("element {element}: outside the domain {domain} of {of}")]
    Outside {
        /// The value's index.
        element: u64,
        /// The domain.
        domain: u64,
        /// The element type.
        of: Element,
    },
    /// Bytes or an offset that do not end at a value's edge.
    #[error("bytes {start}..{end} do not hold whole {of} values")]
    Partial {
        /// First byte.
        start: u64,
        /// One past the last.
        end: u64,
        /// The element type.
        of: Element,
    },
    /// More values than one key stream has words for.
    #[error("the tensor goes past the end of its key stream (2^32 blocks, 256 GiB)")]
    StreamEnd,
}

/// A domain that the lock does not write for an element type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{domain} is not a domain of {of}")]
pub struct DomainError {
    /// The domain.
    pub domain: u64,
    /// The element type.
    pub of: Element,
}

/// A lock version that is not read here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lock version {name:?} is not one this reads (v1, v2)")]
pub struct UnknownVersion {
    /// The version's name, cut to 64 characters.
    pub name: String,
}
