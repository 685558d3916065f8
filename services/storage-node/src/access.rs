use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use capability::{CertificateThumbprint, Claims, Refusal, Verified, Verifier};
use ed25519_dalek::VerifyingKey;
use identifiers::{Role, Sha256Digest, SpiffeId};
use service_runtime::{Peer, TrustError, TrustFile};

use crate::error::StorageError;

/// Decides who may read which blob.
pub(crate) struct Access {
    trust: PathBuf,
    issuer: SpiffeId,
    skew: u64,
    verifier: Mutex<Verifier>,
}

/// Until when a read is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// The caller's role needs no capability.
    ByRole,
    /// A capability allows it until this time, in seconds since the Unix epoch.
    Until(u64),
}

/// A trust file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustRefusal {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] TrustError),
    /// A capability key is not a point on the curve.
    #[error("capability key {kid}: not an Ed25519 key")]
    Key {
        /// The key's id.
        kid: String,
    },
}

impl Access {
    pub(crate) fn load(trust: PathBuf, issuer: SpiffeId, skew: u64) -> Result<Self, TrustRefusal> {
        let verifier = Mutex::new(read(&trust, &issuer)?);
        Ok(Self {
            trust,
            issuer,
            skew,
            verifier,
        })
    }

    /// Whether `peer` may read `blob` at `now`, in seconds since the Unix epoch. The role table let
    /// the peer call the method; here an inference node must also show a capability.
    pub(crate) fn check(
        &self,
        peer: &Peer,
        token: &str,
        blob: &Sha256Digest,
        now: u64,
    ) -> Result<Allowed, StorageError> {
        if peer.role() != Role::Inference {
            return Ok(Allowed::ByRole);
        }
        if token.is_empty() {
            return Err(StorageError::CapabilityRequired);
        }
        let thumbprint = CertificateThumbprint::new(peer.cert_sha256);
        let claims = self.verify(token, now, &thumbprint)?;
        if claims.sub != peer.spiffe {
            return Err(StorageError::OtherSubject);
        }
        if !claims.allows_blob(blob) {
            return Err(StorageError::BlobNotNamed);
        }
        Ok(Allowed::Until(claims.exp.saturating_add(self.skew)))
    }

    fn verify(
        &self,
        token: &str,
        now: u64,
        peer: &CertificateThumbprint,
    ) -> Result<Verified<Claims>, StorageError> {
        let mut verifier = self.verifier.lock().unwrap_or_else(PoisonError::into_inner);
        match verifier.verify(token, now, peer, self.skew) {
            // The key service may have got a new key since the file was read. Who is let in here
            // has shown a certificate of this installation, so reading it again is no gift.
            Err(Refusal::UnknownKey) => {
                match read(&self.trust, &self.issuer) {
                    Ok(fresh) => *verifier = fresh,
                    Err(error) => tracing::error!(%error, "the trust file cannot be read again"),
                }
                Ok(verifier.verify(token, now, peer, self.skew)?)
            }
            other => Ok(other?),
        }
    }
}

fn read(trust: &std::path::Path, issuer: &SpiffeId) -> Result<Verifier, TrustRefusal> {
    let keys = TrustFile::load(trust)?.capability_keys.into_iter();
    let keys: Result<Vec<_>, _> = keys
        .map(|key| match VerifyingKey::from_bytes(&key.public_key.0) {
            Ok(public) => Ok((key.kid, public)),
            Err(_) => Err(TrustRefusal::Key { kid: key.kid }),
        })
        .collect();
    Ok(Verifier::new(keys?, issuer.clone()))
}
