//! Artifacts into the registry, and the receipts that a job sealed them.

use std::sync::Arc;

use api::{fields, v1};
use identifiers::{ReceiptId, RequestId};
use receipt::{ArtifactRef, Event, KeyRef, NewReceipt, Receipt, WeightIdentity};
use registry_domain::{
    ArtifactKind, ArtifactManifest, ContainerRecord, FileOutcome, ManifestFile, SealRecord,
    SealedArtifact, VerifiedManifest,
};
use sealing::SealReport;
use sha2::{Digest as _, Sha256};

use crate::container_stage::SealedContainer;
use crate::failure::JobError;
use crate::job::Attempt;
use crate::keys::KeyFacts;
use crate::resume::Resume;

/// What a job made, all of it durable.
pub struct Product {
    pub report: SealReport,
    pub checkpoint: Vec<ManifestFile>,
    pub container: Option<SealedContainer>,
    pub outcomes: Vec<FileOutcome>,
}

/// Registers each output and records its receipt. A retry registers the same manifests.
pub async fn register(
    attempt: &Arc<Attempt>,
    key: &KeyFacts,
    resume: &Resume,
    product: &Product,
) -> Result<Vec<SealedArtifact>, JobError> {
    let mut manifests = Vec::new();
    let seal = seal_record(attempt, &product.report)?;
    if attempt.order.checkpoint {
        manifests.push(ArtifactManifest {
            sealed: Some(product.report.sealed.clone()),
            files: product.checkpoint.clone(),
            ..blank(attempt, key, resume, &seal, ArtifactKind::Checkpoint)
        });
    }
    if let Some(container) = &product.container {
        manifests.push(ArtifactManifest {
            files: vec![container.file.clone()],
            container: Some(ContainerRecord {
                salt: hex::encode(resume.container_salt),
                units: container.units.clone(),
            }),
            ..blank(attempt, key, resume, &seal, ArtifactKind::Container)
        });
    }
    let mut artifacts = Vec::with_capacity(manifests.len());
    for manifest in manifests {
        artifacts.push(register_one(attempt, key, resume, manifest).await?);
    }
    Ok(artifacts)
}

async fn register_one(
    attempt: &Arc<Attempt>,
    key: &KeyFacts,
    resume: &Resume,
    manifest: ArtifactManifest,
) -> Result<SealedArtifact, JobError> {
    let (model, kind) = (manifest.model.clone(), manifest.kind);
    let (envelope, digest) = attempt
        .blocking(move |attempt| {
            let log = &attempt.means.log;
            let envelope = manifest.sign(log.key())?;
            let digest = VerifiedManifest::verify(&envelope, &log.trust().signers)?.digest();
            Ok((envelope, digest))
        })
        .await?;
    let request = v1::RegisterArtifactRequest {
        request_id: request_id(attempt, kind).to_string(),
        manifest_envelope: envelope,
    };
    let registry = &attempt.means.registry;
    let registered = registry.call(|| {
        let (mut service, request) = (registry.registry_service(), request.clone());
        async move { service.register_artifact(request).await }
    });
    let registered = attempt.until_stopped(registered).await?;
    let registered = registered
        .map_err(|status| JobError::of_registry(&status))?
        .into_inner();
    let malformed = || JobError::refused("registry-refused", "registry: its answer is malformed");
    let id = fields::id("id", &registered.id).map_err(|_| malformed())?;
    if registered.digest != digest.to_string() {
        return Err(malformed());
    }
    // The registration's time, which a repeat gives again: so the receipt is the same one.
    let time = registered.registered_at.saturating_mul(1000);
    let receipt = Receipt {
        request_id: Some(attempt.order.request_id),
        key: Some(KeyRef {
            id: key.id,
            fingerprint: key.fingerprint,
            version: key.version,
        }),
        artifact: Some(ArtifactRef { model, digest }),
        source: Some(WeightIdentity::of(&resume.source)),
        job: Some(attempt.lease.job.id),
        ..NewReceipt {
            id: ReceiptId::from_parts(millis(time), &tail(attempt, digest.as_bytes())),
            event: Event::Sealed,
            actor: attempt.lease.job.submitter.clone(),
            replica: attempt.means.log.replica().clone(),
            time,
        }
        .into()
    };
    attempt
        .until_stopped(attempt.means.log.record(&receipt))
        .await??;
    Ok(SealedArtifact { id, digest, kind })
}

fn blank(
    attempt: &Attempt,
    key: &KeyFacts,
    resume: &Resume,
    seal: &SealRecord,
    kind: ArtifactKind,
) -> ArtifactManifest {
    ArtifactManifest {
        version: 1,
        model: attempt.order.model.clone(),
        kind,
        key_id: key.id,
        key_version: key.version,
        fingerprint: key.fingerprint,
        seal: seal.clone(),
        source: resume.source.clone(),
        sealed: None,
        files: Vec::new(),
        container: None,
        sealed_at: attempt.lease.job.submitted_at.div_euclid(1000),
        sealer: attempt.means.log.replica().clone(),
    }
}

fn seal_record(attempt: &Attempt, report: &SealReport) -> Result<SealRecord, JobError> {
    let metadata: serde_json::Value = serde_json::from_str(&report.metadata)
        .map_err(|error| JobError::refused("sealer-failed", error.to_string()))?;
    let architecture = metadata
        .get("base_architecture")
        .or_else(|| metadata.get("architecture"))
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    Ok(SealRecord {
        scheme: attempt.order.scheme.name().to_owned(),
        transform: attempt.order.transform.name().to_owned(),
        lock: attempt.order.lock_name(),
        lock_table_digest: report.lock_table,
        architecture: architecture.to_owned(),
    })
}

/// The request id of a job's registration of one kind of artifact.
fn request_id(attempt: &Attempt, kind: ArtifactKind) -> RequestId {
    let kind: &[u8] = match kind {
        ArtifactKind::Checkpoint => b"checkpoint",
        ArtifactKind::Container => b"container",
    };
    let at = millis(attempt.lease.job.submitted_at);
    RequestId::from_parts(at, &tail(attempt, kind))
}

/// The part of an id that follows from the job, this replica and what the id is for.
fn tail(attempt: &Attempt, about: &[u8]) -> [u8; 10] {
    let mut hash = Sha256::new();
    hash.update(attempt.lease.job.id.as_uuid().as_bytes());
    hash.update(attempt.means.log.replica().to_string());
    hash.update([0]);
    hash.update(about);
    let digest = hash.finalize();
    digest[..10].try_into().expect("10 of 32 bytes")
}

fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}
