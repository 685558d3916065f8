//! Private keys in files of mode 600: 32 bytes, raw or as 64 hex digits, and Ed25519 keys as their
//! 32-byte seed or as PKCS#8 PEM.

use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::DecodePrivateKey;

use crate::config::{ConfigError, read_secret};

/// A key file that cannot be used. Never says what is in it.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// The file cannot be read, or others can read it.
    #[error("key file")]
    File(#[from] ConfigError),
    /// Neither 32 bytes nor 64 hex digits.
    #[error("{}: expected 32 bytes or 64 hex digits", path.display())]
    Hex {
        /// The file.
        path: PathBuf,
    },
    /// Neither an Ed25519 seed nor such a key in PKCS#8 PEM.
    #[error("{}: expected an Ed25519 private key: its 32-byte seed or PKCS#8 PEM", path.display())]
    Ed25519 {
        /// The file.
        path: PathBuf,
    },
}

/// Reads a 32-byte key (a root key, a seed) into `out`, which its owner wipes.
pub fn read_key(path: &Path, out: &mut [u8; 32]) -> Result<(), KeyFileError> {
    let text = zeroize::Zeroizing::new(read_secret(path)?);
    if let Ok(raw) = text.as_slice().try_into() {
        *out = raw;
        return Ok(());
    }
    let digits = text.strip_suffix(b"\n").unwrap_or(&text);
    hex::decode_to_slice(digits, out).map_err(|_| KeyFileError::Hex {
        path: path.to_owned(),
    })
}

/// Reads an Ed25519 signing key.
pub fn read_signing_key(path: &Path) -> Result<SigningKey, KeyFileError> {
    let malformed = || KeyFileError::Ed25519 {
        path: path.to_owned(),
    };
    let text = zeroize::Zeroizing::new(read_secret(path)?);
    if let Ok(seed) = text.as_slice().try_into() {
        return Ok(SigningKey::from_bytes(seed));
    }
    let pem = std::str::from_utf8(&text).map_err(|_| malformed())?;
    SigningKey::from_pkcs8_pem(pem).map_err(|_| malformed())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use ed25519_dalek::pkcs8::EncodePrivateKey;
    use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;

    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let write = |text: &str| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let mut out = [0; 32];
        write(&format!("{}\n", "ab".repeat(32)));
        read_key(&path, &mut out).unwrap();
        assert_eq!(out, [0xab; 32]);
        for bad in ["", "ab", &"ab".repeat(33), &"zz".repeat(32)] {
            write(bad);
            assert!(read_key(&path, &mut out).is_err(), "{bad}");
            assert!(read_signing_key(&path).is_err(), "{bad}");
        }
        let key = SigningKey::from_bytes(&[7; 32]);
        fs::write(&path, [7; 32]).unwrap();
        assert_eq!(read_signing_key(&path).unwrap(), key);
        read_key(&path, &mut out).unwrap();
        assert_eq!(out, [7; 32]);
        write(&key.to_pkcs8_pem(LineEnding::LF).unwrap());
        assert_eq!(read_signing_key(&path).unwrap(), key);
    }
}
