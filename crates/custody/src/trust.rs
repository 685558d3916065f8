use ed25519_dalek::VerifyingKey;
use receipt::TrustedSigners;
use service_runtime::TrustFile;
use tlog::NoteVerifier;

/// The public keys of an installation, as points on the curve.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Who signs receipts and manifests.
    pub signers: TrustedSigners,
    /// The log's key.
    pub log: NoteVerifier,
}

/// A key in the trust file that is none.
#[derive(Debug, thiserror::Error)]
pub enum TrustKeyError {
    /// The log's vkey.
    #[error("trust file: log")]
    Log(#[source] tlog::NoteError),
    /// A signer's key.
    #[error("trust file: the key of {0} is not an Ed25519 public key")]
    Signer(identifiers::SpiffeId),
}

impl TryFrom<&TrustFile> for Trust {
    type Error = TrustKeyError;

    fn try_from(file: &TrustFile) -> Result<Self, TrustKeyError> {
        let mut signers = TrustedSigners::new();
        for signer in &file.signers {
            let key = VerifyingKey::from_bytes(&signer.public_key.0)
                .map_err(|_| TrustKeyError::Signer(signer.spiffe.clone()))?;
            signers.insert(signer.spiffe.clone(), key);
        }
        let log = file.log.parse().map_err(TrustKeyError::Log)?;
        Ok(Self { signers, log })
    }
}
