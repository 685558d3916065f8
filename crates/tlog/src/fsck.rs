use crate::checkpoint::Checkpoint;
use crate::hash::{Hash, leaf_hash};
use crate::tile::{TILE_WIDTH, TileKind, TilePath, decode_entries, decode_hashes};
use crate::tree::Frontier;

/// Reads the tiles of a stored log.
pub trait TileReader {
    /// Why a tile could not be read.
    type Error: std::fmt::Display;

    /// The bytes of one tile.
    fn read(&mut self, path: &TilePath) -> Result<Vec<u8>, Self::Error>;
}

/// Something wrong in a stored log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The tile; `None` for the root.
    pub tile: Option<TilePath>,
    /// What is wrong.
    pub problem: String,
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Entries whose bundle was read and whose leaf hashes agree.
    pub entries: u64,
    /// Tiles read.
    pub tiles: u64,
    /// What is wrong, at most [`MAX_FAULTS`] of it.
    pub faults: Vec<Fault>,
}

/// Reads every tile of the log that `checkpoint` commits to, and compares entries with leaf
/// hashes, each level with the one below, and the whole with the root.
pub fn fsck<R: TileReader>(checkpoint: &Checkpoint, reader: &mut R) -> Report {
    let mut report = Report::default();
    let mut frontier = Frontier::new();
    let mut below = Vec::new();
    for path in row(TileKind::Entries, checkpoint.size) {
        let Some(bytes) = report.read(reader, path) else {
            continue;
        };
        match decode_entries(&bytes, path.width) {
            Ok(entries) => {
                let leaves: Vec<Hash> = entries.iter().map(|entry| leaf_hash(entry)).collect();
                for leaf in &leaves {
                    frontier.append(*leaf);
                }
                report.entries += leaves.len() as u64;
                below.extend(leaves);
            }
            Err(error) => report.fault(Some(path), error.to_string()),
        }
        if report.is_full() {
            return report;
        }
    }
    let mut level = 0;
    while !below.is_empty() && report.faults.is_empty() {
        below = compare_level(level, &below, reader, &mut report);
        level += 1;
    }
    if report.faults.is_empty() && frontier.root() != checkpoint.root {
        let problem = format!(
            "the entries' root is {}, the checkpoint's {}",
            frontier.root(),
            checkpoint.root
        );
        report.fault(None, problem);
    }
    report
}

/// Compares the tiles of a level with the hashes they should hold; gives those of the next level.
fn compare_level<R: TileReader>(
    level: u8,
    expected: &[Hash],
    reader: &mut R,
    report: &mut Report,
) -> Vec<Hash> {
    let mut above = Vec::new();
    for (path, expected) in row(TileKind::Hashes { level }, expected.len() as u64)
        .zip(expected.chunks(TILE_WIDTH as usize))
    {
        if report.is_full() {
            break;
        }
        let Some(bytes) = report.read(reader, path) else {
            continue;
        };
        match decode_hashes(&bytes, path.width) {
            Ok(found) => {
                let differs = found
                    .iter()
                    .zip(expected)
                    .position(|(found, hash)| found != hash);
                if let Some(number) = differs {
                    report.fault(
                        Some(path),
                        format!("hash {number} is not that of what is below it"),
                    );
                }
            }
            Err(error) => report.fault(Some(path), error.to_string()),
        }
        if path.width == TILE_WIDTH {
            let mut frontier = Frontier::new();
            for hash in expected {
                frontier.append(*hash);
            }
            above.push(frontier.root());
        }
    }
    above
}

fn row(kind: TileKind, count: u64) -> impl Iterator<Item = TilePath> {
    TilePath::row(kind, count)
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty()
    }

    fn is_full(&self) -> bool {
        self.faults.len() >= MAX_FAULTS
    }

    fn fault(&mut self, tile: Option<TilePath>, problem: String) {
        self.faults.push(Fault { tile, problem });
    }

    fn read<R: TileReader>(&mut self, reader: &mut R, path: TilePath) -> Option<Vec<u8>> {
        self.tiles += 1;
        let read = reader.read(&path);
        read.map_err(|error| self.fault(Some(path), error.to_string()))
            .ok()
    }
}

/// The most faults one report lists; the check stops there.
pub const MAX_FAULTS: usize = 100;
