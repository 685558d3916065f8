use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::checkpoint::{Checkpoint, CheckpointError, decimal};
use crate::hash::{Hash, leaf_hash};
use crate::note::NoteVerifier;
use crate::proof::{ProofError, verify_inclusion};

/// A proof that an entry is in a log, to be checked offline (C2SP tlog-proof).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfflineProof {
    /// Bytes that nothing authenticates.
    pub extra: Option<Vec<u8>>,
    /// The entry's index.
    pub index: u64,
    /// The inclusion path, leaf sibling first.
    pub hashes: Vec<Hash>,
    /// The signed checkpoint.
    pub checkpoint: String,
}

/// Why an offline proof is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfflineProofError {
    /// Not a tlog-proof.
    #[error("not a log proof: {0}")]
    Malformed(&'static str),
    /// The checkpoint is not the log's.
    #[error("the proof's checkpoint is not accepted")]
    Checkpoint(#[source] CheckpointError),
    /// The entry is not in the tree.
    #[error("the entry is not in the log at the proof's index")]
    Inclusion(#[source] ProofError),
}

impl OfflineProof {
    /// Checks that `entry` is in the log; gives the checkpoint that commits to it.
    pub fn verify(
        &self,
        entry: &[u8],
        log: &NoteVerifier,
    ) -> Result<Checkpoint, OfflineProofError> {
        let checkpoint =
            Checkpoint::verify(&self.checkpoint, log).map_err(OfflineProofError::Checkpoint)?;
        let leaf = leaf_hash(entry);
        verify_inclusion(
            &leaf,
            self.index,
            checkpoint.size,
            &self.hashes,
            &checkpoint.root,
        )
        .map_err(OfflineProofError::Inclusion)?;
        Ok(checkpoint)
    }
}

impl fmt::Display for OfflineProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        if let Some(extra) = &self.extra {
            writeln!(f, "extra {}", BASE64_STANDARD.encode(extra))?;
        }
        writeln!(f, "index {}", self.index)?;
        for hash in &self.hashes {
            writeln!(f, "{}", BASE64_STANDARD.encode(hash.as_bytes()))?;
        }
        write!(f, "\n{}", self.checkpoint)
    }
}

impl FromStr for OfflineProof {
    type Err = OfflineProofError;

    fn from_str(text: &str) -> Result<Self, OfflineProofError> {
        let malformed = OfflineProofError::Malformed;
        if text.len() > MAX_PROOF_BYTES {
            return Err(malformed("it is too long"));
        }
        let (head, checkpoint) = text.split_once("\n\n").ok_or(malformed("no checkpoint"))?;
        let mut lines = head.split('\n');
        if lines.next() != Some(HEADER) {
            return Err(malformed("another first line"));
        }
        let mut line = lines.next();
        let mut extra = None;
        if let Some(text) = line.and_then(|line| line.strip_prefix("extra ")) {
            let bytes = BASE64_STANDARD
                .decode(text)
                .map_err(|_| malformed("extra is not base64"))?;
            extra = Some(bytes);
            line = lines.next();
        }
        let index = line
            .and_then(|line| line.strip_prefix("index "))
            .and_then(decimal)
            .ok_or(malformed("no index"))?;
        let hash = |line: &str| {
            let bytes = BASE64_STANDARD.decode(line).ok()?;
            Some(Hash::new(bytes.try_into().ok()?))
        };
        let hashes: Option<Vec<Hash>> = lines.take(MAX_PATH + 1).map(hash).collect();
        let hashes = hashes.ok_or(malformed("a hash is not 32 bytes in base64"))?;
        if hashes.len() > MAX_PATH {
            return Err(malformed("the path is longer than any tree is high"));
        }
        Ok(Self {
            extra,
            index,
            hashes,
            checkpoint: checkpoint.to_owned(),
        })
    }
}

const HEADER: &str = "c2sp.org/tlog-proof@v1";
/// The longest offline proof.
pub const MAX_PROOF_BYTES: usize = 128 * 1024;
const MAX_PATH: usize = 63;
