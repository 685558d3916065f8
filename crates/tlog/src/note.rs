use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use sha2::{Digest as _, Sha256};

/// A signed note (C2SP signed-note): text that ends in a newline, and signatures over it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The signed text, its last newline included.
    pub text: String,
    /// The signatures, at least one.
    pub signatures: Vec<NoteSignature>,
}

/// One signature line of a note.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteSignature {
    /// The key's name.
    pub name: String,
    /// The key's id.
    pub key_id: [u8; 4],
    /// The signature's bytes, as its kind has them.
    pub signature: Vec<u8>,
}

/// How a key signs notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureKind {
    /// Ed25519 over the text.
    Ed25519,
    /// A cosignature: Ed25519 over a time and the text (C2SP tlog-cosignature).
    Cosignature,
}

/// A key that signs notes.
pub struct NoteSigner {
    key: SigningKey,
    verifier: NoteVerifier,
}

/// A key that checks one signer's notes; its text form is a vkey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoteVerifier {
    name: String,
    kind: SignatureKind,
    key: VerifyingKey,
}

/// Why a note or key is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// Not a note.
    #[error("not a signed note: {0}")]
    Malformed(&'static str),
    /// Not a verifier key.
    #[error("not a verifier key: {0}")]
    Key(&'static str),
    /// No signature by the key.
    #[error("the note is not signed by {0}")]
    NotSigned(String),
    /// A signature by the key that is wrong.
    #[error("the note's signature by {0} is wrong")]
    BadSignature(String),
}

impl Note {
    /// The text form.
    #[must_use]
    pub fn encode(&self) -> String {
        let lines: String = self
            .signatures
            .iter()
            .map(NoteSignature::to_string)
            .collect();
        format!("{}\n{lines}", self.text)
    }
}

impl FromStr for Note {
    type Err = NoteError;

    fn from_str(note: &str) -> Result<Self, NoteError> {
        if note.len() > MAX_NOTE_BYTES {
            return Err(NoteError::Malformed("it is too long"));
        }
        if note.bytes().any(|b| b < 0x20 && b != b'\n') {
            return Err(NoteError::Malformed("it has a control character"));
        }
        let at = note
            .rfind("\n\n")
            .ok_or(NoteError::Malformed("no empty line before the signatures"))?;
        let (text, lines) = (&note[..=at], &note[at + 2..]);
        let Some(lines) = lines.strip_suffix('\n') else {
            return Err(NoteError::Malformed(
                "no signature, or the last line does not end",
            ));
        };
        let signatures: Vec<NoteSignature> = lines
            .split('\n')
            .take(MAX_SIGNATURES + 1)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        if signatures.len() > MAX_SIGNATURES {
            return Err(NoteError::Malformed("it has too many signatures"));
        }
        Ok(Self {
            text: text.to_owned(),
            signatures,
        })
    }
}

impl fmt::Display for NoteSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = [self.key_id.as_slice(), &self.signature].concat();
        writeln!(f, "{MARK}{} {}", self.name, BASE64_STANDARD.encode(bytes))
    }
}

impl FromStr for NoteSignature {
    type Err = NoteError;

    fn from_str(line: &str) -> Result<Self, NoteError> {
        let error = NoteError::Malformed("a signature line is not `— <name> <base64>`");
        let (name, bytes) = line
            .strip_prefix(MARK)
            .and_then(|rest| rest.split_once(' '))
            .filter(|(name, _)| well_formed_name(name))
            .ok_or_else(|| error.clone())?;
        let bytes = BASE64_STANDARD.decode(bytes).map_err(|_| error.clone())?;
        let (key_id, signature) = bytes
            .split_first_chunk::<4>()
            .ok_or_else(|| error.clone())?;
        if signature.is_empty() {
            return Err(error);
        }
        Ok(Self {
            name: name.to_owned(),
            key_id: *key_id,
            signature: signature.to_vec(),
        })
    }
}

impl NoteSigner {
    /// A signer of notes; the name is not empty and has no space and no `+`.
    pub fn new(name: &str, key: SigningKey) -> Result<Self, NoteError> {
        Self::of_kind(name, SignatureKind::Ed25519, key)
    }

    /// A signer of cosignatures: a witness.
    pub fn cosigner(name: &str, key: SigningKey) -> Result<Self, NoteError> {
        Self::of_kind(name, SignatureKind::Cosignature, key)
    }

    fn of_kind(name: &str, kind: SignatureKind, key: SigningKey) -> Result<Self, NoteError> {
        let verifier = NoteVerifier::new(name, kind, key.verifying_key())?;
        Ok(Self { key, verifier })
    }

    /// The key that checks its signatures.
    #[must_use]
    pub const fn verifier(&self) -> &NoteVerifier {
        &self.verifier
    }

    /// Signs a text that ends in a newline. A cosignature states `time` (Unix seconds); a plain
    /// signature does not.
    pub fn sign(&self, text: &str, time: u64) -> Result<NoteSignature, NoteError> {
        if !text.ends_with('\n') || text.bytes().any(|b| b < 0x20 && b != b'\n') {
            return Err(NoteError::Malformed(
                "the text does not end in a newline, or has a control character",
            ));
        }
        let signature = match self.verifier.kind {
            SignatureKind::Ed25519 => self.key.sign(text.as_bytes()).to_bytes().to_vec(),
            SignatureKind::Cosignature => {
                let signed = cosigned(text, time);
                let signature = self.key.sign(signed.as_bytes()).to_bytes();
                [time.to_be_bytes().as_slice(), &signature].concat()
            }
        };
        Ok(NoteSignature {
            name: self.verifier.name.clone(),
            key_id: self.verifier.key_id(),
            signature,
        })
    }
}

impl fmt::Debug for NoteSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NoteSigner")
            .field(&self.verifier.to_string())
            .finish()
    }
}

impl NoteVerifier {
    /// A verifier key from its parts.
    pub fn new(name: &str, kind: SignatureKind, key: VerifyingKey) -> Result<Self, NoteError> {
        if !well_formed_name(name) {
            return Err(NoteError::Key(
                "the name is empty, too long or has a space or a plus",
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            kind,
            key,
        })
    }

    /// The signer's name: a log's origin.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key's id: the start of SHA-256 over name, newline, kind and key.
    #[must_use]
    pub fn key_id(&self) -> [u8; 4] {
        let mut hasher = Sha256::new();
        hasher.update(self.name.as_bytes());
        hasher.update([b'\n', self.kind.code()]);
        hasher.update(self.key.as_bytes());
        let digest: [u8; 32] = hasher.finalize().into();
        [digest[0], digest[1], digest[2], digest[3]]
    }

    /// Checks the note's signatures by this key; every one must be right and there must be one.
    /// For a cosignature gives the time it states (Unix seconds), else `None`.
    pub fn verify(&self, note: &Note) -> Result<Option<u64>, NoteError> {
        let id = self.key_id();
        let mine =
            |signature: &&NoteSignature| signature.name == self.name && signature.key_id == id;
        let mut found = Err(NoteError::NotSigned(self.name.clone()));
        for signature in note.signatures.iter().filter(mine) {
            let bad = || NoteError::BadSignature(self.name.clone());
            found = Ok(self
                .check(&note.text, &signature.signature)
                .ok_or_else(bad)?);
        }
        found
    }

    /// `None` when the signature is wrong.
    fn check(&self, text: &str, signature: &[u8]) -> Option<Option<u64>> {
        let (time, signature) = match self.kind {
            SignatureKind::Ed25519 => (None, signature),
            SignatureKind::Cosignature => {
                let (time, signature) = signature.split_first_chunk::<8>()?;
                (Some(u64::from_be_bytes(*time)), signature)
            }
        };
        let signature = Signature::from_slice(signature).ok()?;
        let signed = time.map_or_else(|| text.to_owned(), |time| cosigned(text, time));
        self.key.verify_strict(signed.as_bytes(), &signature).ok()?;
        Some(time)
    }
}

impl fmt::Display for NoteVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = [&[self.kind.code()], self.key.as_bytes().as_slice()].concat();
        let id = hex::encode(self.key_id());
        write!(f, "{}+{id}+{}", self.name, BASE64_STANDARD.encode(key))
    }
}

impl FromStr for NoteVerifier {
    type Err = NoteError;

    fn from_str(vkey: &str) -> Result<Self, NoteError> {
        let shape = || NoteError::Key("expected <name>+<8 hex digits>+<base64>");
        let mut parts = vkey.splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(shape());
        };
        let bytes = BASE64_STANDARD.decode(key).map_err(|_| shape())?;
        let (code, key) = bytes.split_first().ok_or_else(shape)?;
        let kind = SignatureKind::from_code(*code).ok_or(NoteError::Key("unknown kind of key"))?;
        let key: &[u8; 32] = key
            .try_into()
            .map_err(|_| NoteError::Key("the key is not 32 bytes"))?;
        let key = VerifyingKey::from_bytes(key)
            .map_err(|_| NoteError::Key("not a point of the curve"))?;
        let verifier = Self::new(name, kind, key)?;
        if hex::encode(verifier.key_id()) != id {
            return Err(NoteError::Key("the key id is not that of the key"));
        }
        Ok(verifier)
    }
}

impl SignatureKind {
    const fn code(self) -> u8 {
        match self {
            Self::Ed25519 => 1,
            Self::Cosignature => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Ed25519),
            4 => Some(Self::Cosignature),
            _ => None,
        }
    }
}

fn cosigned(text: &str, time: u64) -> String {
    format!("cosignature/v1\ntime {time}\n{text}")
}

fn well_formed_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && !name
            .chars()
            .any(|c| c.is_whitespace() || c.is_control() || c == '+')
}

const MARK: &str = "\u{2014} ";
/// The longest note.
pub const MAX_NOTE_BYTES: usize = 64 * 1024;
/// The most signatures on a note.
pub const MAX_SIGNATURES: usize = 64;
const MAX_NAME_BYTES: usize = 255;
