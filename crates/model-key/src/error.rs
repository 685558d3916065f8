use crate::label::Path;
use crate::source::SubkeyError;

/// A stream, permutation or matrix was not drawn.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// The source did not give a subkey.
    #[error(transparent)]
    Subkey(#[from] SubkeyError),
    /// More elements than an index can number.
    #[error("{path}: {n} elements, the most is {maximum}")]
    TooLong {
        /// Where the draw is used.
        path: String,
        /// Elements asked for.
        n: u64,
        /// The most that can be drawn.
        maximum: u64,
    },
    /// A length that its block does not divide.
    #[error("{path}: {n} is not a multiple of the block {block}")]
    NotMultiple {
        /// Where the draw is used.
        path: String,
        /// The length.
        n: usize,
        /// The block.
        block: usize,
    },
    /// A pair permutation over an empty or odd length, or over odd groups.
    #[error("{path}: pairs need a positive even length and group, not {n} in groups of {group}")]
    OddPairs {
        /// Where the draw is used.
        path: String,
        /// The length.
        n: usize,
        /// The group, reduced to the greatest common divisor with the length.
        group: usize,
    },
}

impl DrawError {
    pub(crate) fn check_length(path: &Path, n: usize) -> Result<(), Self> {
        if n as u64 <= MAX_LENGTH {
            return Ok(());
        }
        Err(Self::TooLong {
            path: path.to_string(),
            n: n as u64,
            maximum: MAX_LENGTH,
        })
    }
}

/// Positions are `u32`, and 2^32 draws of 8 bytes stay far below the key stream's 256 GiB.
pub(crate) const MAX_LENGTH: u64 = u32::MAX as u64;
