use std::path::PathBuf;

use api::client::Client;
use api::v1;
use ed25519_dalek::SigningKey;
use identifiers::{ReceiptId, Sha256Digest, SpiffeId};
use receipt::{Event, Receipt};
use registry_domain::{CheckpointPin, VerifiedManifest, check_against_pin};
use tlog::{Checkpoint, OfflineProof};
use tokio::sync::Mutex;

use crate::error::CustodyError;
use crate::trust::Trust;

/// A service's way to the log and to what stands in it.
pub struct CustodyLog {
    registry: Client,
    key: SigningKey,
    replica: SpiffeId,
    trust: Trust,
    pin: Mutex<Pinned>,
}

struct Pinned {
    file: CheckpointPin,
    seen: Option<Checkpoint>,
}

/// A receipt that stands in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Its id.
    pub id: ReceiptId,
    /// Its index.
    pub index: u64,
}

impl CustodyLog {
    /// A way to the log of `registry`; `pin` keeps the last checkpoint seen over restarts.
    pub fn open(
        registry: Client,
        key: SigningKey,
        replica: SpiffeId,
        trust: Trust,
        pin: impl Into<PathBuf>,
    ) -> Result<Self, CustodyError> {
        let file = CheckpointPin::new(pin);
        let seen = file.load(&trust.log)?;
        Ok(Self {
            registry,
            key,
            replica,
            trust,
            pin: Mutex::new(Pinned { file, seen }),
        })
    }

    /// The replica that signs here.
    #[must_use]
    pub const fn replica(&self) -> &SpiffeId {
        &self.replica
    }

    /// The public keys in use.
    #[must_use]
    pub const fn trust(&self) -> &Trust {
        &self.trust
    }

    /// The key that signs this replica's receipts and manifests.
    #[must_use]
    pub const fn key(&self) -> &SigningKey {
        &self.key
    }

    /// Puts a receipt into the log: returns once it is there for good. Recording the same receipt
    /// again has no further effect.
    pub async fn record(&self, receipt: &Receipt) -> Result<Recorded, CustodyError> {
        let entry = receipt.sign(&self.key)?;
        let request = v1::AppendReceiptRequest {
            envelope: entry.clone(),
        };
        let logged = self
            .registry
            .call(|| {
                let (mut client, request) = (self.registry.registry_service(), request.clone());
                async move { client.append_receipt(request).await }
            })
            .await?
            .into_inner();
        let index = self.check_proof(&entry, &logged.proof).await?;
        tracing::info!(receipt = %receipt.id, event = receipt.event.as_str(), index, "recorded");
        Ok(Recorded {
            id: receipt.id,
            index,
        })
    }

    /// Checks that the log extends the one seen last.
    pub async fn check_log(&self) -> Result<(), CustodyError> {
        let note = self
            .registry
            .call(|| {
                let mut client = self.registry.registry_service();
                async move { client.get_checkpoint(v1::GetCheckpointRequest {}).await }
            })
            .await?
            .into_inner()
            .note;
        let checkpoint = self.checkpoint(&note)?;
        self.advance(checkpoint, &note).await
    }

    /// Fetches an artifact: its manifest is signed by a trusted sealer, and its registration stands
    /// in the log.
    pub async fn artifact(
        &self,
        which: v1::get_artifact_request::Which,
    ) -> Result<VerifiedManifest, CustodyError> {
        let request = v1::GetArtifactRequest {
            which: Some(which.clone()),
        };
        let artifact = self
            .registry
            .call(|| {
                let (mut client, request) = (self.registry.registry_service(), request.clone());
                async move { client.get_artifact(request).await }
            })
            .await?
            .into_inner();
        let manifest = VerifiedManifest::verify(&artifact.manifest_envelope, &self.trust.signers)?;
        let wanted = match &which {
            v1::get_artifact_request::Which::Digest(digest) => {
                *digest == manifest.digest().to_string()
            }
            v1::get_artifact_request::Which::Model(model) => {
                model.model == manifest.manifest().model
            }
            v1::get_artifact_request::Which::Id(id) => *id == artifact.id,
        };
        if !wanted {
            return Err(CustodyError::Artifact("it is not the one asked for"));
        }
        let logged = artifact
            .receipt
            .ok_or(CustodyError::Artifact("it has no receipt"))?;
        let receipt = Receipt::verify(&logged.envelope, &self.trust.signers)?;
        let receipt = receipt.receipt();
        let names_it = |artifact: &receipt::ArtifactRef| artifact.digest == manifest.digest();
        if receipt.event != Event::Registered || !receipt.artifact.as_ref().is_some_and(names_it) {
            return Err(CustodyError::Artifact("its receipt is of something else"));
        }
        self.check_proof(&logged.envelope, &logged.proof).await?;
        Ok(manifest)
    }

    /// Checks that `entry` stands in the log, and that the log extends the one seen last.
    async fn check_proof(&self, entry: &[u8], proof: &str) -> Result<u64, CustodyError> {
        let proof: OfflineProof = proof.parse().map_err(untrusted)?;
        let checkpoint = proof.verify(entry, &self.trust.log).map_err(untrusted)?;
        self.advance(checkpoint, &proof.checkpoint).await?;
        Ok(proof.index)
    }

    fn checkpoint(&self, note: &str) -> Result<Checkpoint, CustodyError> {
        Checkpoint::verify(note, &self.trust.log).map_err(untrusted)
    }

    /// Compares a checkpoint with the pinned one, and pins it when it is newer.
    async fn advance(&self, checkpoint: Checkpoint, note: &str) -> Result<(), CustodyError> {
        let mut pinned = self.pin.lock().await;
        if let Some(seen) = &pinned.seen {
            // An answer that was on its way while a newer one came in is older, not wrong.
            let (old, new) = if checkpoint.size < seen.size {
                (&checkpoint, seen)
            } else {
                (seen, &checkpoint)
            };
            let proof = self.consistency(old.size, new.size).await?;
            check_against_pin(old, new.size, &new.root, &proof)?;
            if checkpoint.size <= seen.size {
                return Ok(());
            }
        }
        pinned.file.store(note)?;
        pinned.seen = Some(checkpoint);
        Ok(())
    }

    async fn consistency(&self, old: u64, new: u64) -> Result<Vec<Sha256Digest>, CustodyError> {
        if old == new || old == 0 {
            return Ok(Vec::new());
        }
        let request = v1::GetConsistencyProofRequest {
            old_size: old,
            new_size: new,
        };
        let answer = self
            .registry
            .call(|| {
                let mut client = self.registry.registry_service();
                async move { client.get_consistency_proof(request).await }
            })
            .await;
        let hashes = match answer {
            Ok(answer) => answer.into_inner().hashes,
            // A log shorter than the one seen has no such proof to give.
            Err(status) if status.code() == tonic::Code::InvalidArgument => {
                return Err(registry_domain::PinError::WentBack {
                    pinned: new,
                    found: old,
                }
                .into());
            }
            Err(status) => return Err(status.into()),
        };
        hashes
            .into_iter()
            .map(|hash| {
                <[u8; 32]>::try_from(hash)
                    .map(Sha256Digest::new)
                    .map_err(|_| CustodyError::Proof("a proof hash is not 32 bytes".to_owned()))
            })
            .collect()
    }
}

/// An error and its causes as one sentence.
fn untrusted(error: impl std::error::Error) -> CustodyError {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    CustodyError::Proof(text)
}
