//! The envelope of a model key at rest.
//!
//! ```text
//! version  1 byte, 1
//! root id  8 bytes of HKDF of the root key: which root key wrapped it
//! nonce   12 bytes, random
//! key     32 bytes of ciphertext
//! tag     16 bytes
//! ```
//!
//! AES-256-GCM under a key derived from the root key; the associated data is a domain, the
//! version, the root id, the key's id, its fingerprint and its version, so that a row of the
//! store cannot stand in for another.

use std::fmt;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use hkdf::Hkdf;
use identifiers::{Fingerprint, KeyId};
use model_key::{ModelKey, SubkeySource};
use rand_core::CryptoRng;
use secret::{Secret, SecretBytes};
use sha2::Sha256;
use zeroize::Zeroizing;

/// The key service's root key, under which every model key at rest is wrapped.
pub struct RootKey {
    kek: Secret<32>,
    id: [u8; 8],
}

/// Why a root key or an envelope was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    /// The root key's file has another form.
    #[error("the root key file must hold 32 bytes, or 64 hex digits and at most one line end")]
    RootKeyFile,
    /// Not an envelope's length.
    #[error("a wrapped model key has {WRAPPED_MODEL_KEY} bytes, not {0}")]
    Length(usize),
    /// An envelope version that is not known.
    #[error("wrapped model key version {0} is not read here, only {VERSION}")]
    Version(u8),
    /// Wrapped under another root key.
    #[error("the model key is wrapped under root key {wrapped}, not {given}")]
    RootKey {
        /// Id of the root key that wrapped it.
        wrapped: String,
        /// Id of the root key at hand.
        given: String,
    },
    /// Authentication failed.
    #[error("the wrapped model key or its id, fingerprint or version was altered")]
    Altered,
}

impl RootKey {
    /// A root key from 32 uniform bytes.
    #[must_use]
    pub fn new(bytes: &Secret<32>) -> Self {
        let root = Hkdf::<Sha256>::new(Some(ROOT_SALT), bytes.expose());
        let expand = |info: &[u8], out: &mut [u8]| {
            root.expand(info, out)
                .expect("the output is at most 255 hash blocks");
        };
        let mut id = [0; 8];
        expand(b"id", &mut id);
        Self {
            kek: Secret::fill_with(|kek| expand(b"model-key", kek)),
            id,
        }
    }

    /// A root key from a file's content: 32 raw bytes, or 64 hex digits with or without a line
    /// end.
    pub fn from_file_content(content: &SecretBytes) -> Result<Self, EnvelopeError> {
        let content = content.expose();
        let bytes = Secret::try_fill_with(|bytes: &mut [u8; 32]| {
            if content.len() == bytes.len() {
                bytes.copy_from_slice(content);
                return Ok(());
            }
            let digits = content.strip_suffix(b"\n").unwrap_or(content);
            hex::decode_to_slice(digits, bytes).map_err(|_| EnvelopeError::RootKeyFile)
        })?;
        Ok(Self::new(&bytes))
    }

    /// 16 hex digits that tell root keys apart and reveal nothing about them.
    #[must_use]
    pub fn id(&self) -> String {
        hex::encode(self.id)
    }

    fn cipher(&self) -> Aes256Gcm {
        Aes256Gcm::new(self.kek.expose().into())
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RootKey({})", self.id())
    }
}

/// The envelope of a model key, bound to its id, fingerprint and version.
///
/// The nonce is random: one root key may wrap 2^32 model keys.
#[must_use]
pub fn wrap_model_key(
    root: &RootKey,
    key: &ModelKey,
    key_id: KeyId,
    version: u32,
    rng: &mut impl CryptoRng,
) -> Vec<u8> {
    let mut nonce = [0; 12];
    rng.fill_bytes(&mut nonce);
    let data = associated_data(root.id, key_id, key.fingerprint(), version);
    // Encrypted in a wiped buffer: the envelope's own bytes never hold the key in clear.
    let mut sealed = Zeroizing::new(*key.expose());
    let tag = root
        .cipher()
        .encrypt_inout_detached(&Nonce::from(nonce), &data, (&mut sealed[..]).into())
        .expect("32 bytes are within AES-GCM's limit");
    let mut envelope = Vec::with_capacity(WRAPPED_MODEL_KEY);
    envelope.push(VERSION);
    envelope.extend_from_slice(&root.id);
    envelope.extend_from_slice(&nonce);
    envelope.extend_from_slice(&sealed[..]);
    envelope.extend_from_slice(&tag);
    envelope
}

/// The model key of an envelope that was wrapped under `root` for this id, fingerprint and
/// version.
pub fn unwrap_model_key(
    root: &RootKey,
    envelope: &[u8],
    key_id: KeyId,
    fingerprint: Fingerprint,
    version: u32,
) -> Result<ModelKey, EnvelopeError> {
    let envelope = Envelope::parse(envelope)?;
    if envelope.root_id != root.id {
        return Err(EnvelopeError::RootKey {
            wrapped: hex::encode(envelope.root_id),
            given: root.id(),
        });
    }
    let data = associated_data(root.id, key_id, fingerprint, version);
    let secret = Secret::try_fill_with(|key: &mut [u8; 32]| {
        key.copy_from_slice(&envelope.ciphertext);
        root.cipher()
            .decrypt_inout_detached(
                &Nonce::from(envelope.nonce),
                &data,
                (&mut key[..]).into(),
                &Tag::from(envelope.tag),
            )
            .map_err(|_| EnvelopeError::Altered)
    })?;
    let key = ModelKey::new(secret);
    if key.fingerprint() != fingerprint {
        return Err(EnvelopeError::Altered);
    }
    Ok(key)
}

/// Id of the root key that an envelope was wrapped under, for rotation; it is authenticated only
/// by unwrapping.
pub fn wrapped_under(envelope: &[u8]) -> Result<String, EnvelopeError> {
    Ok(hex::encode(Envelope::parse(envelope)?.root_id))
}

struct Envelope {
    root_id: [u8; 8],
    nonce: [u8; 12],
    ciphertext: [u8; 32],
    tag: [u8; 16],
}

impl Envelope {
    fn parse(bytes: &[u8]) -> Result<Self, EnvelopeError> {
        let (&version, fields) = bytes
            .split_first()
            .ok_or(EnvelopeError::Length(bytes.len()))?;
        if version != VERSION {
            return Err(EnvelopeError::Version(version));
        }
        let length = |()| EnvelopeError::Length(bytes.len());
        let mut fields = fields;
        let envelope = Self {
            root_id: take(&mut fields).ok_or(()).map_err(length)?,
            nonce: take(&mut fields).ok_or(()).map_err(length)?,
            ciphertext: take(&mut fields).ok_or(()).map_err(length)?,
            tag: take(&mut fields).ok_or(()).map_err(length)?,
        };
        if !fields.is_empty() {
            return Err(EnvelopeError::Length(bytes.len()));
        }
        Ok(envelope)
    }
}

/// Bytes of an envelope.
pub const WRAPPED_MODEL_KEY: usize = 1 + 8 + 12 + 32 + 16;

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = bytes.split_first_chunk()?;
    *bytes = tail;
    Some(*head)
}

/// Fields of fixed length, so no two contexts give the same bytes.
fn associated_data(
    root_id: [u8; 8],
    key_id: KeyId,
    fingerprint: Fingerprint,
    version: u32,
) -> Vec<u8> {
    let mut data = Vec::with_capacity(DOMAIN.len() + 1 + 8 + 16 + 8 + 4);
    data.extend_from_slice(DOMAIN);
    data.push(VERSION);
    data.extend_from_slice(&root_id);
    data.extend_from_slice(key_id.as_uuid().as_bytes());
    data.extend_from_slice(fingerprint.as_bytes());
    data.extend_from_slice(&version.to_le_bytes());
    data
}

const VERSION: u8 = 1;
const DOMAIN: &[u8] = b"chancery/wrapped-model-key\0";
const ROOT_SALT: &[u8] = b"chancery/root-key/v1";
