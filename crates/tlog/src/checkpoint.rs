use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use crate::hash::Hash;
use crate::note::{Note, NoteError, NoteSigner, NoteVerifier};

/// A head of a log (C2SP tlog-checkpoint): what a checkpoint says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// The log's name.
    pub origin: String,
    /// Entries.
    pub size: u64,
    /// Root hash.
    pub root: Hash,
}

/// Why a checkpoint is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Not a signed note, or not signed by the log.
    #[error("the checkpoint is not a note signed by the log")]
    Note(#[source] NoteError),
    /// A note that does not have the lines of a checkpoint.
    #[error("not a checkpoint: {0}")]
    Malformed(&'static str),
    /// A checkpoint of another log.
    #[error("the checkpoint is of the log {0}")]
    Origin(String),
}

impl Checkpoint {
    /// The text that is signed.
    #[must_use]
    pub fn body(&self) -> String {
        let root = BASE64_STANDARD.encode(self.root.as_bytes());
        format!("{}\n{}\n{root}\n", self.origin, self.size)
    }

    /// A signed note of this checkpoint; the signer's name must be the origin.
    pub fn sign(&self, log: &NoteSigner) -> Result<String, CheckpointError> {
        if log.verifier().name() != self.origin {
            return Err(CheckpointError::Origin(self.origin.clone()));
        }
        let text = self.body();
        let signature = log.sign(&text, 0).map_err(CheckpointError::Note)?;
        let note = Note {
            text,
            signatures: vec![signature],
        };
        Ok(note.encode())
    }

    /// The checkpoint of a note that is signed by `log`.
    pub fn verify(note: &str, log: &NoteVerifier) -> Result<Self, CheckpointError> {
        let note: Note = note.parse().map_err(CheckpointError::Note)?;
        log.verify(&note).map_err(CheckpointError::Note)?;
        let checkpoint = Self::parse_body(&note.text)?;
        if checkpoint.origin != log.name() {
            return Err(CheckpointError::Origin(checkpoint.origin));
        }
        Ok(checkpoint)
    }

    /// Parses a checkpoint's text. Extension lines are allowed and ignored.
    pub fn parse_body(text: &str) -> Result<Self, CheckpointError> {
        let malformed = CheckpointError::Malformed;
        let body = text
            .strip_suffix('\n')
            .ok_or(malformed("the last line does not end"))?;
        let mut lines = body.split('\n');
        let origin = lines
            .next()
            .filter(|line| !line.is_empty())
            .ok_or(malformed("no origin"))?;
        let size = lines
            .next()
            .and_then(decimal)
            .ok_or(malformed("the size is not a decimal number"))?;
        let root = lines
            .next()
            .and_then(|line| BASE64_STANDARD.decode(line).ok());
        let root: [u8; 32] = root
            .and_then(|root| root.try_into().ok())
            .ok_or(malformed("the root is not 32 bytes in base64"))?;
        if lines.any(str::is_empty) {
            return Err(malformed("an extension line is empty"));
        }
        Ok(Self {
            origin: origin.to_owned(),
            size,
            root: Hash::new(root),
        })
    }
}

/// A decimal number without sign or leading zeroes.
pub(crate) fn decimal(text: &str) -> Option<u64> {
    let number: u64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}
