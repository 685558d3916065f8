//! Immutable blobs named by their SHA-256.
//!
//! A [`BlobStore`] keeps blobs in any [`object_store::ObjectStore`]: a local folder
//! ([`BlobStore::local`]), or an S3-compatible store with the feature `s3`. An upload is hashed while
//! it is written and becomes visible whole or not at all; beside each blob lies its chunk index, the
//! RFC 6962 leaf hashes of every 1 MiB, so that a range is checked when it is read and can be proved
//! against the blob's chunk root. No part of this holds or knows a key.
//!
//! Layout, below the store's root:
//!
//! ```text
//! blobs/<first two hex digits>/<64 hex digits>
//! chunks/<first two hex digits>/<64 hex digits>    see `ChunkIndex`
//! ```

mod error;
mod get;
mod index;
mod put;
mod scrub;
mod store;

pub use error::BlobError;
pub use get::BlobRange;
pub use index::RangeProof;
pub use put::Stored;
pub use scrub::{Problem, ScrubReport};
pub use store::{BlobInfo, BlobStore, Options};

/// Most bytes of one piece of a blob that is read.
pub const PIECE_BYTES: usize = tlog::CHUNK_BYTES;
