use std::error::Error;
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{self, Builder};

use direct_io::{Arrived, File, ReadAt};

use crate::{Geometry, PageId};

/// Any failure of what pages are read from or opened with.
pub type SourceError = Box<dyn Error + Send + Sync>;

/// Where pages come from.
pub trait PageSource: Send + Sync {
    /// Fills `out`, which has the page's length, with the page in the clear.
    ///
    /// # Errors
    /// When the page cannot be read or opened; `out` then holds unspecified bytes, which the caller
    /// wipes.
    fn read_page(&self, page: PageId, out: &mut [u8]) -> Result<(), PageError>;
}

/// Spans of a container by offset: a local file, or a blob of a storage node.
pub trait RangeSource: Send + Sync {
    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// When any byte of the range cannot be had.
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError>;

    /// Fills `out` from `offset` and calls `arrived` with every piece of `piece` bytes (the last one
    /// shorter), each once, in any order. A source that overrides this calls it while other pieces
    /// are still on their way.
    ///
    /// # Errors
    /// As [`RangeSource::read_range`].
    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        self.read_range(offset, out)?;
        for (index, part) in out.chunks_mut(piece).enumerate() {
            if arrived(index * piece, part).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Threads that one page is read with when what arrives is opened: more than one where opening
    /// is slower than reading.
    fn readers(&self) -> usize {
        1
    }
}

impl RangeSource for File {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        Ok(self.read_exact_at(offset, out)?)
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        Ok(ReadAt::read_pieces(self, offset, out, piece, arrived)?)
    }

    /// A fast disk gives more than a core opens.
    fn readers(&self) -> usize {
        FILE_READERS
    }
}

impl<R: RangeSource + ?Sized> RangeSource for Arc<R> {
    fn read_range(&self, offset: u64, out: &mut [u8]) -> Result<(), SourceError> {
        (**self).read_range(offset, out)
    }

    fn read_pieces(
        &self,
        offset: u64,
        out: &mut [u8],
        piece: usize,
        arrived: &mut Arrived<'_>,
    ) -> Result<ControlFlow<()>, SourceError> {
        (**self).read_pieces(offset, out, piece, arrived)
    }

    fn readers(&self) -> usize {
        (**self).readers()
    }
}

/// Pages of a plain container.
pub struct PlainSource<R> {
    ranges: R,
    geometry: Geometry,
}

impl<R: RangeSource> PlainSource<R> {
    /// Pages that lie in `ranges` as `geometry` says.
    pub const fn new(ranges: R, geometry: Geometry) -> Self {
        Self { ranges, geometry }
    }
}

impl<R: RangeSource> PageSource for PlainSource<R> {
    fn read_page(&self, page: PageId, out: &mut [u8]) -> Result<(), PageError> {
        let offset = offset_of(&self.geometry, page, out.len())?;
        self.ranges
            .read_range(offset, out)
            .map_err(|source| PageError::read(page, source))
    }
}

/// The keys and tags of a sealed container; the pager holds neither.
pub trait Unsealer: Send + Sync {
    /// Bytes of a chunk: a power of two from 4096 to 1 MiB.
    fn chunk(&self) -> usize;

    /// What opens the chunks of one page; made once per read of the page.
    ///
    /// # Errors
    /// [`UnsealError::NoKey`] when the page's unit was not granted.
    fn page<'a>(&'a self, page: PageId) -> Result<Box<dyn PageOpener + 'a>, UnsealError>;
}

/// Opens chunks of one page in place.
pub trait PageOpener {
    /// Decrypts and authenticates whole chunks that start `at` bytes into the page; only the
    /// page's last chunk may be shorter.
    ///
    /// # Errors
    /// [`UnsealError::Refused`] at the first chunk that does not authenticate.
    fn open(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), UnsealError>;
}

/// A page that could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum UnsealError {
    /// The key of the page's unit is not here.
    #[error("no key for this unit")]
    NoKey,
    /// The bytes are not what was sealed.
    #[error("not authentic")]
    Refused(#[source] SourceError),
}

/// Pages of a sealed container: read, and opened piece by piece while the rest is read.
pub struct SealedSource<R, U> {
    ranges: R,
    geometry: Geometry,
    unsealer: U,
}

impl<R: RangeSource, U: Unsealer> SealedSource<R, U> {
    /// Pages that lie in `ranges` as `geometry` says and are opened by `unsealer`.
    pub const fn new(ranges: R, geometry: Geometry, unsealer: U) -> Self {
        Self {
            ranges,
            geometry,
            unsealer,
        }
    }

    /// The keys and tags.
    pub const fn unsealer(&self) -> &U {
        &self.unsealer
    }
}

impl<R: RangeSource, U: Unsealer> PageSource for SealedSource<R, U> {
    fn read_page(&self, page: PageId, out: &mut [u8]) -> Result<(), PageError> {
        let offset = offset_of(&self.geometry, page, out.len())?;
        let piece = piece_of(out.len()).max(self.unsealer.chunk());
        let readers = self.ranges.readers().min(out.len() / MIN_SHARE).max(1);
        let share = out.len().div_ceil(readers).next_multiple_of(piece);
        let mut parts = out.chunks_mut(share).enumerate().map(|(index, out)| Part {
            page,
            offset,
            at: index * share,
            piece,
            out,
        });
        let Some(first) = parts.next() else {
            return Ok(());
        };
        thread::scope(|scope| {
            let others: Vec<_> = parts
                .map(|part| {
                    let thread = Builder::new().name("page-open".to_owned());
                    thread.spawn_scoped(scope, || self.read_part(part))
                })
                .collect();
            let mut result = self.read_part(first);
            for other in others {
                let other = other.map_err(|error| PageError::read(page, error))?;
                let other = other.join().unwrap_or_else(|panic| resume_unwind(panic));
                result = result.and(other);
            }
            result
        })
    }
}

/// What one thread reads of a page.
struct Part<'a> {
    page: PageId,
    /// Where the page starts in the container.
    offset: u64,
    /// Where this starts in the page, a whole number of pieces.
    at: usize,
    piece: usize,
    out: &'a mut [u8],
}

impl<R: RangeSource, U: Unsealer> SealedSource<R, U> {
    fn read_part(&self, part: Part<'_>) -> Result<(), PageError> {
        let Part {
            page,
            offset,
            at: start,
            piece,
            out,
        } = part;
        let mut opener = self
            .unsealer
            .page(page)
            .map_err(|error| PageError::unseal(page, error))?;
        let (mut refused, mut opened) = (None, 0);
        let mut open = |at, bytes: &mut [u8]| match opener.open(start + at, bytes) {
            Ok(()) => {
                opened += bytes.len();
                ControlFlow::Continue(())
            }
            Err(error) => {
                refused = Some(error);
                ControlFlow::Break(())
            }
        };
        let offset = offset + start as u64;
        let read = self.ranges.read_pieces(offset, out, piece, &mut open);
        match (refused, read) {
            (Some(error), _) => Err(PageError::unseal(page, error)),
            (None, Err(source)) => Err(PageError::read(page, source)),
            // A source that left a piece out must not get unopened bytes past this point.
            (None, Ok(_)) if opened != out.len() => Err(PageError::read(
                page,
                "the source did not deliver every piece",
            )),
            (None, Ok(_)) => Ok(()),
        }
    }
}

/// How a sealed page is cut: enough pieces to open one while others are read, and few requests.
/// Both this and chunk sizes are powers of two, so the longer one is a whole number of chunks.
fn piece_of(page: usize) -> usize {
    (page / PIECES)
        .next_power_of_two()
        .clamp(MIN_PIECE, MAX_PIECE)
}

const PIECES: usize = 32;
/// Least bytes that are worth another thread.
const MIN_SHARE: usize = 4 << 20;
/// Threads that open pages of a file.
const FILE_READERS: usize = 2;
const MIN_PIECE: usize = 256 << 10;
const MAX_PIECE: usize = 1 << 20;

fn offset_of(geometry: &Geometry, page: PageId, len: usize) -> Result<u64, PageError> {
    match geometry.span(page) {
        Some((offset, size)) if size == len => Ok(offset),
        _ => Err(PageError::NoSuchPage {
            page,
            pages: geometry.array(page.array).pages,
        }),
    }
}

/// A page that cannot be had. Cheap to clone: everyone who waited for a page gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The array has no such page.
    #[error("{page}: the array has {pages} pages")]
    NoSuchPage {
        /// The page asked for.
        page: PageId,
        /// Pages of its array.
        pages: u32,
    },
    /// The page could not be read.
    #[error("{page}: could not be read")]
    Read {
        /// The page.
        page: PageId,
        /// Why.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The page was read and is not what was sealed.
    #[error("{page}: not authentic")]
    NotAuthentic {
        /// The page.
        page: PageId,
        /// Which chunk, and why.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The key of the page's unit was not granted.
    #[error("{page}: no key for its unit")]
    NoKey {
        /// The page.
        page: PageId,
    },
    /// Everything resident is leased.
    #[error("{page}: no room, leases hold {leased} of the budget of {budget} bytes")]
    AllLeased {
        /// The page asked for.
        page: PageId,
        /// Bytes that leases hold.
        leased: u64,
        /// The budget in bytes.
        budget: u64,
    },
    /// No memory for a frame, although the budget allows it.
    #[error("{page}: no memory for its frame")]
    NoMemory {
        /// The page.
        page: PageId,
    },
    /// The pager was revoked: it holds no page and reads none.
    #[error("the pages have been revoked")]
    Revoked,
}

impl PageError {
    /// A page that could not be read.
    pub fn read(page: PageId, source: impl Into<SourceError>) -> Self {
        Self::Read {
            page,
            source: source.into().into(),
        }
    }

    /// A page that could not be opened.
    #[must_use]
    pub fn unseal(page: PageId, error: UnsealError) -> Self {
        match error {
            UnsealError::NoKey => Self::NoKey { page },
            UnsealError::Refused(source) => Self::NotAuthentic {
                page,
                source: source.into(),
            },
        }
    }
}
