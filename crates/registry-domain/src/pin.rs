use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use identifiers::Sha256Digest;

/// The last checkpoint a service saw, kept in a file outside the database: a log that went back,
/// or forked, is refused at the next start.
#[derive(Debug, Clone)]
pub struct CheckpointPin {
    path: PathBuf,
}

/// Why a pin could not be used, or what it found.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The file could not be read or written.
    #[error("checkpoint pin {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What failed.
        #[source]
        source: io::Error,
    },
    /// The file is not a checkpoint signed by this log.
    #[error("checkpoint pin {path} is not a checkpoint of this log")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: tlog::CheckpointError,
    },
    /// The log has fewer entries than when it was last seen.
    #[error("the log went back: it had {pinned} entries when last seen, and has {found}")]
    WentBack {
        /// Size of the pinned checkpoint.
        pinned: u64,
        /// Size found.
        found: u64,
    },
    /// The log is not an extension of the one last seen.
    #[error("the log forked: its {found} entries do not extend the {pinned} last seen")]
    Forked {
        /// Size of the pinned checkpoint.
        pinned: u64,
        /// Size found.
        found: u64,
    },
}

impl CheckpointPin {
    /// The pin kept in `path`, which need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The pinned checkpoint, checked with the log's key; `None` before the first.
    pub fn load(&self, log: &tlog::NoteVerifier) -> Result<Option<tlog::Checkpoint>, PinError> {
        let note = match fs::read_to_string(&self.path) {
            Ok(note) => note,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.io(error)),
        };
        let checkpoint =
            tlog::Checkpoint::verify(&note, log).map_err(|source| PinError::Damaged {
                path: self.path.clone(),
                source,
            })?;
        Ok(Some(checkpoint))
    }

    /// Replaces the pinned checkpoint, durably: a crash leaves the old or the new one.
    pub fn store(&self, note: &str) -> Result<(), PinError> {
        let folder = self
            .path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or_else(|| Path::new("."));
        let mut next = self.path.clone().into_os_string();
        next.push(".next");
        let replace = || {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .open(&next)?;
            file.write_all(note.as_bytes())?;
            file.sync_all()?;
            fs::rename(&next, &self.path)?;
            File::open(folder)?.sync_all()
        };
        replace().map_err(|error| self.io(error))
    }

    fn io(&self, source: io::Error) -> PinError {
        let path = self.path.clone();
        PinError::Io { path, source }
    }
}

/// Compares the pinned checkpoint with the log's present head; `proof` is the consistency proof
/// between their sizes (empty when they are equal or the log is shorter).
pub fn check_against_pin(
    pinned: &tlog::Checkpoint,
    found_size: u64,
    found_root: &Sha256Digest,
    proof: &[Sha256Digest],
) -> Result<(), PinError> {
    let (pinned_size, found) = (pinned.size, found_size);
    if found < pinned_size {
        return Err(PinError::WentBack {
            pinned: pinned_size,
            found,
        });
    }
    tlog::verify_consistency(pinned_size, found, proof, &pinned.root, found_root).map_err(|_| {
        PinError::Forked {
            pinned: pinned_size,
            found,
        }
    })
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;
    use tlog::{Checkpoint, Frontier, NoteSigner, leaf_hash};

    use super::*;

    fn log_key(byte: u8) -> NoteSigner {
        NoteSigner::new("log.test", SigningKey::from_bytes(&[byte; 32])).unwrap()
    }

    fn checkpoint(size: u8) -> Checkpoint {
        let mut frontier = Frontier::new();
        for entry in 0..size {
            frontier.append(leaf_hash(&[entry]));
        }
        Checkpoint {
            origin: "log.test".to_owned(),
            size: size.into(),
            root: frontier.root(),
        }
    }

    #[test]
    fn a_pin_is_read_as_it_was_stored_and_only_under_the_logs_key() {
        let folder = tempfile::tempdir().unwrap();
        let pin = CheckpointPin::new(folder.path().join("log.checkpoint"));
        let log = log_key(1);
        assert_eq!(pin.load(log.verifier()).unwrap(), None);
        for size in [3, 5] {
            pin.store(&checkpoint(size).sign(&log).unwrap()).unwrap();
            assert_eq!(pin.load(log.verifier()).unwrap(), Some(checkpoint(size)));
        }
        let refused = pin.load(log_key(2).verifier()).unwrap_err();
        assert!(matches!(refused, PinError::Damaged { .. }), "{refused}");
        pin.store("").unwrap();
        assert!(matches!(
            pin.load(log.verifier()),
            Err(PinError::Damaged { .. })
        ));
        let nowhere = CheckpointPin::new(folder.path().join("missing/log.checkpoint"));
        assert!(matches!(nowhere.store("x"), Err(PinError::Io { .. })));
    }

    #[test]
    fn a_shorter_log_went_back_and_another_one_forked() {
        let (old, new) = (checkpoint(4), checkpoint(8));
        // The tree of 4 is a node of the tree of 8: its sibling is the proof.
        let mut right = Frontier::new();
        for entry in 4..8 {
            right.append(leaf_hash(&[entry]));
        }
        let proof = [right.root()];
        check_against_pin(&old, 8, &new.root, &proof).unwrap();
        check_against_pin(&old, 4, &old.root, &[]).unwrap();
        let back = check_against_pin(&new, 4, &old.root, &[]).unwrap_err();
        assert!(
            matches!(
                back,
                PinError::WentBack {
                    pinned: 8,
                    found: 4
                }
            ),
            "{back}"
        );
        for (size, root, proof) in [
            (8, old.root, &proof[..]),
            (8, new.root, &[]),
            (4, new.root, &[]),
        ] {
            let forked = check_against_pin(&old, size, &root, proof).unwrap_err();
            assert!(matches!(forked, PinError::Forked { .. }), "{forked}");
        }
    }
}
