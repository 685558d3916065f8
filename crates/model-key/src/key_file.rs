//! Key files (spec: sealed checkpoint, section 1). Bytes in, bytes out: the caller reads and
//! writes files.

use std::fmt;

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes256Gcm, Nonce, Tag};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use identifiers::Fingerprint;
use rand_core::CryptoRng;
use secret::{Secret, SecretBytes};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use crate::source::{ModelKey, SubkeySource};

/// A parsed key file.
#[derive(Debug)]
pub enum KeyFile {
    /// The key in clear.
    Open(OpenKeyFile),
    /// The key encrypted under a passphrase.
    Sealed(SealedKeyFile),
}

/// A key file that holds its key in clear; its fingerprint was compared.
pub struct OpenKeyFile(ModelKey);

/// A key file that a passphrase opens; its scrypt cost is within bounds.
#[derive(Debug)]
pub struct SealedKeyFile {
    fingerprint: Fingerprint,
    salt: [u8; 16],
    cost: ScryptCost,
    nonce: [u8; 12],
    ciphertext: [u8; 48],
}

/// Why a key file was not read, opened or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyFileError {
    /// Longer than any key file.
    #[error("not a key file: {length} bytes, the most is {MAX_KEY_FILE}")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// Not the JSON of a key file. Its text is not repeated: it can hold a key.
    #[error("not a key file: malformed at line {line}, column {column}")]
    Malformed {
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// Another `format`.
    #[error("not a key file: the format field is not kllm-key")]
    Format,
    /// A `version` other than 1.
    #[error("key file version {0} is not read here, only 1")]
    Version(u64),
    /// A cipher or key derivation that is not known.
    #[error("key file field {field} names an algorithm that is not read here")]
    Algorithm {
        /// The field.
        field: &'static str,
    },
    /// A field that is not the base64 text of so many bytes.
    #[error("key file field {field} is not the base64 text of {length} bytes")]
    Bytes {
        /// The field.
        field: &'static str,
        /// The bytes it must hold.
        length: usize,
    },
    /// scrypt parameters outside the bounds; nothing was computed.
    #[error("key file field kdf: {0}")]
    Cost(&'static str),
    /// An open file's fingerprint is not its key's.
    #[error("the file names the fingerprint {recorded} but its key has {actual}")]
    Fingerprint {
        /// The file's field.
        recorded: Fingerprint,
        /// The key's.
        actual: Fingerprint,
    },
    /// A sealed file needs a passphrase.
    #[error("the key file needs a passphrase")]
    PassphraseNeeded,
    /// Authentication failed.
    #[error("the passphrase is wrong, or the key file was altered")]
    WrongPassphrase,
    /// A passphrase that is too short to write a file under.
    #[error("a passphrase needs at least {MIN_PASSPHRASE} characters")]
    ShortPassphrase,
    /// A passphrase that is not UTF-8.
    #[error("the passphrase is not UTF-8")]
    PassphraseNotUtf8,
}

/// A passphrase in UTF-8.
#[derive(Debug)]
pub struct Passphrase(SecretBytes);

impl Passphrase {
    /// Takes the passphrase's bytes, without a line end.
    pub fn new(bytes: SecretBytes) -> Result<Self, KeyFileError> {
        if std::str::from_utf8(bytes.expose()).is_err() {
            return Err(KeyFileError::PassphraseNotUtf8);
        }
        Ok(Self(bytes))
    }

    fn characters(&self) -> usize {
        // Every byte that is not a continuation byte starts a character.
        self.0
            .expose()
            .iter()
            .filter(|b| **b & 0xC0 != 0x80)
            .count()
    }
}

/// scrypt's cost, within [`ScryptCost::new`]'s bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScryptCost {
    log_n: u8,
    r: u32,
    p: u32,
}

impl ScryptCost {
    /// What the reference writes: n = 131072, r = 8, p = 1; 128 MiB.
    pub const DEFAULT: Self = Self {
        log_n: 17,
        r: 8,
        p: 1,
    };

    /// Checks parameters before anything is computed: n a power of two from 2, r and p from 1,
    /// at most 256 MiB of memory and eight times the default's work.
    pub fn new(n: u64, r: u64, p: u64) -> Result<Self, KeyFileError> {
        if n < 2 || !n.is_power_of_two() || r == 0 || p == 0 {
            return Err(KeyFileError::Cost(
                "n must be a power of two from 2, r and p at least 1",
            ));
        }
        let total = n.checked_add(p).and_then(|sum| sum.checked_add(2));
        let memory = total.and_then(|sum| sum.checked_mul(r)?.checked_mul(128));
        if memory.is_none_or(|bytes| bytes > MAX_SCRYPT_MEMORY) {
            return Err(KeyFileError::Cost(
                "n, r and p need more than 256 MiB of memory",
            ));
        }
        let work = n.checked_mul(r).and_then(|nr| nr.checked_mul(p));
        if work.is_none_or(|work| work > MAX_SCRYPT_WORK) {
            return Err(KeyFileError::Cost("n, r and p need too much work"));
        }
        Ok(Self {
            log_n: n.trailing_zeros() as u8,
            r: r as u32,
            p: p as u32,
        })
    }

    fn n(self) -> u64 {
        1 << self.log_n
    }
}

impl KeyFile {
    /// Parses a key file of either kind, strictly: unknown and repeated fields are refused.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyFileError> {
        if bytes.len() > MAX_KEY_FILE {
            return Err(KeyFileError::TooLong {
                length: bytes.len(),
            });
        }
        let probe: Probe = json(bytes)?;
        if probe.format != FORMAT {
            return Err(KeyFileError::Format);
        }
        if probe.version != VERSION {
            return Err(KeyFileError::Version(probe.version));
        }
        match probe.cipher.name.as_str() {
            "none" => OpenKeyFile::parse(bytes).map(Self::Open),
            AES => SealedKeyFile::parse(bytes).map(Self::Sealed),
            _ => Err(KeyFileError::Algorithm { field: "cipher" }),
        }
    }

    /// The recorded fingerprint; for a sealed file it is authenticated only by opening it.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        match self {
            Self::Open(file) => file.0.fingerprint(),
            Self::Sealed(file) => file.fingerprint,
        }
    }

    /// The key. A sealed file needs the passphrase and runs scrypt (about half a second at the
    /// default cost); an open file ignores it.
    pub fn open(self, passphrase: Option<&Passphrase>) -> Result<ModelKey, KeyFileError> {
        match self {
            Self::Open(file) => Ok(file.0),
            Self::Sealed(file) => file.open(passphrase.ok_or(KeyFileError::PassphraseNeeded)?),
        }
    }
}

impl OpenKeyFile {
    fn parse(bytes: &[u8]) -> Result<Self, KeyFileError> {
        let file: OpenJson = json(bytes)?;
        let mut secret = Zeroizing::new([0; 32]);
        decode("secret", &file.secret, &mut secret[..])?;
        let key = ModelKey::new(Secret::take(&mut secret));
        let actual = key.fingerprint();
        if actual != file.fingerprint {
            return Err(KeyFileError::Fingerprint {
                recorded: file.fingerprint,
                actual,
            });
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for OpenKeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenKeyFile({})", self.0.fingerprint())
    }
}

impl SealedKeyFile {
    fn parse(bytes: &[u8]) -> Result<Self, KeyFileError> {
        let file: SealedJson = json(bytes)?;
        if file.kdf.name != SCRYPT {
            return Err(KeyFileError::Algorithm { field: "kdf" });
        }
        let mut parsed = Self {
            fingerprint: file.fingerprint,
            salt: [0; 16],
            cost: ScryptCost::new(file.kdf.n, file.kdf.r, file.kdf.p)?,
            nonce: [0; 12],
            ciphertext: [0; 48],
        };
        decode("kdf.salt", &file.kdf.salt, &mut parsed.salt)?;
        decode("cipher.nonce", &file.cipher.nonce, &mut parsed.nonce)?;
        decode("ciphertext", &file.ciphertext, &mut parsed.ciphertext)?;
        Ok(parsed)
    }

    fn open(&self, passphrase: &Passphrase) -> Result<ModelKey, KeyFileError> {
        let (ciphertext, tag) = self.ciphertext.split_at(32);
        let tag = Tag::try_from(tag).map_err(|_| KeyFileError::WrongPassphrase)?;
        let secret = Secret::try_fill_with(|key: &mut [u8; 32]| {
            key.copy_from_slice(ciphertext);
            self.cipher(passphrase)
                .decrypt_inout_detached(
                    &Nonce::from(self.nonce),
                    self.associated_data().as_bytes(),
                    (&mut key[..]).into(),
                    &tag,
                )
                .map_err(|_| KeyFileError::WrongPassphrase)
        })?;
        let key = ModelKey::new(secret);
        let actual = key.fingerprint();
        if actual != self.fingerprint {
            return Err(KeyFileError::Fingerprint {
                recorded: self.fingerprint,
                actual,
            });
        }
        Ok(key)
    }

    fn cipher(&self, passphrase: &Passphrase) -> Aes256Gcm {
        let params = scrypt::Params::new(self.cost.log_n, self.cost.r, self.cost.p)
            .expect("ScryptCost is within scrypt's own limits");
        let kek = Secret::<32>::fill_with(|kek| {
            scrypt::scrypt(passphrase.0.expose(), &self.salt, &params, kek)
                .expect("32 bytes is a length that scrypt gives");
        });
        Aes256Gcm::new(kek.expose().into())
    }

    /// Every field but `ciphertext`, as Python's `json` writes it with sorted keys.
    fn associated_data(&self) -> String {
        format!(
            r#"{{"cipher": {{"name": "{AES}", "nonce": "{}"}}, "fingerprint": "{}", "format": "{FORMAT}", "kdf": {{"n": {}, "name": "{SCRYPT}", "p": {}, "r": {}, "salt": "{}"}}, "version": {VERSION}}}"#,
            BASE64.encode(self.nonce),
            self.fingerprint,
            self.cost.n(),
            self.cost.p,
            self.cost.r,
            BASE64.encode(self.salt),
        )
    }

    fn to_json(&self) -> String {
        format!(
            r#"{{
  "cipher": {{
    "name": "{AES}",
    "nonce": "{}"
  }},
  "ciphertext": "{}",
  "fingerprint": "{}",
  "format": "{FORMAT}",
  "kdf": {{
    "n": {},
    "name": "{SCRYPT}",
    "p": {},
    "r": {},
    "salt": "{}"
  }},
  "version": {VERSION}
}}"#,
            BASE64.encode(self.nonce),
            BASE64.encode(self.ciphertext),
            self.fingerprint,
            self.cost.n(),
            self.cost.p,
            self.cost.r,
            BASE64.encode(self.salt),
        )
    }
}

/// The bytes of an open key file, byte for byte as the reference writes them.
///
/// The caller creates the file with mode 0600 and by rename.
#[must_use]
pub fn write_open_key_file(key: &ModelKey) -> SecretBytes {
    // Sized ahead, so that growing leaves no copy of the key behind.
    let mut text = String::with_capacity(OPEN_FILE_ROOM);
    text.push_str("{\n  \"cipher\": {\n    \"name\": \"none\"\n  },\n  \"fingerprint\": \"");
    text.push_str(&key.fingerprint().to_string());
    text.push_str("\",\n  \"format\": \"kllm-key\",\n  \"secret\": \"");
    BASE64.encode_string(key.expose(), &mut text);
    text.push_str("\",\n  \"version\": 1\n}\n");
    SecretBytes::new(text.into_bytes())
}

/// The bytes of a key file that `passphrase` opens. Runs scrypt.
///
/// A passphrase under 10 characters and a cost under n = 16384, r = 8 are refused. The caller
/// creates the file with mode 0600 and by rename.
pub fn write_sealed_key_file(
    key: &ModelKey,
    passphrase: &Passphrase,
    cost: ScryptCost,
    rng: &mut impl CryptoRng,
) -> Result<Vec<u8>, KeyFileError> {
    if passphrase.characters() < MIN_PASSPHRASE {
        return Err(KeyFileError::ShortPassphrase);
    }
    if cost.log_n < MIN_LOG_N || cost.r < MIN_R {
        return Err(KeyFileError::Cost(
            "too weak to write: n at least 16384 and r at least 8",
        ));
    }
    let mut file = SealedKeyFile {
        fingerprint: key.fingerprint(),
        salt: [0; 16],
        cost,
        nonce: [0; 12],
        ciphertext: [0; 48],
    };
    rng.fill_bytes(&mut file.salt);
    rng.fill_bytes(&mut file.nonce);
    // Encrypted in a wiped buffer: the file's own bytes never hold the key in clear.
    let mut sealed = Zeroizing::new(*key.expose());
    let tag = file
        .cipher(passphrase)
        .encrypt_inout_detached(
            &Nonce::from(file.nonce),
            file.associated_data().as_bytes(),
            (&mut sealed[..]).into(),
        )
        .expect("32 bytes are within AES-GCM's limit");
    file.ciphertext[..32].copy_from_slice(&sealed[..]);
    file.ciphertext[32..].copy_from_slice(&tag);
    Ok(file.to_json().into_bytes())
}

/// The largest key file that is read.
pub const MAX_KEY_FILE: usize = 64 * 1024;

/// The fewest characters of a passphrase that a file is written under.
pub const MIN_PASSPHRASE: usize = 10;

fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, KeyFileError> {
    serde_json::from_slice(bytes).map_err(|error| KeyFileError::Malformed {
        line: error.line(),
        column: error.column(),
    })
}

fn decode(field: &'static str, text: &str, out: &mut [u8]) -> Result<(), KeyFileError> {
    let length = out.len();
    let error = KeyFileError::Bytes { field, length };
    if text.len() != length.div_ceil(3) * 4 {
        return Err(error);
    }
    // The decoder wants room for whole groups of three.
    let mut room = Zeroizing::new([0; 48]);
    match BASE64.decode_slice(text, &mut room[..]) {
        Ok(decoded) if decoded == length => {
            out.copy_from_slice(&room[..length]);
            Ok(())
        }
        _ => Err(error),
    }
}

#[derive(Deserialize)]
struct Probe {
    format: String,
    version: u64,
    cipher: CipherName,
}

#[derive(Deserialize)]
struct CipherName {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "read by the probe; named so that no other field is accepted"
)]
struct OpenJson {
    format: String,
    version: u64,
    cipher: NoCipherJson,
    fingerprint: Fingerprint,
    #[serde(deserialize_with = "wiped")]
    secret: Zeroizing<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "named so that no other field is accepted")]
struct NoCipherJson {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "read by the probe; named so that no other field is accepted"
)]
struct SealedJson {
    format: String,
    version: u64,
    cipher: CipherJson,
    fingerprint: Fingerprint,
    kdf: KdfJson,
    ciphertext: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(
    dead_code,
    reason = "read by the probe; named so that no other field is accepted"
)]
struct CipherJson {
    name: String,
    nonce: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KdfJson {
    name: String,
    salt: String,
    n: u64,
    r: u64,
    p: u64,
}

fn wiped<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

const FORMAT: &str = "kllm-key";
const VERSION: u64 = 1;
const AES: &str = "aes-256-gcm";
const SCRYPT: &str = "scrypt";
const MAX_SCRYPT_MEMORY: u64 = 256 << 20;
/// Eight times n = 131072, r = 8, p = 1.
const MAX_SCRYPT_WORK: u64 = 8 << 20;
const MIN_LOG_N: u8 = 14;
const MIN_R: u32 = 8;
const OPEN_FILE_ROOM: usize = 256;
