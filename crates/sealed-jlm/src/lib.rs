//! Sealed .jlm containers: the plain container's bytes at the same offsets, with everything
//! secret encrypted in place and authenticated by chunk (spec: sealed container).
//!
//! No I/O: a caller reads the last [`TRAILER_LEN`] bytes ([`Trailer`]), the section it names and
//! the metadata before the dense region, makes a [`SealedHeader`] of them, then reads and opens
//! units in any order. [`Sealer`] is the way back. The root that storage checks without keys is
//! that of the `tlog` crate's chunk tree, over the sealed file's bytes.

mod chunks;
mod error;
mod fsck;
mod header;
mod page;
mod seal;
mod section;

pub use chunks::ChunkSize;
pub use error::SealedJlmError;
pub use fsck::{Finding, fsck, verify};
pub use header::SealedHeader;
pub use jlm::{ReadSpan, Region, UnitId, UnitRange};
pub use page::PageOpener;
pub use seal::{SealParameters, Sealer};
pub use section::{TRAILER_LEN, Trailer};

/// The version field of a sealed container (header offset 8).
pub const SEALED_VERSION: u32 = 0x5EA1_0000 | 27;
/// Seal format version: header offset 12, and in the seal header.
pub const SEAL_FORMAT: u32 = 1;
/// Bytes of a chunk's tag.
pub const TAG_LEN: usize = 16;
