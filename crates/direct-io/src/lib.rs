//! Page-sized reads, and writes in order, past the page cache.
//!
//! [`File`] reads a span of a regular file into a caller's buffer by the fastest of three engines
//! that the machine allows, found out at run time:
//!
//! | engine | how | used when |
//! | --- | --- | --- |
//! | [`Engine::Uring`] | `O_DIRECT`, up to 16 io_uring requests in flight | io_uring is there and permitted |
//! | [`Engine::Direct`] | `O_DIRECT`, `pread` from a few threads | io_uring is absent or denied by seccomp |
//! | [`Engine::Buffered`] | `pread` through the page cache | the file system refuses `O_DIRECT` (tmpfs) |
//!
//! Spans that are not aligned to [`ALIGN`] go through the page cache under every engine. Pieces of
//! a span can be handed to the caller as they arrive ([`ReadAt::read_pieces`]), so that decrypting
//! one piece overlaps with reading the others.
//!
//! [`Appender`] writes a file in order, by `O_DIRECT` where the file system allows it.
#![expect(
    unsafe_code,
    reason = "mapped buffers and io_uring submissions; each block states why it is sound"
)]

mod append;
mod buffer;
mod error;
mod file;
mod pread;
mod uring;

pub use append::Appender;
pub use buffer::AlignedBuf;
pub use error::{AllocError, ReadError};
pub use file::{Engine, EngineChoice, File, OpenOptions};

use std::ops::ControlFlow;

/// Alignment in bytes of offset, length and address that `O_DIRECT` asks for: the page size of a
/// container, a multiple of every logical block size in use.
pub const ALIGN: usize = 4096;

/// What [`ReadAt::read_pieces`] calls with each piece: its start within the span, and its bytes.
pub type Arrived<'a> = dyn FnMut(usize, &mut [u8]) -> ControlFlow<()> + 'a;

/// Reads of spans of something whose size does not change.
pub trait ReadAt: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// When the span ends beyond the file, when the file changed since it was opened, and when the
    /// system reports a failure. `out` then holds unspecified bytes.
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError>;

    /// Fills `out` from `offset` and calls `arrived` with every piece of `piece` bytes (the last one
    /// shorter), each once, in any order, on the calling thread, while others are still being read.
    ///
    /// `piece` is a multiple of [`ALIGN`]. When `arrived` breaks, reading stops and the break is
    /// returned.
    ///
    /// # Errors
    /// As [`ReadAt::read_exact_at`].
    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, ReadError>;
}
