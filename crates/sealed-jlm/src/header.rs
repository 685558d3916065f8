//! A sealed container's structure, proved before any key is asked for.

use identifiers::{Fingerprint, Sha256Digest};
use jlm::{Container, Header, Region, Span, UnitId};
use model_key::{Component, Label, Subkey, SubkeyId};
use sha2::{Digest, Sha256};

use crate::chunks::{self, Binding, ChunkSize, Cut};
use crate::error::SealedJlmError;
use crate::page::PageOpener;
use crate::section::{Section, Trailer};
use crate::{SEAL_FORMAT, SEALED_VERSION, TAG_LEN};

/// A sealed container whose header, table, seal header and tag table agree with each other.
///
/// What it says is authentic only once a unit was opened under it: every chunk is bound to the
/// header, config, table, fingerprint and seal header.
#[derive(Debug)]
pub struct SealedHeader {
    container: Container,
    salt: [u8; 16],
    chunk: ChunkSize,
    aggregate: Sha256Digest,
    fingerprint: Fingerprint,
    cuts: Vec<Cut>,
    tags: Vec<u8>,
    binding: Binding,
}

impl SealedHeader {
    /// Bytes from the start of the file that [`Self::decode`] needs, from the first 192.
    pub fn meta_len(header: &[u8], trailer: &Trailer) -> Result<u64, SealedJlmError> {
        let plain = plain_header(header)?;
        Ok(Header::decode(&plain, trailer.section().offset)?.meta_len())
    }

    /// Refuses a file that does not begin as a sealed container does, from its first 192 bytes.
    pub fn refuse_plain(header: &[u8]) -> Result<(), SealedJlmError> {
        plain_header(header).map(drop)
    }

    /// Proves the structure of a sealed container.
    ///
    /// `meta` is the start of the file up to the dense region, `section` the bytes that
    /// `trailer` names. The vocab and vision sections within `meta` may be as they are in the
    /// file: they are not read.
    pub fn decode(meta: &[u8], trailer: &Trailer, section: &[u8]) -> Result<Self, SealedJlmError> {
        let sealed_header = meta.get(..HEADER_LEN).ok_or(SealedJlmError::Magic)?;
        let mut plain = meta.to_vec();
        plain[..HEADER_LEN].copy_from_slice(&plain_header(sealed_header)?);
        let container = Container::decode(&plain, trailer.section().offset)?;
        check_padding(&container, meta)?;
        let section = Section::decode(section, trailer)?;
        let cuts = section.check(&container)?;
        Ok(Self {
            binding: binding(&container, meta, &section.json),
            container,
            salt: section.header.salt,
            chunk: ChunkSize::new(section.header.chunk)?,
            aggregate: section.header.aggregate,
            fingerprint: section.header.fingerprint,
            cuts,
            tags: section.tags,
        })
    }

    /// Refuses a container that was sealed under another key than `expected`.
    pub fn require_fingerprint(&self, expected: Fingerprint) -> Result<(), SealedJlmError> {
        if self.fingerprint == expected {
            return Ok(());
        }
        Err(SealedJlmError::Fingerprint {
            found: self.fingerprint,
            expected,
        })
    }

    /// The container's structure, as of its plain form.
    #[must_use]
    pub const fn container(&self) -> &Container {
        &self.container
    }

    /// The salt that unit keys are derived with.
    #[must_use]
    pub const fn salt(&self) -> &[u8; 16] {
        &self.salt
    }

    /// Chunk size.
    #[must_use]
    pub const fn chunk(&self) -> ChunkSize {
        self.chunk
    }

    /// Base-weight aggregate of the checkpoint that was converted.
    #[must_use]
    pub const fn aggregate(&self) -> Sha256Digest {
        self.aggregate
    }

    /// Fingerprint of the model key that the unit keys come from.
    #[must_use]
    pub const fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The id of a unit's key.
    #[must_use]
    pub fn subkey_id(&self, unit: UnitId) -> SubkeyId {
        subkey_id(&self.salt, unit)
    }

    /// Authenticates and decrypts a whole unit in place. On failure the buffer is zeroed.
    pub fn open_unit(
        &self,
        unit: UnitId,
        key: &Subkey,
        bytes: &mut [u8],
    ) -> Result<(), SealedJlmError> {
        let cut = self.cut(unit)?;
        check_length(unit, bytes, cut.unit_len)?;
        self.open(cut, unit, key, 0, cut.unit_chunks(), bytes)
    }

    /// Authenticates and decrypts the page of expert `expert` of a mixture block in place.
    /// `unit` is the block's unit: see [`Container::mixtures`].
    pub fn open_expert(
        &self,
        unit: UnitId,
        expert: u32,
        key: &Subkey,
        bytes: &mut [u8],
    ) -> Result<(), SealedJlmError> {
        let cut = self.cut(unit)?;
        if unit.region != Region::Experts || expert >= self.container.experts() {
            return Err(SealedJlmError::NoUnit(unit));
        }
        check_length(unit, bytes, cut.piece_len)?;
        self.open(cut, unit, key, expert.into(), cut.piece_chunks(), bytes)
    }

    /// What opens a page chunk by chunk: that of a text or vision block (`expert` 0), or that of
    /// expert `expert` of a mixture block.
    pub fn page_opener(
        &self,
        unit: UnitId,
        expert: u32,
        key: &Subkey,
    ) -> Result<PageOpener<'_>, SealedJlmError> {
        let cut = self.cut(unit)?;
        let piece = u64::from(expert);
        if piece >= cut.unit_len / cut.piece_len {
            return Err(SealedJlmError::NoUnit(unit));
        }
        let tags = self.tags(cut, unit, piece, cut.piece_chunks());
        Ok(PageOpener::new(cut, self.binding, unit, piece, key, tags))
    }

    fn open(
        &self,
        cut: &Cut,
        unit: UnitId,
        key: &Subkey,
        first_piece: u64,
        chunks: u64,
        bytes: &mut [u8],
    ) -> Result<(), SealedJlmError> {
        let tags = self.tags(cut, unit, first_piece, chunks);
        chunks::open(cut, self.binding, unit, key, first_piece, bytes, tags)
    }

    /// The tags of `chunks` chunks from the start of a piece.
    fn tags(&self, cut: &Cut, unit: UnitId, first_piece: u64, chunks: u64) -> &[u8] {
        let first = cut.unit_tag(unit.index) + first_piece * cut.piece_chunks();
        &self.tags[first as usize * TAG_LEN..(first + chunks) as usize * TAG_LEN]
    }

    fn cut(&self, unit: UnitId) -> Result<&Cut, SealedJlmError> {
        find_cut(&self.cuts, unit)
    }
}

pub(crate) fn find_cut(cuts: &[Cut], unit: UnitId) -> Result<&Cut, SealedJlmError> {
    cuts.iter()
        .find(|cut| cut.region == unit.region && unit.index < cut.units)
        .ok_or(SealedJlmError::NoUnit(unit))
}

pub(crate) fn check_length(unit: UnitId, bytes: &[u8], needed: u64) -> Result<(), SealedJlmError> {
    let given = bytes.len() as u64;
    if given == needed {
        return Ok(());
    }
    Err(SealedJlmError::Length {
        unit,
        given,
        needed,
    })
}

pub(crate) fn subkey_id(salt: &[u8; 16], unit: UnitId) -> SubkeyId {
    SubkeyId {
        component: Component::Model,
        label: Label::ContainerUnit {
            salt: *salt,
            region: unit.region.id(),
            unit: unit.index,
        },
    }
}

/// SHA-256 of the header as it is in the sealed file, the plain sections and the seal header.
pub(crate) fn binding(container: &Container, meta: &[u8], json: &[u8]) -> Binding {
    let header = container.header();
    let section = |span: Span| &meta[span.offset as usize..(span.offset + span.length) as usize];
    let mut hash = Sha256::new();
    hash.update(&meta[..HEADER_LEN]);
    for span in [header.config, header.table, header.fingerprint] {
        hash.update(section(span));
    }
    hash.update(json);
    Binding(hash.finalize().into())
}

/// The plain form of a sealed header: the plain version, and zero in the reserved word.
fn plain_header(header: &[u8]) -> Result<[u8; HEADER_LEN], SealedJlmError> {
    let mut plain: [u8; HEADER_LEN] = header
        .get(..HEADER_LEN)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(SealedJlmError::Magic)?;
    if plain[..MAGIC.len()] != *MAGIC {
        return Err(SealedJlmError::Magic);
    }
    let word =
        |at: usize| u32::from_le_bytes([plain[at], plain[at + 1], plain[at + 2], plain[at + 3]]);
    let version = word(8);
    if jlm::Version::from_number(version).is_some() {
        return Err(SealedJlmError::Plain(version));
    }
    if version != SEALED_VERSION {
        return Err(SealedJlmError::Version(version));
    }
    let format = word(12);
    if format != SEAL_FORMAT {
        return Err(SealedJlmError::Format(format));
    }
    plain[8..12].copy_from_slice(&jlm::Version::V27.number().to_le_bytes());
    plain[12..16].fill(0);
    Ok(plain)
}

/// The header of the sealed form: the inverse of [`plain_header`].
pub(crate) fn mark_sealed(header: &mut [u8]) {
    header[8..12].copy_from_slice(&SEALED_VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&SEAL_FORMAT.to_le_bytes());
}

/// The bytes between the sections and the dense region belong to nothing, and must be zero.
fn check_padding(container: &Container, meta: &[u8]) -> Result<(), SealedJlmError> {
    let header = container.header();
    let start = header.fingerprint.offset + header.fingerprint.length;
    let padding =
        meta.get(start as usize..header.meta_len() as usize)
            .ok_or(SealedJlmError::Section(
                "needs the metadata up to the dense region",
            ))?;
    if padding.iter().any(|byte| *byte != 0) {
        return Err(SealedJlmError::Section(
            "follows metadata padding that is not zero",
        ));
    }
    Ok(())
}

const HEADER_LEN: usize = jlm::HEADER_LEN as usize;
const MAGIC: &[u8; 8] = b"JITLLM\0\0";
