//! Opening one page chunk by chunk, while the rest of it is still on its way.

use aws_lc_rs::aead::{Aad, LessSafeKey};
use jlm::UnitId;
use model_key::Subkey;

use crate::TAG_LEN;
use crate::chunks::{Binding, Cut, associated, cipher, nonce};
use crate::error::SealedJlmError;

/// Opens the chunks of one page in any order; the key is expanded once.
pub struct PageOpener<'a> {
    cut: &'a Cut,
    binding: Binding,
    unit: UnitId,
    key: LessSafeKey,
    /// Number within the unit of the page's first chunk.
    first: u64,
    /// The page's tags.
    tags: &'a [u8],
}

impl<'a> PageOpener<'a> {
    /// An opener of piece `piece` of a unit, whose tags are `tags`.
    pub(crate) fn new(
        cut: &'a Cut,
        binding: Binding,
        unit: UnitId,
        piece: u64,
        key: &Subkey,
        tags: &'a [u8],
    ) -> Self {
        Self {
            cut,
            binding,
            unit,
            key: cipher(key),
            first: piece * cut.piece_chunks(),
            tags,
        }
    }

    /// Authenticates and decrypts whole chunks in place, which start `at` bytes into the page; only
    /// the page's last chunk may be shorter than the others. On failure `bytes` is zeroed.
    pub fn open(&self, at: u64, bytes: &mut [u8]) -> Result<(), SealedJlmError> {
        let opened = self.try_open(at, bytes);
        if opened.is_err() {
            bytes.fill(0);
        }
        opened
    }

    fn try_open(&self, at: u64, bytes: &mut [u8]) -> Result<(), SealedJlmError> {
        let (unit, chunk) = (self.unit, self.cut.chunk_len());
        let len = bytes.len() as u64;
        let whole = at.is_multiple_of(chunk)
            && at.checked_add(len).is_some_and(|end| {
                end == self.cut.piece_len || (end < self.cut.piece_len && len.is_multiple_of(chunk))
            });
        if !whole {
            return Err(SealedJlmError::NotChunks { unit, at, len });
        }
        let last = self.cut.unit_chunks() - 1;
        let skipped = at / chunk;
        let tags = self.tags[skipped as usize * TAG_LEN..].chunks_exact(TAG_LEN);
        let numbers = self.first + skipped..;
        for ((bytes, tag), chunk) in bytes.chunks_mut(chunk as usize).zip(tags).zip(numbers) {
            let aad = Aad::from(associated(self.binding, unit, chunk, chunk == last));
            self.key
                .open_in_place_separate_tag(nonce(chunk), aad, tag, bytes)
                .map_err(|_| SealedJlmError::Tag { unit, chunk })?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for PageOpener<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageOpener({}, from chunk {})", self.unit, self.first)
    }
}
