use std::io;
use std::path::PathBuf;

/// A failed read or open.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The caller's span does not lie in the file.
    #[error("{}: {len} bytes at {offset} end beyond the file of {size} bytes", path.display())]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// First byte of the span.
        offset: u64,
        /// Bytes of the span.
        len: usize,
        /// Size of the file when it was opened.
        size: u64,
    },
    /// The caller's piece size is zero, unaligned or above the limit.
    #[error("pieces of {piece} bytes: not a multiple of 4096 up to 64 MiB")]
    Piece {
        /// The size asked for.
        piece: usize,
    },
    /// The file is not the one that was opened: another size, time or inode.
    #[error("{}: changed while it was open", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// Directories, pipes and devices have no pages.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
    /// The caller asked for one engine and this machine or file system does not have it.
    #[error("{}: the {engine} engine is not available here", path.display())]
    Unavailable {
        /// The file.
        path: PathBuf,
        /// The engine asked for.
        engine: &'static str,
    },
    /// The system failed to open or read.
    #[error("{}: {action} failed", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Memory for a buffer could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error("no memory for a buffer of {len} bytes")]
pub struct AllocError {
    /// Bytes asked for.
    pub len: usize,
    /// What the system said.
    #[source]
    pub source: io::Error,
}
