//! The log's key, and the last checkpoint it signed.

use std::error::Error;
use std::sync::{Mutex, PoisonError};

use identifiers::Sha256Digest;
use registry_domain::{
    CheckpointPin, CheckpointSigner, LogHead, LogRepository, PinError, check_against_pin,
    consistency_proof,
};
use tlog::{Checkpoint, NoteSigner, NoteVerifier};

use crate::config::BuildError;

/// Signs checkpoints, and pins each before what it covers is answered.
pub struct Keeper {
    signer: NoteSigner,
    pin: CheckpointPin,
    pinned: Mutex<u64>,
}

impl Keeper {
    pub fn new(signer: NoteSigner, pin: CheckpointPin) -> Self {
        Self {
            signer,
            pin,
            pinned: Mutex::new(0),
        }
    }

    pub const fn verifier(&self) -> &NoteVerifier {
        self.signer.verifier()
    }

    /// Refuses a log that is not an extension of the one pinned, and pins its head.
    pub async fn admit(&self, log: &dyn LogRepository) -> Result<(), BuildError> {
        let pinned = self.pin.load(self.verifier())?;
        let Some(head) = log.head().await? else {
            return match pinned.map_or(0, |pinned| pinned.size) {
                0 => Ok(()),
                pinned => Err(PinError::WentBack { pinned, found: 0 }.into()),
            };
        };
        let stored = Checkpoint::verify(&head.note, self.verifier())?;
        if (stored.size, stored.root) != (head.size, head.root) {
            return Err(registry_domain::RepositoryError::Damaged("checkpoint").into());
        }
        if let Some(pinned) = pinned {
            let proof = if head.size < pinned.size {
                Vec::new()
            } else {
                consistency_proof(log, pinned.size, head.size).await?
            };
            check_against_pin(&pinned, head.size, &head.root, &proof)?;
        }
        self.store(head.size, &head.note)?;
        Ok(())
    }

    fn store(&self, size: u64, note: &str) -> Result<(), PinError> {
        let mut pinned = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if size > *pinned {
            self.pin.store(note)?;
            *pinned = size;
        }
        Ok(())
    }
}

impl CheckpointSigner for Keeper {
    fn sign(&self, size: u64, root: &Sha256Digest) -> String {
        let checkpoint = Checkpoint {
            origin: self.verifier().name().to_owned(),
            size,
            root: *root,
        };
        checkpoint
            .sign(&self.signer)
            .expect("the origin is the signer's own name, without control characters")
    }

    fn committed(&self, head: &LogHead) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.store(head.size, &head.note)?;
        Ok(())
    }
}
