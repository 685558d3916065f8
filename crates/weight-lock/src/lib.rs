//! The weight lock of sealed checkpoints, versions 1 and 2, over byte slices.
//!
//! Every value of a tensor is coded as an index into its domain and shifted by an offset drawn
//! from the tensor's key stream, modulo the span (spec: sealed checkpoint, section 7). A locked
//! tensor has the same shape, type and size, and holds ordinary finite values.
//!
//! A tensor is locked in two passes: [`Scan`] finds the largest magnitude, which gives the
//! [`Domain`]; [`Lock`] then works in place, from any offset, so a caller cuts a tensor into parts
//! and spreads them over threads. [`LockTable`] is the record kept in a shard's header.
//!
//! The ChaCha20 and AES streams come in vectorised forms, chosen when the program runs; see
//! [`Implementation`]. They are equal to the bit.

#![expect(
    unsafe_code,
    reason = "AVX2 and AVX-512 intrinsics; each block says why it is sound"
)]

mod aes_ctr;
mod chacha;
mod element;
mod error;
mod implementation;
mod lock;
mod record;
mod scan;
mod shift;

pub use element::{Domain, Element, Format, Version};
pub use error::{DomainError, LockError, UnknownVersion};
pub use implementation::Implementation;
pub use lock::Lock;
pub use record::{Entry, HEADER_KEY, LockTable, RecordError, table_digest};
pub use scan::Scan;
