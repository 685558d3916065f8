//! Why a sealed container is refused.

use codec::DecodeError;
use identifiers::Fingerprint;
use jlm::{JlmError, UnitId};

/// Why a container cannot be sealed, or why a sealed one is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealedJlmError {
    // The file is at fault.
    /// A plain container where a sealed one is required.
    #[error("the container is plain (version {0}); only sealed ones are accepted here")]
    Plain(u32),
    /// Neither a sealed nor a plain container.
    #[error("not a .jlm container: the magic is missing")]
    Magic,
    /// A version field that is neither.
    #[error("container version {0:#x} is not read here")]
    Version(u32),
    /// A seal format that this crate does not read.
    #[error("seal format version {0} is not read here (1 is)")]
    Format(u32),
    /// The trailer is missing or disagrees with the file.
    #[error("seal trailer: {0}")]
    Trailer(&'static str),
    /// The seal section disagrees with the container or with itself.
    #[error("seal section: {0}")]
    Section(&'static str),
    /// The seal section does not decode.
    #[error("seal section is malformed")]
    Malformed(#[source] DecodeError),
    /// The seal header is not the JSON it must be.
    #[error("seal header is not the expected JSON")]
    Json(#[source] serde_json::Error),
    /// The container below the seal is refused.
    #[error("the container's structure is refused")]
    Structure(#[from] JlmError),
    /// A chunk's tag does not authenticate it.
    #[error("{unit}, chunk {chunk}: not authentic")]
    Tag {
        /// The unit.
        unit: UnitId,
        /// Chunk number within the unit.
        chunk: u64,
    },
    /// The container was sealed under another model key.
    #[error("sealed under key {found}, not {expected}")]
    Fingerprint {
        /// The fingerprint in the seal header.
        found: Fingerprint,
        /// The fingerprint that was required.
        expected: Fingerprint,
    },

    // The caller is at fault.
    /// The container has no such unit or expert.
    #[error("the container has no {0}")]
    NoUnit(UnitId),
    /// A buffer of another length than the unit.
    #[error("{unit}: {given} bytes given, it has {needed}")]
    Length {
        /// The unit.
        unit: UnitId,
        /// Bytes given.
        given: u64,
        /// Bytes of the unit.
        needed: u64,
    },
    /// A part of a page that does not begin and end with a chunk.
    #[error("{unit}: {len} bytes at {at} of the page are not whole chunks of it")]
    NotChunks {
        /// The unit.
        unit: UnitId,
        /// Where the part starts in the page.
        at: u64,
        /// Bytes of the part.
        len: u64,
    },
    /// A unit's key must encrypt once only.
    #[error("{0} was sealed already")]
    SealedTwice(UnitId),
    /// A unit was left in clear.
    #[error("{0} was not sealed")]
    NotSealed(UnitId),
    /// A chunk size outside the format.
    #[error("chunk size {0} is not a power of two from 4096 to 1048576")]
    ChunkSize(u64),
    /// Encryption failed, which only an impossible length can cause.
    #[error("{0} could not be encrypted")]
    Encrypt(UnitId),
}
