//! KLLMBLOB1: the chunked AES-256-GCM container of a sealed checkpoint's secret files
//! (spec: sealed checkpoint, section 6).
//!
//! [`encode`] and [`decode`] work on whole blobs; [`BlobSealer`] and [`BlobOpener`] work chunk by
//! chunk, for files larger than memory. [`Payload`] is what a blob holds: secret files and
//! trusted tensors.

mod blob;
mod error;
mod header;
mod payload;

pub use blob::{BlobOpener, BlobSealer, decode, encode};
pub use error::BlobError;
pub use header::{DEFAULT_CHUNK, Header, MAX_CHUNK, MAX_HEADER, MAX_PREAMBLE};
pub use payload::{Payload, PayloadError, PayloadWriter, TrustedTensor};
pub use safetensors::Dtype;
