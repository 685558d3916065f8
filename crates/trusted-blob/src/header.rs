//! Magic, header length and header.

use std::ops::Range;

use codec::{DecodeError, Fault, Reader};
use identifiers::Fingerprint;
use model_key::{Component, Label, SubkeyId};
use serde_json::{Map, Value};

use crate::error::BlobError;

/// A blob's header, read from or written as its one canonical text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Payload bytes of every chunk but the last.
    pub chunk: u64,
    /// How many chunks follow, from 1.
    pub chunks: u64,
    /// Fingerprint of the model key.
    pub fingerprint: Fingerprint,
    /// Salt of the blob's subkey.
    pub salt: [u8; 16],
}

impl Header {
    /// The header of a payload of `length` bytes in chunks of `chunk`.
    pub fn for_payload(
        length: u64,
        chunk: u64,
        fingerprint: Fingerprint,
        salt: [u8; 16],
    ) -> Result<Self, BlobError> {
        if !(1..=MAX_CHUNK).contains(&chunk) {
            return Err(BlobError::ChunkSize(chunk));
        }
        Ok(Self {
            chunk,
            chunks: length.div_ceil(chunk).max(1),
            fingerprint,
            salt,
        })
    }

    /// Reads the bytes before the chunks: the header and how many bytes they take. `start` is the
    /// blob's start, [`MAX_PREAMBLE`] bytes or all there are.
    pub fn parse(start: &[u8]) -> Result<(Self, usize), DecodeError> {
        let mut reader = Reader::new(start);
        if reader.array::<10>("magic")? != *MAGIC {
            return Err(fault("magic", 0, "is not KLLMBLOB1 and a newline"));
        }
        let length = reader.u32("header length")? as usize;
        let at = reader.offset();
        let text = reader.text("header", length, MAX_HEADER)?;
        let fields: Map<String, Value> =
            serde_json::from_str(text).map_err(|_| fault("header", at, "is not a JSON object"))?;
        let header = Self {
            chunk: number(&fields, "chunk", MAX_CHUNK, at)?,
            chunks: number(&fields, "chunks", MAX_CHUNKS, at)?,
            fingerprint: word(&fields, "fingerprint")
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| fault("fingerprint", at, "is absent or not a key fingerprint"))?,
            salt: word(&fields, "salt")
                .and_then(|text| {
                    let mut salt = [0; 16];
                    hex::decode_to_slice(text, &mut salt).ok()?;
                    Some(salt)
                })
                .ok_or_else(|| fault("salt", at, "is absent or not 16 bytes in hex"))?,
        };
        // Also refuses unknown and repeated fields, other spacing, order and number forms.
        if text != header.text() {
            return Err(fault("header", at, "is not in the canonical form"));
        }
        let end = reader.offset() as usize;
        Ok((header, end))
    }

    /// The bytes before the chunks.
    #[must_use]
    pub fn preamble(&self) -> Vec<u8> {
        let text = self.text();
        let length = u32::try_from(text.len()).expect("a header's text has under 200 bytes");
        [&MAGIC[..], &length.to_le_bytes(), text.as_bytes()].concat()
    }

    /// The subkey that the chunks are encrypted under.
    #[must_use]
    pub fn subkey_id(&self) -> SubkeyId {
        SubkeyId {
            component: Component::Model,
            label: Label::TrustedBlob(self.salt),
        }
    }

    /// Where a chunk's payload lies in a payload of `length` bytes.
    pub(crate) fn payload_range(&self, index: u64, length: u64) -> Range<u64> {
        let start = index * self.chunk;
        start..length.min(start + self.chunk)
    }

    /// The header as Python's `json` writes it with sorted keys.
    pub(crate) fn text(&self) -> String {
        format!(
            r#"{{"chunk": {}, "chunks": {}, "fingerprint": "{}", "salt": "{}"}}"#,
            self.chunk,
            self.chunks,
            self.fingerprint,
            hex::encode(self.salt),
        )
    }
}

/// 64 MiB, what the reference writes.
pub const DEFAULT_CHUNK: u64 = 64 << 20;

/// The largest chunk that is read or written: 1 GiB.
pub const MAX_CHUNK: u64 = 1 << 30;

/// The longest header text that is read; the canonical one has under 200 bytes.
pub const MAX_HEADER: usize = 1024;

/// The most bytes before the chunks.
pub const MAX_PREAMBLE: usize = MAGIC.len() + 4 + MAX_HEADER;

fn number(
    fields: &Map<String, Value>,
    field: &'static str,
    most: u64,
    at: u64,
) -> Result<u64, DecodeError> {
    let value = fields.get(field).and_then(Value::as_u64);
    match value {
        Some(value) if (1..=most).contains(&value) => Ok(value),
        Some(_) | None => Err(fault(
            field,
            at,
            &format!("is absent or not a whole number from 1 to {most}"),
        )),
    }
}

fn word<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    fields.get(field)?.as_str()
}

fn fault(field: &'static str, offset: u64, reason: &str) -> DecodeError {
    DecodeError {
        field,
        offset,
        fault: Fault::Invalid(reason.to_owned()),
    }
}

const MAGIC: &[u8; 10] = b"KLLMBLOB1\n";
/// So that `chunk * chunks` stays far below 2^64.
const MAX_CHUNKS: u64 = 1 << 32;
