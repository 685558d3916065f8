//! Keys encrypted to one caller: RFC 9180 base mode, X25519, HKDF-SHA256, AES-256-GCM.

use std::fmt;

use hpke::aead::AesGcm256;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, setup_receiver, setup_sender_with_rng,
};
use identifiers::{CapabilityId, Fingerprint, GrantId};
use model_key::{ModelKey, Subkey, SubkeyId, SubkeySource};
use rand_core::CryptoRng;
use secret::Secret;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// An X25519 key pair that subkeys, or an imported model key, are encrypted to.
pub struct RecipientKey {
    private: <X25519HkdfSha256 as Kem>::PrivateKey,
    public: [u8; 32],
}

impl RecipientKey {
    /// A fresh key pair.
    #[must_use]
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        let (private, public) = X25519HkdfSha256::gen_keypair_with_rng(rng);
        Self {
            private,
            public: public.to_bytes().into(),
        }
    }

    /// The key pair of 32 seed bytes (RFC 9180, DeriveKeyPair), for a key that outlives a
    /// process.
    #[must_use]
    pub fn from_seed(seed: &Secret<32>) -> Self {
        let (private, public) = X25519HkdfSha256::derive_keypair(seed.expose());
        Self {
            private,
            public: public.to_bytes().into(),
        }
    }

    /// The public key to send to the other side.
    #[must_use]
    pub fn public_key(&self) -> [u8; 32] {
        self.public
    }
}

impl fmt::Debug for RecipientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecipientKey(")?;
        self.public
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

/// What allows subkeys to be wrapped; they open for nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A seal job's grant.
    Grant(GrantId),
    /// An unlock capability.
    Capability(CapabilityId),
}

/// Keys encrypted to one public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The encapsulated key.
    pub enc: [u8; 32],
    /// Ciphertext and tag.
    pub ciphertext: Vec<u8>,
}

/// Why keys were not wrapped or opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    /// The recipient's public key is no usable X25519 key.
    #[error("the recipient's public key is not a usable X25519 key")]
    Recipient,
    /// More subkeys than one batch holds, or none.
    #[error("a batch holds 1 to {MAX_SUBKEYS} subkeys, not {0}")]
    Count(usize),
    /// As many ids as subkeys are needed.
    #[error("{ids} ids name {subkeys} subkeys")]
    Ids {
        /// Ids given.
        ids: usize,
        /// Subkeys given.
        subkeys: usize,
    },
    /// Not the ciphertext of so many keys.
    #[error("the ciphertext has {actual} bytes, {expected} are needed")]
    Length {
        /// Bytes of a ciphertext of the keys asked for.
        expected: usize,
        /// Its bytes.
        actual: usize,
    },
    /// Authentication failed: other keys, another purpose, another recipient, or altered bytes.
    #[error("the wrapped keys were altered, or were made for something else")]
    Altered,
    /// An imported model key has another fingerprint than announced.
    #[error("the imported key has the fingerprint {actual}, not {announced}")]
    Fingerprint {
        /// What the importer named.
        announced: Fingerprint,
        /// The key's.
        actual: Fingerprint,
    },
}

/// Encrypts `subkeys` to a recipient, bound to `purpose` and, in order, to the ids they are for.
pub fn seal_subkeys(
    rng: &mut impl CryptoRng,
    recipient: &[u8; 32],
    purpose: Purpose,
    ids: &[SubkeyId],
    subkeys: &[Subkey],
) -> Result<Sealed, WrapError> {
    check_count(ids.len())?;
    if ids.len() != subkeys.len() {
        return Err(WrapError::Ids {
            ids: ids.len(),
            subkeys: subkeys.len(),
        });
    }
    let mut plain = Zeroizing::new(Vec::with_capacity(subkeys.len() * KEY));
    for subkey in subkeys {
        plain.extend_from_slice(subkey.expose());
    }
    seal(rng, recipient, &purpose.info(), &batch_data(ids), &plain)
}

/// The subkeys of a batch that was sealed to `recipient` for `purpose` and these ids, in order.
pub fn open_subkeys(
    recipient: &RecipientKey,
    purpose: Purpose,
    ids: &[SubkeyId],
    sealed: &Sealed,
) -> Result<Vec<Subkey>, WrapError> {
    check_count(ids.len())?;
    let plain = open(
        recipient,
        &purpose.info(),
        &batch_data(ids),
        sealed,
        ids.len(),
    )?;
    let keys = plain.as_chunks::<KEY>().0;
    let copy = |key: &[u8; KEY]| Secret::fill_with(|bytes: &mut [u8; KEY]| *bytes = *key);
    Ok(keys.iter().map(copy).collect())
}

/// Encrypts a model key to the key service's import key, bound to its fingerprint.
pub fn seal_model_key(
    rng: &mut impl CryptoRng,
    import_key: &[u8; 32],
    key: &ModelKey,
) -> Result<Sealed, WrapError> {
    let fingerprint = key.fingerprint();
    seal(
        rng,
        import_key,
        IMPORT,
        fingerprint.as_bytes(),
        key.expose(),
    )
}

/// The model key that was sealed to this import key; its fingerprint must be the announced one.
pub fn open_model_key(
    import_key: &RecipientKey,
    announced: Fingerprint,
    sealed: &Sealed,
) -> Result<ModelKey, WrapError> {
    let plain = open(import_key, IMPORT, announced.as_bytes(), sealed, 1)?;
    let key = ModelKey::new(Secret::fill_with(|bytes| bytes.copy_from_slice(&plain)));
    let actual = key.fingerprint();
    if actual != announced {
        return Err(WrapError::Fingerprint { announced, actual });
    }
    Ok(key)
}

/// The most subkeys of one batch.
pub const MAX_SUBKEYS: usize = 4096;

impl Purpose {
    /// The HPKE `info`: a domain for each kind and the id's 16 bytes.
    fn info(self) -> Vec<u8> {
        let (domain, id) = match self {
            Self::Grant(id) => (&b"chancery/subkeys/v1/grant\0"[..], id.as_uuid()),
            Self::Capability(id) => (&b"chancery/subkeys/v1/capability\0"[..], id.as_uuid()),
        };
        [domain, id.as_bytes()].concat()
    }
}

/// The associated data of a batch: its count and a hash of its ids, each length-prefixed.
fn batch_data(ids: &[SubkeyId]) -> Vec<u8> {
    let mut hash = Sha256::new();
    for id in ids {
        for text in [id.component.label().unwrap_or(""), &id.label.to_string()] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
    }
    [&(ids.len() as u64).to_le_bytes()[..], &hash.finalize()].concat()
}

fn check_count(count: usize) -> Result<(), WrapError> {
    if (1..=MAX_SUBKEYS).contains(&count) {
        return Ok(());
    }
    Err(WrapError::Count(count))
}

fn seal(
    rng: &mut impl CryptoRng,
    recipient: &[u8; 32],
    info: &[u8],
    data: &[u8],
    plain: &[u8],
) -> Result<Sealed, WrapError> {
    type Public = <X25519HkdfSha256 as Kem>::PublicKey;

    let public = Public::from_bytes(recipient).map_err(|_| WrapError::Recipient)?;
    let (enc, mut context) = setup_sender_with_rng::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeS::Base,
        &public,
        info,
        rng,
    )
    .map_err(|_| WrapError::Recipient)?;
    let ciphertext = context
        .seal(plain, data)
        .expect("a context seals its first message, and a batch is far below AES-GCM's limit");
    Ok(Sealed {
        enc: enc.to_bytes().into(),
        ciphertext,
    })
}

fn open(
    recipient: &RecipientKey,
    info: &[u8],
    data: &[u8],
    sealed: &Sealed,
    count: usize,
) -> Result<Zeroizing<Vec<u8>>, WrapError> {
    type Encapsulated = <X25519HkdfSha256 as Kem>::EncappedKey;

    let expected = count * KEY + TAG;
    if sealed.ciphertext.len() != expected {
        return Err(WrapError::Length {
            expected,
            actual: sealed.ciphertext.len(),
        });
    }
    let enc = Encapsulated::from_bytes(&sealed.enc).map_err(|_| WrapError::Altered)?;
    let mut context = setup_receiver::<AesGcm256, HkdfSha256, X25519HkdfSha256>(
        &OpModeR::Base,
        &recipient.private,
        &enc,
        info,
    )
    .map_err(|_| WrapError::Altered)?;
    let plain = context
        .open(&sealed.ciphertext, data)
        .map_err(|_| WrapError::Altered)?;
    Ok(Zeroizing::new(plain))
}

const KEY: usize = 32;
const TAG: usize = 16;
const IMPORT: &[u8] = b"chancery/import-model-key/v1\0";
