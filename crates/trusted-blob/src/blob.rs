//! Sealing and opening chunks.

use std::ops::Range;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use model_key::SubkeySource;
use secret::SecretBytes;
use zeroize::Zeroizing;

use crate::error::BlobError;
use crate::header::Header;

/// The blob of a payload, sealed under the source's key.
///
/// `salt` must be fresh and random for every blob: chunks of two blobs under one salt would be
/// encrypted with the same nonces.
pub fn encode(
    source: &dyn SubkeySource,
    salt: [u8; 16],
    chunk: u64,
    payload: &[u8],
) -> Result<Vec<u8>, BlobError> {
    let mut sealer = BlobSealer::new(source, salt, chunk, payload.len() as u64)?;
    let mut out = Vec::with_capacity(sealer.sealed_length() as usize);
    out.extend_from_slice(&sealer.preamble());
    while let Some(range) = sealer.next_payload_range() {
        let start = out.len();
        out.extend_from_slice(&payload[range.start as usize..range.end as usize]);
        let tag = sealer.seal_next(&mut out[start..])?;
        out.extend_from_slice(&tag);
    }
    Ok(out)
}

/// The payload of a whole blob: every chunk authenticates, and nothing precedes or follows them.
pub fn decode(source: &dyn SubkeySource, blob: &[u8]) -> Result<SecretBytes, BlobError> {
    let opener = BlobOpener::new(source, blob, blob.len() as u64)?;
    let mut payload = Zeroizing::new(Vec::with_capacity(opener.payload_length() as usize));
    for index in 0..opener.chunks() {
        let range = opener.sealed_range(index);
        let sealed = &blob[range.start as usize..range.end as usize];
        let (ciphertext, tag) = split_tag(sealed);
        let start = payload.len();
        payload.extend_from_slice(ciphertext);
        opener.open_detached(index, &mut payload[start..], tag)?;
    }
    Ok(SecretBytes::new(std::mem::take(&mut *payload)))
}

/// Seals a payload chunk by chunk, in order, each once.
pub struct BlobSealer {
    chunks: Chunks,
    length: u64,
    next: u64,
}

impl BlobSealer {
    /// A sealer of a payload of `length` bytes; `salt` as in [`encode`].
    pub fn new(
        source: &dyn SubkeySource,
        salt: [u8; 16],
        chunk: u64,
        length: u64,
    ) -> Result<Self, BlobError> {
        let header = Header::for_payload(length, chunk, source.fingerprint(), salt)?;
        Ok(Self {
            chunks: Chunks::new(source, header)?,
            length,
            next: 0,
        })
    }

    /// The bytes that come before the first chunk.
    #[must_use]
    pub fn preamble(&self) -> Vec<u8> {
        self.chunks.header.preamble()
    }

    /// Bytes of the whole blob.
    #[must_use]
    pub fn sealed_length(&self) -> u64 {
        self.preamble().len() as u64 + self.length + TAG as u64 * self.chunks.header.chunks
    }

    /// Where the next chunk lies in the payload; `None` after the last. Empty for an empty
    /// payload's one chunk.
    #[must_use]
    pub fn next_payload_range(&self) -> Option<Range<u64>> {
        let header = &self.chunks.header;
        (self.next < header.chunks).then(|| header.payload_range(self.next, self.length))
    }

    /// Encrypts the next chunk in place; the tag goes right behind it.
    pub fn seal_next(&mut self, chunk: &mut [u8]) -> Result<[u8; 16], BlobError> {
        let index = self.next;
        let expected = self
            .next_payload_range()
            .map(|range| range.end - range.start);
        if expected != Some(chunk.len() as u64) {
            return Err(BlobError::Chunk {
                index,
                length: chunk.len() as u64,
                next: index,
                chunks: self.chunks.header.chunks,
            });
        }
        self.next += 1;
        Ok(self.chunks.seal(index, chunk))
    }
}

/// Opens a blob's chunks, in any order.
pub struct BlobOpener {
    chunks: Chunks,
    body: u64,
    payload: u64,
}

impl BlobOpener {
    /// Reads the header from the blob's `start` ([`crate::MAX_PREAMBLE`] bytes, or all) and
    /// compares its fingerprint with the source's and its chunks with the blob's `length`.
    pub fn new(source: &dyn SubkeySource, start: &[u8], length: u64) -> Result<Self, BlobError> {
        let (header, body) = Header::parse(start)?;
        let given = source.fingerprint();
        if header.fingerprint != given {
            return Err(BlobError::Fingerprint {
                recorded: header.fingerprint,
                given,
            });
        }
        // The last chunk holds 1 to `chunk` bytes; a single one may be empty.
        let whole = body as u64 + (header.chunks - 1) * (header.chunk + TAG as u64);
        let fewest = whole + u64::from(header.chunks > 1) + TAG as u64;
        let most = whole + header.chunk + TAG as u64;
        if !(fewest..=most).contains(&length) {
            return Err(BlobError::Length {
                actual: length,
                fewest,
                most,
            });
        }
        let tags = TAG as u64 * header.chunks;
        Ok(Self {
            payload: length - body as u64 - tags,
            body: body as u64,
            chunks: Chunks::new(source, header)?,
        })
    }

    /// The blob's header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.chunks.header
    }

    /// How many chunks there are, from 1.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks.header.chunks
    }

    /// Bytes of the whole payload.
    #[must_use]
    pub fn payload_length(&self) -> u64 {
        self.payload
    }

    /// Where a chunk and its tag lie in the blob.
    ///
    /// # Panics
    /// If `index` is not below [`BlobOpener::chunks`].
    #[must_use]
    pub fn sealed_range(&self, index: u64) -> Range<u64> {
        let range = self.payload_range(index);
        let tags = TAG as u64 * index;
        self.body + range.start + tags..self.body + range.end + tags + TAG as u64
    }

    /// Where a chunk lies in the payload.
    ///
    /// # Panics
    /// If `index` is not below [`BlobOpener::chunks`].
    #[must_use]
    pub fn payload_range(&self, index: u64) -> Range<u64> {
        assert!(index < self.chunks(), "there is no chunk {index}");
        self.chunks.header.payload_range(index, self.payload)
    }

    /// Decrypts chunk `index`, with its tag behind it, in place; gives the payload's part.
    pub fn open_chunk<'a>(
        &self,
        index: u64,
        sealed: &'a mut [u8],
    ) -> Result<&'a mut [u8], BlobError> {
        let range = self.sealed_range(index);
        if sealed.len() as u64 != range.end - range.start {
            return Err(BlobError::Chunk {
                index,
                length: sealed.len() as u64,
                next: index,
                chunks: self.chunks(),
            });
        }
        let (chunk, tag) = sealed.split_at_mut(sealed.len() - TAG);
        let mut copy = [0; TAG];
        copy.copy_from_slice(tag);
        self.open_detached(index, chunk, &copy)?;
        Ok(chunk)
    }

    fn open_detached(
        &self,
        index: u64,
        chunk: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), BlobError> {
        self.chunks.open(index, chunk, tag)
    }
}

/// The cipher of one blob.
struct Chunks {
    header: Header,
    text: String,
    cipher: Aes256Gcm,
}

impl Chunks {
    fn new(source: &dyn SubkeySource, header: Header) -> Result<Self, BlobError> {
        let subkey = source.subkey(&header.subkey_id())?;
        Ok(Self {
            text: header.text(),
            cipher: Aes256Gcm::new(subkey.expose().into()),
            header,
        })
    }

    fn seal(&self, index: u64, chunk: &mut [u8]) -> [u8; TAG] {
        self.cipher
            .encrypt_inout_detached(&nonce(index), &self.associated_data(index), chunk.into())
            .expect("a chunk of 1 GiB is within AES-GCM's limit")
            .into()
    }

    fn open(&self, index: u64, chunk: &mut [u8], tag: &[u8; TAG]) -> Result<(), BlobError> {
        self.cipher
            .decrypt_inout_detached(
                &nonce(index),
                &self.associated_data(index),
                chunk.into(),
                &Tag::from(*tag),
            )
            .map_err(|_| BlobError::Altered {
                index,
                chunks: self.header.chunks,
            })
    }

    /// Header, index and the last chunk's flag: chunks cannot be dropped, moved or repeated.
    fn associated_data(&self, index: u64) -> Vec<u8> {
        let last = u8::from(index + 1 == self.header.chunks);
        [self.text.as_bytes(), &index.to_le_bytes(), &[last]].concat()
    }
}

/// Four zero bytes and the index.
fn nonce(index: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&index.to_le_bytes());
    Nonce::from(nonce)
}

fn split_tag(sealed: &[u8]) -> (&[u8], &[u8; TAG]) {
    sealed
        .split_last_chunk()
        .expect("a sealed range holds a tag")
}

const TAG: usize = 16;
