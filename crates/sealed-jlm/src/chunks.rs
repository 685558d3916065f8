//! How units are cut into chunks, and what each chunk is bound to.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use jlm::{Container, Region, UnitId};
use model_key::Subkey;

use crate::TAG_LEN;
use crate::error::SealedJlmError;

/// Bytes of a chunk: a power of two from 4096 to 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkSize(u32);

impl ChunkSize {
    /// A checked chunk size.
    pub fn new(bytes: u64) -> Result<Self, SealedJlmError> {
        let range = (u64::from(MIN_CHUNK)..=u64::from(MAX_CHUNK)).contains(&bytes);
        match u32::try_from(bytes) {
            Ok(size) if range && size.is_power_of_two() => Ok(Self(size)),
            _ => Err(SealedJlmError::ChunkSize(bytes)),
        }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

impl Default for ChunkSize {
    fn default() -> Self {
        Self(256 << 10)
    }
}

/// How the units of one region are cut: each piece (an expert's page, or the whole unit) into
/// chunks of the chunk size, its last one shorter; chunk numbers run on through the pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) region: Region,
    pub(crate) unit_len: u64,
    pub(crate) units: u64,
    pub(crate) piece_len: u64,
    chunk: u64,
    /// Chunks of all regions before this one.
    pub(crate) first_tag: u64,
}

impl Cut {
    /// The cut of every non-empty region, in id order; `None` when counts overflow.
    pub(crate) fn all(container: &Container, chunk: ChunkSize) -> Option<Vec<Self>> {
        let mut cuts = Vec::new();
        let mut first_tag = 0u64;
        for region in Region::ALL {
            let units = container.unit_count(region);
            if units == 0 {
                continue;
            }
            let unit_len = container.unit_len(region);
            let piece_len = match region {
                Region::Experts => container.header().exp_page_size,
                _ => unit_len,
            };
            let cut = Self {
                region,
                unit_len,
                units,
                piece_len,
                chunk: chunk.bytes().into(),
                first_tag,
            };
            first_tag = first_tag.checked_add(cut.unit_chunks().checked_mul(units)?)?;
            cuts.push(cut);
        }
        Some(cuts)
    }

    /// Bytes of a chunk.
    pub(crate) const fn chunk_len(&self) -> u64 {
        self.chunk
    }

    /// Chunks of a piece.
    pub(crate) const fn piece_chunks(&self) -> u64 {
        self.piece_len.div_ceil(self.chunk)
    }

    /// Chunks of a unit.
    pub(crate) const fn unit_chunks(&self) -> u64 {
        self.unit_len / self.piece_len * self.piece_chunks()
    }

    /// Chunks of the region.
    pub(crate) const fn region_chunks(&self) -> u64 {
        self.unit_chunks() * self.units
    }

    /// Place of a unit's first tag, in tags from the start of the table.
    pub(crate) const fn unit_tag(&self, index: u64) -> u64 {
        self.first_tag + index * self.unit_chunks()
    }

    /// Pieces of `bytes` (whole pieces of a unit), each with its chunk number.
    fn chunks<'a>(
        &self,
        first_piece: u64,
        bytes: &'a mut [u8],
    ) -> impl Iterator<Item = (u64, &'a mut [u8])> {
        let (piece_len, chunk, per_piece) = (
            self.piece_len as usize,
            self.chunk as usize,
            self.piece_chunks(),
        );
        bytes
            .chunks_mut(piece_len)
            .zip(first_piece..)
            .flat_map(move |(piece, ordinal)| piece.chunks_mut(chunk).zip(ordinal * per_piece..))
            .map(|(bytes, number)| (number, bytes))
    }
}

/// What every chunk of a file is bound to besides its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding(pub(crate) [u8; 32]);

/// Encrypts a whole unit in place and appends its tags.
pub(crate) fn seal(
    cut: &Cut,
    binding: Binding,
    unit: UnitId,
    key: &Subkey,
    bytes: &mut [u8],
    tags: &mut [u8],
) -> Result<(), SealedJlmError> {
    let key = cipher(key);
    let last = cut.unit_chunks() - 1;
    for ((number, chunk), tag) in cut.chunks(0, bytes).zip(tags.chunks_mut(TAG_LEN)) {
        let aad = associated(binding, unit, number, number == last);
        let sealed = key
            .seal_in_place_separate_tag(nonce(number), Aad::from(aad), chunk)
            .map_err(|_| SealedJlmError::Encrypt(unit))?;
        tag.copy_from_slice(sealed.as_ref());
    }
    Ok(())
}

/// Authenticates and decrypts whole pieces of a unit in place, from piece `first_piece` on.
///
/// On failure the buffer is zeroed: no byte of it is handed on.
pub(crate) fn open(
    cut: &Cut,
    binding: Binding,
    unit: UnitId,
    key: &Subkey,
    first_piece: u64,
    bytes: &mut [u8],
    tags: &[u8],
) -> Result<(), SealedJlmError> {
    let key = cipher(key);
    let last = cut.unit_chunks() - 1;
    let mut failed = None;
    for ((number, chunk), tag) in cut.chunks(first_piece, bytes).zip(tags.chunks(TAG_LEN)) {
        let aad = associated(binding, unit, number, number == last);
        if key
            .open_in_place_separate_tag(nonce(number), Aad::from(aad), tag, chunk)
            .is_err()
        {
            failed = Some(number);
            break;
        }
    }
    match failed {
        None => Ok(()),
        Some(chunk) => {
            bytes.fill(0);
            Err(SealedJlmError::Tag { unit, chunk })
        }
    }
}

pub(crate) fn cipher(key: &Subkey) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key.expose()).expect("a subkey has 32 bytes");
    LessSafeKey::new(key)
}

/// Four zero bytes and the chunk number. A unit key encrypts one unit of one file once.
pub(crate) fn nonce(chunk: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&chunk.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

pub(crate) fn associated(binding: Binding, unit: UnitId, chunk: u64, last: bool) -> [u8; AAD_LEN] {
    let mut aad = [0; AAD_LEN];
    aad[..32].copy_from_slice(&binding.0);
    aad[32] = unit.region.id();
    aad[33..41].copy_from_slice(&unit.index.to_le_bytes());
    aad[41..49].copy_from_slice(&chunk.to_le_bytes());
    aad[49] = u8::from(last);
    aad
}

const AAD_LEN: usize = 32 + 1 + 8 + 8 + 1;
const MIN_CHUNK: u32 = 4096;
const MAX_CHUNK: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_sizes_are_powers_of_two_within_the_format() {
        for good in [4096, 8192, 1 << 20] {
            assert!(ChunkSize::new(good).is_ok(), "{good}");
        }
        for bad in [0, 1, 2048, 5000, 2 << 20, 1 << 32] {
            assert!(ChunkSize::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn expert_pages_are_cut_first_and_chunk_numbers_run_on() {
        let cut = Cut {
            region: Region::Experts,
            unit_len: 3 * 12288,
            units: 1,
            piece_len: 12288,
            chunk: 8192,
            first_tag: 0,
        };
        let mut bytes = vec![0; 3 * 12288];
        let lengths: Vec<_> = cut
            .chunks(0, &mut bytes)
            .map(|(n, b)| (n, b.len()))
            .collect();
        let expected = [
            (0, 8192),
            (1, 4096),
            (2, 8192),
            (3, 4096),
            (4, 8192),
            (5, 4096),
        ];
        assert_eq!(lengths, expected);
        assert_eq!(cut.unit_chunks(), 6);
        let second: Vec<_> = cut.chunks(1, &mut bytes[..12288]).map(|(n, _)| n).collect();
        assert_eq!(second, [2, 3]);
    }
}
