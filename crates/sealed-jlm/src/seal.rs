//! Sealing a plain container, unit by unit.

use identifiers::{Fingerprint, Sha256Digest};
use jlm::{Container, Region, UnitId, Version};
use model_key::{Subkey, SubkeyId};

use crate::chunks::{self, Binding, ChunkSize, Cut};
use crate::error::SealedJlmError;
use crate::header::{binding, check_length, find_cut, mark_sealed, subkey_id};
use crate::section::{self, SealHeader};
use crate::{SEAL_FORMAT, TAG_LEN};

/// What a sealed container says about where it comes from.
#[derive(Debug, Clone)]
pub struct SealParameters {
    /// Fresh random bytes: unit keys are derived with them, so a salt seals one file.
    pub salt: [u8; 16],
    /// Chunk size.
    pub chunk: ChunkSize,
    /// Base-weight aggregate of the source checkpoint.
    pub aggregate: Sha256Digest,
    /// Fingerprint of the model key.
    pub fingerprint: Fingerprint,
}

/// Seals one container. Units may come in any order, each exactly once.
///
/// The sealed file is the metadata as [`Self::seal_meta`] leaves it, the sealed units of the
/// dense region and the page arrays in place, then what [`Self::finish`] gives.
#[derive(Debug)]
pub struct Sealer {
    container: Container,
    salt: [u8; 16],
    json: Vec<u8>,
    cuts: Vec<Cut>,
    binding: Binding,
    tags: Vec<u8>,
    sealed: Vec<Vec<bool>>,
}

impl Sealer {
    /// Starts sealing the plain container whose bytes before the dense region are `meta`.
    pub fn new(meta: &[u8], parameters: &SealParameters) -> Result<Self, SealedJlmError> {
        let file_len = jlm::Header::claimed_len(meta)?;
        let container = Container::decode(meta, file_len)?;
        if container.header().version != Version::V27 {
            return Err(SealedJlmError::Version(container.header().version.number()));
        }
        let cuts = Cut::all(&container, parameters.chunk)
            .ok_or(SealedJlmError::Section("would have more than 2^64 chunks"))?;
        let header = SealHeader {
            aggregate: parameters.aggregate,
            chunk: parameters.chunk.bytes().into(),
            fingerprint: parameters.fingerprint,
            regions: SealHeader::regions_of(&container),
            salt: parameters.salt,
            version: SEAL_FORMAT,
        };
        let json = header.to_json();
        let mut sealed_meta = meta.to_vec();
        mark_sealed(&mut sealed_meta);
        let chunks: u64 = cuts.iter().map(Cut::region_chunks).sum();
        Ok(Self {
            binding: binding(&container, &sealed_meta, &json),
            sealed: cuts
                .iter()
                .map(|cut| vec![false; cut.units as usize])
                .collect(),
            tags: vec![0; chunks as usize * TAG_LEN],
            salt: parameters.salt,
            container,
            json,
            cuts,
        })
    }

    /// The container's structure.
    #[must_use]
    pub const fn container(&self) -> &Container {
        &self.container
    }

    /// The id of a unit's key.
    #[must_use]
    pub fn subkey_id(&self, unit: UnitId) -> SubkeyId {
        subkey_id(&self.salt, unit)
    }

    /// Seals the metadata in place: the version words, the vocab section and the vision section.
    /// `key` is asked for the key of each of those two units that the container has.
    pub fn seal_meta<E: From<SealedJlmError>>(
        &mut self,
        meta: &mut [u8],
        mut key: impl FnMut(&SubkeyId) -> Result<Subkey, E>,
    ) -> Result<(), E> {
        for region in [Region::Vocab, Region::VisionConfig] {
            let unit = UnitId::new(region, 0);
            if let Some(span) = self.container.unit(unit) {
                let subkey = key(&self.subkey_id(unit))?;
                let bytes = &mut meta[span.offset as usize..(span.offset + span.length) as usize];
                self.seal_unit(unit, &subkey, bytes)?;
            }
        }
        mark_sealed(meta);
        Ok(())
    }

    /// Encrypts a unit in place and keeps its tags. A second call for one unit is refused: its
    /// key must encrypt once only.
    pub fn seal_unit(
        &mut self,
        unit: UnitId,
        key: &Subkey,
        bytes: &mut [u8],
    ) -> Result<(), SealedJlmError> {
        let cut = *find_cut(&self.cuts, unit)?;
        check_length(unit, bytes, cut.unit_len)?;
        let at = self.cuts.iter().position(|other| *other == cut);
        let at = at.ok_or(SealedJlmError::NoUnit(unit))?;
        if std::mem::replace(&mut self.sealed[at][unit.index as usize], true) {
            return Err(SealedJlmError::SealedTwice(unit));
        }
        let first = cut.unit_tag(unit.index) as usize * TAG_LEN;
        let tags = &mut self.tags[first..first + cut.unit_chunks() as usize * TAG_LEN];
        chunks::seal(&cut, self.binding, unit, key, bytes, tags)
    }

    /// The bytes that follow the last page array: seal section and trailer. Every unit must have
    /// been sealed.
    pub fn finish(self) -> Result<Vec<u8>, SealedJlmError> {
        for (cut, sealed) in self.cuts.iter().zip(&self.sealed) {
            if let Some(index) = sealed.iter().position(|sealed| !sealed) {
                let unit = UnitId::new(cut.region, index as u64);
                return Err(SealedJlmError::NotSealed(unit));
            }
        }
        let offset = self.container.header().file_len();
        Ok(section::encode(&self.json, &self.tags, offset))
    }
}
