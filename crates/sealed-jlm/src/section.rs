//! The seal section and the trailer that points at it.

use codec::{Fault, Reader, Writer};
use identifiers::{Fingerprint, Sha256Digest};
use jlm::{Container, Region, Span};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::chunks::{ChunkSize, Cut};
use crate::error::SealedJlmError;
use crate::{SEAL_FORMAT, TAG_LEN};

/// Bytes of the trailer, at the end of the file.
pub const TRAILER_LEN: u64 = 64;

/// The file's last 64 bytes: where the seal section is, and its SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    section: Span,
    digest: [u8; 32],
}

impl Trailer {
    /// Decodes the last 64 bytes of a file of `file_len` bytes. The section must end where the
    /// trailer begins, at a multiple of 4096.
    pub fn decode(bytes: &[u8], file_len: u64) -> Result<Self, SealedJlmError> {
        let mut reader = Reader::new(bytes);
        let trailer = Self::read(&mut reader).map_err(SealedJlmError::Malformed)?;
        reader
            .finish("trailer")
            .map_err(SealedJlmError::Malformed)?;
        let section = trailer.section;
        if section.end().and_then(|end| end.checked_add(TRAILER_LEN)) != Some(file_len) {
            return Err(SealedJlmError::Trailer(
                "the section does not end before it",
            ));
        }
        if !section.offset.is_multiple_of(jlm::ALIGN) {
            return Err(SealedJlmError::Trailer(
                "the section's offset is not aligned",
            ));
        }
        if section.length > MAX_SECTION {
            return Err(SealedJlmError::Trailer("the section is longer than 1 GiB"));
        }
        Ok(trailer)
    }

    /// Where the seal section is. The plain container's length is its offset.
    #[must_use]
    pub const fn section(&self) -> Span {
        self.section
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, codec::DecodeError> {
        let invalid = |reader: &Reader<'_>, field, reason: &str| {
            reader.error(field, Fault::Invalid(reason.to_owned()))
        };
        let before = reader.clone();
        if reader.bytes("trailer magic", MAGIC.len())? != MAGIC {
            return Err(invalid(&before, "trailer magic", "is missing"));
        }
        let section = Span::new(reader.u64("section offset")?, reader.u64("section length")?);
        let before = reader.clone();
        if reader.u64("trailer padding")? != 0 {
            return Err(invalid(&before, "trailer padding", "is not zero"));
        }
        let digest = reader.array("section digest")?;
        Ok(Self { section, digest })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.bytes(MAGIC);
        out.u64(self.section.offset);
        out.u64(self.section.length);
        out.u64(0);
        out.bytes(&self.digest);
        out.into_bytes()
    }
}

/// The seal header: JSON with sorted keys and no spaces, which its field order gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealHeader {
    pub(crate) aggregate: Sha256Digest,
    pub(crate) chunk: u64,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) regions: Vec<RegionEntry>,
    #[serde(with = "hex::serde")]
    pub(crate) salt: [u8; 16],
    pub(crate) version: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegionEntry {
    id: u8,
    len: u64,
    off: u64,
    unit: u64,
}

impl SealHeader {
    /// The regions that must be listed: all that are not empty, in id order.
    pub(crate) fn regions_of(container: &Container) -> Vec<RegionEntry> {
        Region::ALL
            .into_iter()
            .map(|region| (region, container.region(region)))
            .filter(|(_, span)| span.length > 0)
            .map(|(region, span)| RegionEntry {
                id: region.id(),
                len: span.length,
                off: span.offset,
                unit: container.unit_len(region),
            })
            .collect()
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers always serialise")
    }
}

/// A decoded section: the header, its exact JSON, and the tag table.
pub(crate) struct Section {
    pub(crate) header: SealHeader,
    pub(crate) json: Vec<u8>,
    pub(crate) tags: Vec<u8>,
}

impl Section {
    /// Decodes a section and checks its digest against the trailer's.
    pub(crate) fn decode(bytes: &[u8], trailer: &Trailer) -> Result<Self, SealedJlmError> {
        if bytes.len() as u64 != trailer.section.length {
            return Err(SealedJlmError::Section("is not of the trailer's length"));
        }
        if Sha256::digest(bytes)[..] != trailer.digest {
            return Err(SealedJlmError::Section(
                "is not the one the trailer was made for",
            ));
        }
        let mut reader = Reader::new(bytes);
        let length = reader
            .count("seal header length", 1, MAX_HEADER)
            .map_err(SealedJlmError::Malformed)?;
        let json = reader
            .bytes("seal header", length)
            .map_err(SealedJlmError::Malformed)?;
        let header: SealHeader = serde_json::from_slice(json).map_err(SealedJlmError::Json)?;
        if header.version != SEAL_FORMAT {
            return Err(SealedJlmError::Format(header.version));
        }
        if header.to_json() != json {
            return Err(SealedJlmError::Section(
                "has a header that is not in canonical form",
            ));
        }
        let tags = &bytes[reader.offset() as usize..];
        Ok(Self {
            header,
            json: json.to_vec(),
            tags: tags.to_vec(),
        })
    }

    /// The header agrees with the container, and the tag table has a tag for each chunk.
    pub(crate) fn check(&self, container: &Container) -> Result<Vec<Cut>, SealedJlmError> {
        let chunk = ChunkSize::new(self.header.chunk)?;
        if self.header.regions != SealHeader::regions_of(container) {
            return Err(SealedJlmError::Section(
                "lists other regions than the container has",
            ));
        }
        let cuts = Cut::all(container, chunk)
            .ok_or(SealedJlmError::Section("would have more than 2^64 chunks"))?;
        let chunks: u64 = cuts.iter().map(Cut::region_chunks).sum();
        if chunks.checked_mul(TAG_LEN as u64) != Some(self.tags.len() as u64) {
            return Err(SealedJlmError::Section(
                "has a tag table that is not a tag a chunk",
            ));
        }
        Ok(cuts)
    }
}

/// The section's bytes and the trailer's, to be written from `offset` on.
pub(crate) fn encode(json: &[u8], tags: &[u8], offset: u64) -> Vec<u8> {
    let mut out = Writer::new();
    out.u32(json.len() as u32);
    out.bytes(json);
    out.bytes(tags);
    let mut bytes = out.into_bytes();
    let trailer = Trailer {
        section: Span::new(offset, bytes.len() as u64),
        digest: Sha256::digest(&bytes).into(),
    };
    bytes.extend_from_slice(&trailer.encode());
    bytes
}

const MAGIC: &[u8; 8] = b"JLMSEAL1";
const MAX_HEADER: usize = 1 << 16;
const MAX_SECTION: u64 = 1 << 30;
