use std::fmt;
use std::str::FromStr;

use crate::hash::Hash;

/// Where a tile of the log is kept: `tile/<L>/<N>[.p/<W>]` or `tile/entries/<N>[.p/<W>]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TilePath {
    /// Hashes of a level, or entries.
    pub kind: TileKind,
    /// The tile's number within its level.
    pub index: u64,
    /// Hashes or entries in the tile, 1 to [`TILE_WIDTH`]; fewer than that is a partial tile.
    pub width: u32,
}

/// What a tile holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TileKind {
    /// Hashes of complete subtrees of `256^level` entries; 0 to 7 exist in practice, 63 is the last.
    Hashes {
        /// The tile level.
        level: u8,
    },
    /// Entries, each with its length in front.
    Entries,
}

/// Why a tile or its path is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    /// Not a tile path.
    #[error("not a tile path: {0}")]
    Path(&'static str),
    /// A tile of another length than its width calls for.
    #[error("the tile has {found} bytes, expected {expected}")]
    Length {
        /// Bytes found.
        found: usize,
        /// Bytes of a tile of that width.
        expected: usize,
    },
    /// An entry bundle that ends inside an entry.
    #[error("the bundle ends inside entry {number}")]
    Truncated {
        /// The entry's number within the bundle.
        number: u32,
    },
    /// Bytes after the last entry.
    #[error("{left} bytes follow the last entry of the bundle")]
    Trailing {
        /// How many.
        left: usize,
    },
    /// An entry above [`MAX_ENTRY_BYTES`].
    #[error("an entry of {found} bytes is above the maximum of 65535")]
    EntryTooLong {
        /// Its length.
        found: usize,
    },
}

impl TilePath {
    /// Every tile of a log with `size` entries, at the widths it has then.
    pub fn all(size: u64) -> impl Iterator<Item = Self> {
        let levels = (0..8u8).take_while(move |level| size >> (8 * u32::from(*level)) > 0);
        let hashes = levels.flat_map(move |level| {
            let kind = TileKind::Hashes { level };
            Self::row(kind, size >> (8 * u32::from(level)))
        });
        hashes.chain(Self::row(TileKind::Entries, size))
    }

    pub(crate) fn row(kind: TileKind, count: u64) -> impl Iterator<Item = Self> {
        let tile = move |index: u64| Self {
            kind,
            index,
            width: (count - index * u64::from(TILE_WIDTH)).min(u64::from(TILE_WIDTH)) as u32,
        };
        (0..count.div_ceil(u64::from(TILE_WIDTH))).map(tile)
    }

    /// Whether a log with `size` entries has this tile.
    #[must_use]
    pub fn exists_at(&self, size: u64) -> bool {
        let shift = match self.kind {
            TileKind::Hashes { level } => 8 * u32::from(level),
            TileKind::Entries => 0,
        };
        let count = size.checked_shr(shift).unwrap_or(0);
        let end = self
            .index
            .checked_mul(256)
            .and_then(|start| start.checked_add(self.width.into()));
        end.is_some_and(|end| end <= count)
    }
}

impl fmt::Display for TilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            TileKind::Hashes { level } => write!(f, "tile/{level}/")?,
            TileKind::Entries => f.write_str("tile/entries/")?,
        }
        let mut groups = vec![self.index % 1000];
        let mut rest = self.index / 1000;
        while rest > 0 {
            groups.push(rest % 1000);
            rest /= 1000;
        }
        for (number, group) in groups.iter().enumerate().rev() {
            let prefix = if number == 0 { "" } else { "x" };
            let end = if number == 0 { "" } else { "/" };
            write!(f, "{prefix}{group:03}{end}")?;
        }
        if self.width < TILE_WIDTH {
            write!(f, ".p/{}", self.width)?;
        }
        Ok(())
    }
}

impl FromStr for TilePath {
    type Err = TileError;

    fn from_str(text: &str) -> Result<Self, TileError> {
        let path = parse(text).ok_or(TileError::Path(
            "expected tile/<level>/<number>[.p/<width>]",
        ))?;
        // One spelling for each tile: what is printed.
        if path.to_string() == text {
            Ok(path)
        } else {
            Err(TileError::Path("not in its one accepted spelling"))
        }
    }
}

fn parse(text: &str) -> Option<TilePath> {
    if text.len() > MAX_PATH_BYTES {
        return None;
    }
    let (kind, rest) = text.strip_prefix("tile/")?.split_once('/')?;
    let kind = match kind {
        "entries" => TileKind::Entries,
        level => TileKind::Hashes {
            level: level.parse().ok().filter(|level| *level < 64)?,
        },
    };
    let (number, width) = match rest.split_once(".p/") {
        Some((number, width)) => (number, width.parse().ok()?),
        None => (rest, TILE_WIDTH),
    };
    if !(1..=TILE_WIDTH).contains(&width) {
        return None;
    }
    let mut index = 0u64;
    for group in number.split('/') {
        let digits = group.strip_prefix('x').unwrap_or(group);
        let value: u64 = digits.parse().ok().filter(|value| *value < 1000)?;
        index = index.checked_mul(1000)?.checked_add(value)?;
    }
    Some(TilePath { kind, index, width })
}

/// The bytes of a tile of hashes.
#[must_use]
pub fn encode_hashes(hashes: &[Hash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| *hash.as_bytes()).collect()
}

/// The hashes of a tile of `width`.
pub fn decode_hashes(bytes: &[u8], width: u32) -> Result<Vec<Hash>, TileError> {
    let expected = width as usize * 32;
    if bytes.len() != expected {
        let found = bytes.len();
        return Err(TileError::Length { found, expected });
    }
    let (hashes, _) = bytes.as_chunks::<32>();
    Ok(hashes.iter().map(|hash| Hash::new(*hash)).collect())
}

/// The bytes of an entry bundle: each entry after its length, u16 big-endian.
pub fn encode_entries<'a>(
    entries: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<u8>, TileError> {
    let mut bundle = Vec::new();
    for entry in entries {
        let found = entry.len();
        let length = u16::try_from(found).map_err(|_| TileError::EntryTooLong { found })?;
        bundle.extend_from_slice(&length.to_be_bytes());
        bundle.extend_from_slice(entry);
    }
    Ok(bundle)
}

/// The `width` entries of a bundle.
pub fn decode_entries(bytes: &[u8], width: u32) -> Result<Vec<&[u8]>, TileError> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    for number in 0..width {
        let truncated = TileError::Truncated { number };
        let (length, after) = rest.split_first_chunk::<2>().ok_or(truncated.clone())?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (entry, after) = after.split_at_checked(length).ok_or(truncated)?;
        entries.push(entry);
        rest = after;
    }
    match rest.len() {
        0 => Ok(entries),
        left => Err(TileError::Trailing { left }),
    }
}

/// Hashes in a full tile.
pub const TILE_WIDTH: u32 = 256;
/// The longest entry.
pub const MAX_ENTRY_BYTES: usize = u16::MAX as usize;
const MAX_PATH_BYTES: usize = 64;
