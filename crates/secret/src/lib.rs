//! The one home of secret bytes.
//!
//! A [`Secret`] is boxed so that moving it copies a pointer and not the bytes, filled in place,
//! compared in constant time and wiped on drop. It has no `Clone`, no serde and a `Debug` that
//! prints its length only.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// `N` secret bytes on the heap.
pub struct Secret<const N: usize>(Box<[u8; N]>);

impl<const N: usize> Secret<N> {
    /// Fills a fresh secret in place.
    pub fn fill_with(fill: impl FnOnce(&mut [u8; N])) -> Self {
        let mut bytes = Box::new([0; N]);
        fill(&mut bytes);
        Self(bytes)
    }

    /// Fills a fresh secret in place with something that can fail; the half-filled bytes are wiped.
    pub fn try_fill_with<E>(fill: impl FnOnce(&mut [u8; N]) -> Result<(), E>) -> Result<Self, E> {
        let mut secret = Self(Box::new([0; N]));
        fill(&mut secret.0)?;
        Ok(secret)
    }

    /// Moves bytes in and wipes the place they came from.
    pub fn take(bytes: &mut [u8; N]) -> Self {
        let secret = Self(Box::new(*bytes));
        bytes.zeroize();
        secret
    }

    /// The bytes, for the one cryptographic call that needs them.
    #[must_use]
    pub fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&*other.0).into()
    }
}

impl<const N: usize> Eq for Secret<N> {}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({N} bytes)")
    }
}

/// Secret bytes of a length known at run time only: a passphrase, a decrypted payload.
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Takes ownership; the vector is wiped when the secret is dropped.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretBytes({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printing_a_secret_shows_its_length_only() {
        let secret = Secret::<4>::fill_with(|bytes| bytes.copy_from_slice(b"MARK"));
        assert_eq!(format!("{secret:?}"), "Secret(4 bytes)");
        let text = SecretBytes::new(b"MARK".to_vec());
        assert_eq!(format!("{text:?}"), "SecretBytes(4 bytes)");
    }

    #[test]
    fn taking_wipes_the_source() {
        let mut source = [7; 32];
        let secret = Secret::take(&mut source);
        assert_eq!(source, [0; 32]);
        assert_eq!(secret.expose(), &[7; 32]);
    }

    #[test]
    fn a_failed_fill_gives_no_secret() {
        let failed = Secret::<8>::try_fill_with(|_| Err("short"));
        assert_eq!(failed.unwrap_err(), "short");
    }
}
