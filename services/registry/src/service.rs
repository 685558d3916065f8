//! The registry's operations.

use std::sync::Arc;

use ed25519_dalek::SigningKey;
use identifiers::{ArtifactId, ReceiptId, RequestId, Sha256Digest, SpiffeId};
use receipt::{ArtifactRef, Event, KeyRef, NewReceipt, Receipt, TrustedSigners, WeightIdentity};
use registry_domain::{
    Append, ArtifactFilter, ArtifactKind, ArtifactRecord, ArtifactRepository, Conflict,
    EntryFilter, LogEntry, LogHead, LogRepository, NewArtifact, NewEntry, Page, RepositoryError,
    VerifiedManifest, consistency_proof, inclusion_proof,
};
use service_runtime::{Clock, Randomness};
use tlog::{OfflineProof, TileKind, TilePath};

use crate::error::RegistryError;
use crate::keeper::Keeper;

/// The registry's domain: every operation of the gRPC service is one method here.
pub struct Registry {
    pub(crate) log: Arc<dyn LogRepository>,
    pub(crate) artifacts: Arc<dyn ArtifactRepository>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) signers: Arc<TrustedSigners>,
    pub(crate) receipt_key: SigningKey,
    pub(crate) replica: SpiffeId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) randomness: Arc<dyn Randomness>,
}

/// An entry with its proof.
pub struct Logged {
    pub entry: LogEntry,
    pub proof: String,
}

/// How an artifact is asked for.
pub enum Which {
    Id(ArtifactId),
    Digest(Sha256Digest),
    Newest(String, ArtifactKind),
}

impl Registry {
    pub async fn register(
        &self,
        caller: SpiffeId,
        request_id: RequestId,
        envelope: Vec<u8>,
    ) -> Result<(ArtifactRecord, Logged), RegistryError> {
        let (verified, envelope) = self.verify_manifest(envelope).await?;
        let manifest = verified.manifest();
        if manifest.sealer != caller {
            let signer = manifest.sealer.clone();
            return Err(RegistryError::OtherCaller { signer, caller });
        }
        let now = self.clock.unix_millis();
        let mut receipt = self.receipt(Event::Registered, &caller, now);
        receipt.request_id = Some(request_id);
        receipt.key = Some(KeyRef {
            id: manifest.key_id,
            fingerprint: manifest.fingerprint,
            version: manifest.key_version,
        });
        receipt.artifact = Some(ArtifactRef {
            model: manifest.model.clone(),
            digest: verified.digest(),
        });
        receipt.source = Some(WeightIdentity::of(&manifest.source));
        let artifact = NewArtifact {
            id: ArtifactId::from_parts(millis(now), &self.randomness.bytes()),
            digest: verified.digest(),
            model: manifest.model.clone(),
            kind: manifest.kind,
            key_id: manifest.key_id,
            fingerprint: manifest.fingerprint,
            source_aggregate: manifest.source.summary().aggregate_sha256,
            envelope,
            sealer: caller,
            request_id,
            registered_at: now,
        };
        let append = Append {
            entry: self.own_entry(&receipt, now)?,
            artifact: Some(artifact),
        };
        match self.log.append(append).await {
            Ok(appended) => {
                let record = appended
                    .artifact
                    .ok_or(RepositoryError::Damaged("artifact"))?;
                Ok((record, self.prove(appended.entry).await?))
            }
            Err(error) => Err(self.refuse(receipt, error).await),
        }
    }

    pub async fn append(
        &self,
        caller: &SpiffeId,
        envelope: Vec<u8>,
    ) -> Result<Logged, RegistryError> {
        let verified = Receipt::verify(&envelope, &self.signers)?;
        let receipt = verified.receipt();
        if receipt.replica != *caller {
            return Err(RegistryError::OtherCaller {
                signer: receipt.replica.clone(),
                caller: caller.clone(),
            });
        }
        let entry = entry_of(receipt, envelope, self.clock.unix_millis());
        let append = Append {
            entry,
            artifact: None,
        };
        let appended = self.log.append(append).await?;
        self.prove(appended.entry).await
    }

    pub async fn artifact(&self, which: Which) -> Result<(ArtifactRecord, Logged), RegistryError> {
        let record = match which {
            Which::Id(id) => self.artifacts.artifact(id).await?,
            Which::Digest(digest) => self.artifacts.artifact_by_digest(&digest).await?,
            Which::Newest(model, kind) => self.artifacts.newest_artifact(&model, kind).await?,
        };
        let entry = self.log.entry(record.receipt_id).await?;
        Ok((record, self.prove(entry).await?))
    }

    pub async fn list_artifacts(
        &self,
        filter: &ArtifactFilter,
        page: Page<ArtifactId>,
    ) -> Result<Vec<ArtifactRecord>, RegistryError> {
        Ok(self.artifacts.list_artifacts(filter, page).await?)
    }

    pub async fn receipt_by_id(&self, id: ReceiptId) -> Result<Logged, RegistryError> {
        let entry = self.log.entry(id).await?;
        self.prove(entry).await
    }

    pub async fn receipt_at(&self, index: u64) -> Result<Logged, RegistryError> {
        let entry = self.log.entry_at(index).await?;
        self.prove(entry).await
    }

    /// A page of entries, the index where the next page starts (0 after the last), and the head
    /// that covers them.
    pub async fn list_receipts(
        &self,
        filter: &EntryFilter,
        from: u64,
        limit: u32,
    ) -> Result<(Vec<LogEntry>, u64, LogHead), RegistryError> {
        let mut entries = self.log.entries(filter, from, limit).await?;
        let mut bytes = 0;
        let mut fits = |entry: &LogEntry| {
            bytes += entry.envelope.len();
            bytes <= MAX_PAGE_BYTES
        };
        let fitting = entries
            .iter()
            .map_while(|entry| Some(entry).filter(|e| fits(e)))
            .count();
        let is_whole = entries.len() < limit as usize && fitting == entries.len();
        entries.truncate(fitting);
        let head = self.head().await?;
        let next = entries.last().map_or(0, |last| last.index + 1);
        let next = if is_whole || next == head.size {
            0
        } else {
            next
        };
        Ok((entries, next, head))
    }

    /// The newest head; of a log without entries, one signed now.
    pub async fn head(&self) -> Result<LogHead, RegistryError> {
        if let Some(head) = self.log.head().await? {
            return Ok(head);
        }
        let root = tlog::empty_root();
        let note = registry_domain::CheckpointSigner::sign(&*self.keeper, 0, &root);
        Ok(LogHead {
            size: 0,
            root,
            note,
        })
    }

    pub async fn inclusion(
        &self,
        index: u64,
        size: u64,
    ) -> Result<Vec<Sha256Digest>, RegistryError> {
        self.within_log("tree_size", size).await?;
        Ok(inclusion_proof(&*self.log, index, size).await?)
    }

    pub async fn consistency(
        &self,
        old: u64,
        new: u64,
    ) -> Result<Vec<Sha256Digest>, RegistryError> {
        self.within_log("new_size", new).await?;
        Ok(consistency_proof(&*self.log, old, new).await?)
    }

    pub async fn tile(&self, path: &TilePath) -> Result<Vec<u8>, RegistryError> {
        if !path.exists_at(self.head().await?.size) {
            return Err(RegistryError::NoTile);
        }
        let start = path.index * u64::from(tlog::TILE_WIDTH);
        match path.kind {
            TileKind::Hashes { level } => {
                let hashes = self.log.node_run(level * 8, start, path.width).await?;
                Ok(tlog::encode_hashes(&hashes))
            }
            TileKind::Entries => {
                let filter = EntryFilter::default();
                let entries = self.log.entries(&filter, start, path.width).await?;
                Ok(tlog::encode_entries(
                    entries.iter().map(|entry| &entry.envelope[..]),
                )?)
            }
        }
    }

    async fn within_log(&self, field: &'static str, size: u64) -> Result<(), RegistryError> {
        let head = self.head().await?.size;
        if size <= head {
            Ok(())
        } else {
            Err(RegistryError::BeyondLog { field, size: head })
        }
    }

    /// The entry with a proof under the newest checkpoint.
    async fn prove(&self, entry: LogEntry) -> Result<Logged, RegistryError> {
        let head = self.head().await?;
        let proof = OfflineProof {
            extra: None,
            index: entry.index,
            hashes: inclusion_proof(&*self.log, entry.index, head.size).await?,
            checkpoint: head.note,
        };
        Ok(Logged {
            entry,
            proof: proof.to_string(),
        })
    }

    /// A manifest of thousands of files takes milliseconds: not on a thread that serves others.
    async fn verify_manifest(
        &self,
        envelope: Vec<u8>,
    ) -> Result<(VerifiedManifest, Vec<u8>), RegistryError> {
        let signers = Arc::clone(&self.signers);
        let verify = move || {
            let verified = VerifiedManifest::verify(&envelope, &signers)?;
            Ok((verified, envelope))
        };
        tokio::task::spawn_blocking(verify).await?
    }

    /// Records that a registration was refused, where that concerns the custody of a key; gives the
    /// error back, or that of the log.
    async fn refuse(&self, registration: Receipt, error: RepositoryError) -> RegistryError {
        let RepositoryError::Conflict(Conflict::KeyServesAnotherSource { .. }) = &error else {
            return error.into();
        };
        let now = self.clock.unix_millis();
        let blank = self.receipt(Event::Refused, &registration.actor, now);
        let refused = Receipt {
            id: blank.id,
            event: blank.event,
            reason: Some(format!("registration: {error}")),
            ..registration
        };
        let append = self.own_entry(&refused, now).map(|entry| Append {
            entry,
            artifact: None,
        });
        let append = match append {
            Ok(append) => append,
            Err(unsigned) => return unsigned,
        };
        match self.log.append(append).await {
            Ok(_) => error.into(),
            Err(unlogged) => unlogged.into(),
        }
    }

    fn receipt(&self, event: Event, actor: &SpiffeId, now: i64) -> Receipt {
        NewReceipt {
            id: ReceiptId::from_parts(millis(now), &self.randomness.bytes()),
            event,
            actor: actor.clone(),
            replica: self.replica.clone(),
            time: now,
        }
        .into()
    }

    fn own_entry(&self, receipt: &Receipt, now: i64) -> Result<NewEntry, RegistryError> {
        let envelope = receipt
            .sign(&self.receipt_key)
            .map_err(RegistryError::OwnReceipt)?;
        Ok(entry_of(receipt, envelope, now))
    }
}

fn entry_of(receipt: &Receipt, envelope: Vec<u8>, now: i64) -> NewEntry {
    NewEntry {
        receipt_id: receipt.id,
        envelope,
        event: receipt.event.as_str().to_owned(),
        actor: receipt.actor.clone(),
        artifact: receipt.artifact.as_ref().map(|artifact| artifact.digest),
        appended_at: now,
    }
}

fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}

/// Envelopes on one page: far more than the largest one, less than a message may hold.
const MAX_PAGE_BYTES: usize = 3 * 1024 * 1024;
