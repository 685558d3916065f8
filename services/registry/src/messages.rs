//! Domain values as messages, and requests as domain values.

use api::{InvalidField, fields, v1};
use identifiers::ArtifactId;
use receipt::TrustedSigners;
use registry_domain::{
    ArtifactFilter, ArtifactKind, ArtifactRecord, EntryFilter, LogEntry, LogHead, Page,
};
use tlog::NoteVerifier;

use crate::service::{Logged, Which};

pub fn which(request: v1::GetArtifactRequest) -> Result<Which, InvalidField> {
    use v1::get_artifact_request::Which as Wire;
    Ok(match fields::required("which", request.which)? {
        Wire::Id(id) => Which::Id(fields::id("id", &id)?),
        Wire::Digest(digest) => Which::Digest(fields::digest("digest", &digest)?),
        Wire::Model(model) => {
            let kind = match fields::known("model.kind", model.kind)? {
                v1::ArtifactKind::Container => ArtifactKind::Container,
                _ => ArtifactKind::Checkpoint,
            };
            Which::Newest(fields::name("model.model", &model.model)?, kind)
        }
    })
}

pub fn artifact_list(
    request: &v1::ListArtifactsRequest,
) -> Result<(ArtifactFilter, Page<ArtifactId>), InvalidField> {
    let model = match request.model.as_str() {
        "" => None,
        model => Some(fields::name("model", model)?),
    };
    let filter = ArtifactFilter {
        model,
        source_aggregate: fields::optional_id("source_aggregate", &request.source_aggregate)?,
    };
    let page = Page {
        size: fields::page_size(request.page_size)?,
        before: fields::optional_id("page_token", &request.page_token)?,
    };
    Ok((filter, page))
}

pub fn entry_filter(request: &v1::ListReceiptsRequest) -> Result<EntryFilter, InvalidField> {
    let event = match request.event.as_str() {
        "" => None,
        event
            if receipt::Event::ALL
                .iter()
                .any(|known| known.as_str() == event) =>
        {
            Some(event.to_owned())
        }
        _ => return Err(InvalidField::new("event", "not the name of an event")),
    };
    Ok(EntryFilter {
        event,
        artifact: fields::optional_id("artifact_digest", &request.artifact_digest)?,
        actor: fields::optional_id("actor", &request.actor)?,
    })
}

/// An artifact without its envelope and receipt, as lists have it.
pub fn listed(record: &ArtifactRecord) -> v1::Artifact {
    let artifact = &record.artifact;
    let kind = match artifact.kind {
        ArtifactKind::Checkpoint => v1::ArtifactKind::Checkpoint,
        ArtifactKind::Container => v1::ArtifactKind::Container,
    };
    v1::Artifact {
        id: artifact.id.to_string(),
        digest: artifact.digest.to_string(),
        model: artifact.model.clone(),
        kind: kind.into(),
        manifest_envelope: Vec::new(),
        key_id: artifact.key_id.to_string(),
        fingerprint: artifact.fingerprint.to_string(),
        source_aggregate: artifact.source_aggregate.to_string(),
        registered_at: artifact.registered_at.div_euclid(1000),
        receipt: None,
    }
}

pub fn whole((record, receipt): (ArtifactRecord, Logged)) -> v1::Artifact {
    v1::Artifact {
        receipt: Some(logged(receipt)),
        ..v1::Artifact {
            manifest_envelope: record.artifact.envelope.clone(),
            ..listed(&record)
        }
    }
}

pub fn logged(logged: Logged) -> v1::LoggedReceipt {
    v1::LoggedReceipt {
        proof: logged.proof,
        ..entry(logged.entry)
    }
}

/// An entry without its proof, as lists have it.
pub fn entry(entry: LogEntry) -> v1::LoggedReceipt {
    v1::LoggedReceipt {
        receipt_id: entry.receipt_id.to_string(),
        index: entry.index,
        envelope: entry.envelope,
        proof: String::new(),
    }
}

pub fn checkpoint(head: LogHead) -> v1::Checkpoint {
    v1::Checkpoint {
        note: head.note,
        size: head.size,
    }
}

pub fn trusted_keys(log: &NoteVerifier, signers: &TrustedSigners) -> v1::TrustedKeys {
    let key =
        |(keyid, signer, key): (&str, &identifiers::SpiffeId, &ed25519_dalek::VerifyingKey)| {
            v1::ReceiptKey {
                keyid: keyid.to_owned(),
                signer: signer.to_string(),
                public_key: key.as_bytes().to_vec(),
            }
        };
    v1::TrustedKeys {
        log: log.to_string(),
        receipt_keys: signers.iter().map(key).collect(),
    }
}
