//! Artifacts into the registry, and the receipts that a job sealed them.

use std::sync::Arc;

use api::{fields, v1};
use checkpoint::WrittenFile;
use identifiers::{ReceiptId, RequestId, Sha256Digest};
use receipt::{
    ArtifactRef, Event, KeyRef, MODEL_SIGNATURE, NewReceipt, Receipt, Resource, WeightIdentity,
};
use registry_domain::{
    ArtifactKind, ArtifactManifest, ContainerRecord, FileOutcome, ManifestFile, SealRecord,
    SealedArtifact, VerifiedManifest,
};
use sealing::SealReport;
use sha2::{Digest as _, Sha256};

use crate::container_stage::SealedContainer;
use crate::failure::JobError;
use crate::job::{Attempt, OutputFile};
use crate::order::{SealOrder, lock_name};
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
    order: &SealOrder,
    key: &KeyRef,
    resume: &Resume,
    product: &Product,
) -> Result<Vec<SealedArtifact>, JobError> {
    let mut manifests = Vec::new();
    let seal = seal_record(order, &product.report)?;
    if order.checkpoint {
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
        artifacts.push(register_one(attempt, manifest, None).await?);
    }
    Ok(artifacts)
}

/// What a derived artifact was made from, and how.
pub struct Origin {
    pub from: Sha256Digest,
    pub how: String,
}

/// Registers an artifact and records its receipt: `sealed`, or `derived` with its origin.
pub async fn register_one(
    attempt: &Arc<Attempt>,
    mut manifest: ArtifactManifest,
    origin: Option<Origin>,
) -> Result<SealedArtifact, JobError> {
    if manifest.kind == ArtifactKind::Checkpoint {
        sign_model(attempt, &mut manifest).await?;
    }
    let (model, kind) = (manifest.model.clone(), manifest.kind);
    let key = KeyRef {
        id: manifest.key_id,
        fingerprint: manifest.fingerprint,
        version: manifest.key_version,
    };
    let source = WeightIdentity::of(&manifest.source);
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
        key: Some(key),
        artifact: Some(ArtifactRef { model, digest }),
        from: origin.as_ref().map(|origin| origin.from),
        source: Some(source),
        job: Some(attempt.lease.job.id),
        reason: origin.as_ref().map(|origin| origin.how.clone()),
        ..NewReceipt {
            id: ReceiptId::from_parts(millis(time), &tail(attempt, digest.as_bytes())),
            event: match origin {
                None => Event::Sealed,
                Some(_) => Event::Derived,
            },
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

/// Signs a checkpoint's files for the public tool, and adds the signature to them.
async fn sign_model(
    attempt: &Arc<Attempt>,
    manifest: &mut ArtifactManifest,
) -> Result<(), JobError> {
    manifest.files.retain(|file| file.path != MODEL_SIGNATURE);
    let files = manifest.files.iter();
    let resources = files
        .map(|file| Resource {
            name: file.path.clone(),
            sha256: file.sha256,
        })
        .collect();
    let model = manifest.model.clone();
    let output = attempt
        .blocking(move |attempt| {
            let signed = attempt.means.model_signer.sign(&model, resources);
            let text =
                signed.map_err(|error| JobError::refused("sealer-failed", error.to_string()))?;
            let on_disk = attempt.folder.join(MODEL_SIGNATURE);
            std::fs::write(&on_disk, &text)?;
            Ok(OutputFile {
                stage: MODEL_SIGNATURE,
                number: 0,
                on_disk,
                written: WrittenFile {
                    path: MODEL_SIGNATURE.to_owned(),
                    bytes: text.len() as u64,
                    sha256: Sha256Digest::new(Sha256::digest(&text).into()),
                },
                detail: serde_json::Value::Object(serde_json::Map::new()),
                keep: false,
            })
        })
        .await?;
    let file = attempt.store(output).await?;
    let at = manifest
        .files
        .partition_point(|other| other.path < file.path);
    manifest.files.insert(at, file);
    Ok(())
}

fn blank(
    attempt: &Attempt,
    key: &KeyRef,
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

fn seal_record(order: &SealOrder, report: &SealReport) -> Result<SealRecord, JobError> {
    let metadata: serde_json::Value = serde_json::from_str(&report.metadata)
        .map_err(|error| JobError::refused("sealer-failed", error.to_string()))?;
    let architecture = metadata
        .get("base_architecture")
        .or_else(|| metadata.get("architecture"))
        .and_then(serde_json::Value::as_str)
        .unwrap_or_default();
    Ok(SealRecord {
        scheme: order.scheme.name().to_owned(),
        transform: order.transform.name().to_owned(),
        lock: lock_name(order.lock),
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
