use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{ALIGN, AlignedBuf, Arrived, ReadAt, ReadError, pread, uring};

/// How a [`File`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// `O_DIRECT` with several io_uring requests in flight.
    Uring,
    /// `O_DIRECT` with `pread`.
    Direct,
    /// `pread` through the page cache.
    Buffered,
}

/// Which engine to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// The fastest that works here.
    #[default]
    Fastest,
    /// This one, or an error when it does not work here.
    Exactly(Engine),
}

/// How to open a [`File`].
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// The engine.
    pub engine: EngineChoice,
}

impl OpenOptions {
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// When it cannot be opened, is not a regular file, or the engine asked for does not work here.
    pub fn open(self, path: impl AsRef<Path>) -> Result<File, ReadError> {
        File::open_with(path.as_ref(), self)
    }
}

/// A regular file whose content is not supposed to change while it is open.
pub struct File {
    path: PathBuf,
    identity: Identity,
    buffered: fs::File,
    direct: Option<fs::File>,
    rings: Option<uring::Rings>,
}

impl File {
    /// Opens a file with the fastest engine that works here.
    ///
    /// # Errors
    /// When it cannot be opened or is not a regular file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        OpenOptions::default().open(path)
    }

    /// The engine in use.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match (&self.direct, &self.rings) {
            (Some(_), Some(_)) => Engine::Uring,
            (Some(_), None) => Engine::Direct,
            (None, _) => Engine::Buffered,
        }
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a file that is no longer what was opened. Every read does this by itself.
    ///
    /// # Errors
    /// [`ReadError::Changed`] when size, modification time or inode differ.
    pub fn recheck(&self) -> Result<(), ReadError> {
        let now = self
            .buffered
            .metadata()
            .map_err(|source| self.failed("examining", source))?;
        if Identity::of(&now) == self.identity {
            Ok(())
        } else {
            Err(ReadError::Changed {
                path: self.path.clone(),
            })
        }
    }

    fn open_with(path: &Path, options: OpenOptions) -> Result<Self, ReadError> {
        let failed = |action, source| ReadError::Io {
            path: path.to_owned(),
            action,
            source,
        };
        // A pipe would block an open without O_NONBLOCK; for a regular file the flag means nothing.
        let buffered = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|source| failed("opening", source))?;
        let metadata = buffered
            .metadata()
            .map_err(|source| failed("examining", source))?;
        if !metadata.is_file() || metadata.file_type().is_block_device() {
            return Err(ReadError::NotAFile {
                path: path.to_owned(),
            });
        }
        let mut file = Self {
            path: path.to_owned(),
            identity: Identity::of(&metadata),
            buffered,
            direct: None,
            rings: None,
        };
        let wanted = match options.engine {
            EngineChoice::Fastest => Engine::Uring,
            EngineChoice::Exactly(engine) => engine,
        };
        if wanted != Engine::Buffered {
            file.direct = file.open_direct()?;
        }
        if wanted == Engine::Uring && file.direct.is_some() && uring::available() {
            file.rings = Some(uring::Rings::default());
        }
        match options.engine {
            EngineChoice::Exactly(engine) if file.engine() != engine => {
                Err(ReadError::Unavailable {
                    path: file.path,
                    engine: engine.name(),
                })
            }
            _ => Ok(file),
        }
    }

    /// The same file with `O_DIRECT`, or none when the file system refuses to open or to read so.
    fn open_direct(&self) -> Result<Option<fs::File>, ReadError> {
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK)
            .open(&self.path);
        let direct = match opened {
            Ok(direct) => direct,
            Err(error) if refuses_direct(&error) => return Ok(None),
            Err(error) => return Err(self.failed("opening", error)),
        };
        let metadata = direct
            .metadata()
            .map_err(|source| self.failed("examining", source))?;
        if Identity::of(&metadata) != self.identity {
            return Err(ReadError::Changed {
                path: self.path.clone(),
            });
        }
        if self.identity.size >= ALIGN as u64 {
            // Some file systems accept the flag and refuse the read.
            let Ok(mut block) = AlignedBuf::new(ALIGN) else {
                return Ok(None);
            };
            match pread::read_exact(&direct, 0, &mut block) {
                Ok(()) => {}
                Err(error) if refuses_direct(&error) => return Ok(None),
                Err(error) => return Err(self.failed("reading", error)),
            }
        }
        Ok(Some(direct))
    }

    fn check_span(&self, offset: u64, len: usize) -> Result<(), ReadError> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.identity.size) {
            return Err(ReadError::OutOfRange {
                path: self.path.clone(),
                offset,
                len,
                size: self.identity.size,
            });
        }
        self.recheck()
    }

    fn failed(&self, action: &'static str, source: io::Error) -> ReadError {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            // The span was compared with the size at open, so the file has shrunk since.
            return ReadError::Changed {
                path: self.path.clone(),
            };
        }
        ReadError::Io {
            path: self.path.clone(),
            action,
            source,
        }
    }
}

impl ReadAt for File {
    fn size(&self) -> u64 {
        self.identity.size
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let piece = (out.len() / uring::IN_FLIGHT as usize)
            .next_multiple_of(ALIGN)
            .clamp(MIN_PIECE, MAX_DEFAULT_PIECE);
        self.read_pieces(offset, out, piece, &mut |_, _| ControlFlow::Continue(()))
            .map(drop)
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, ReadError> {
        if piece == 0 || !piece.is_multiple_of(ALIGN) || piece > MAX_PIECE {
            return Err(ReadError::Piece { piece });
        }
        self.check_span(offset, out.len())?;
        let aligned = offset.is_multiple_of(ALIGN as u64)
            && out.len().is_multiple_of(ALIGN)
            && out.as_ptr().addr().is_multiple_of(ALIGN);
        let direct = self.direct.as_ref().filter(|_| aligned);
        let done = match (direct, &self.rings) {
            (Some(direct), Some(rings)) => {
                uring::read_pieces(rings, direct, &self.buffered, offset, out, piece, arrived)
            }
            (direct, _) => {
                let file = direct.unwrap_or(&self.buffered);
                pread::read_pieces(file, &self.buffered, offset, out, piece, arrived)
            }
        }
        .map_err(|source| self.failed("reading", source))?;
        self.recheck()?;
        Ok(done)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("size", &self.identity.size)
            .field("engine", &self.engine())
            .finish()
    }
}

impl Engine {
    /// A short lower-case name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uring => "io_uring",
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

/// What tells one state of one file from another.
#[derive(PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

fn refuses_direct(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Smallest request of a span that is cut by default.
const MIN_PIECE: usize = 128 << 10;
/// Largest request of a span that is cut by default.
const MAX_DEFAULT_PIECE: usize = 1 << 20;
/// Largest piece a caller may ask for.
const MAX_PIECE: usize = 64 << 20;
