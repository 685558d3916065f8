//! The receipts of the key service. A receipt of something stored is made from the stored record
//! alone, so that a retry after a crash gives the same bytes and the log takes it once a replica.

use std::sync::Arc;

use custody::CustodyLog;
use identifiers::{ReceiptId, RequestId, SpiffeId};
use receipt::{ArtifactRef, Event, KeyRef, NewReceipt, Receipt};
use registry_domain::{
    CapabilityRecord, Grant, KeyOrigin, KeyRecord, Revocation, VerifiedManifest,
};
use service_runtime::{Clock, Randomness};
use sha2::{Digest as _, Sha256};

use crate::error::KeyError;

/// Writes receipts.
#[derive(Clone)]
pub struct Receipts {
    pub log: Arc<CustodyLog>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}

/// What a refusal was about, as far as it is known.
#[derive(Default)]
pub struct Refused<'a> {
    pub request_id: Option<RequestId>,
    pub key: Option<&'a KeyRecord>,
    pub artifact: Option<&'a VerifiedManifest>,
    pub units: Vec<(u8, u64, u64)>,
    pub job: Option<identifiers::JobId>,
}

impl Receipts {
    pub async fn key_made(&self, key: &KeyRecord) -> Result<(), KeyError> {
        let event = match key.origin {
            KeyOrigin::Created => Event::KeyCreated,
            KeyOrigin::Imported => Event::KeyImported,
        };
        let receipt = Receipt {
            key: Some(key_ref(key)),
            ..self.of_record(
                event,
                &key.caller,
                key.created_at,
                &[key.id.as_uuid().as_bytes()],
            )
        };
        self.record(&receipt).await
    }

    pub async fn key_disabled(
        &self,
        key: &KeyRecord,
        actor: &SpiffeId,
        request_id: RequestId,
        reason: &str,
    ) -> Result<(), KeyError> {
        let at = key.disabled_at.unwrap_or(key.created_at);
        let id = [key.id.as_uuid(), request_id.as_uuid()];
        let id = [&id[0].as_bytes()[..], id[1].as_bytes()];
        let receipt = Receipt {
            key: Some(key_ref(key)),
            request_id: Some(request_id),
            reason: Some(reason.to_owned()),
            ..self.of_record(Event::KeyDisabled, actor, at, &id)
        };
        self.record(&receipt).await
    }

    pub async fn granted(&self, grant: &Grant, key: &KeyRecord) -> Result<(), KeyError> {
        let grant_id = grant.id.as_uuid();
        let id = [&grant_id.as_bytes()[..], &grant.fence.to_be_bytes()];
        let receipt = Receipt {
            key: Some(key_ref(key)),
            job: Some(grant.job_id),
            grant: Some(grant.id),
            reason: Some(format!("source {}", grant.source_aggregate)),
            ..self.of_record(Event::SealGranted, &grant.holder, grant.opened_at, &id)
        };
        self.record(&receipt).await
    }

    pub async fn unlocked(
        &self,
        capability: &CapabilityRecord,
        key: &KeyRecord,
        artifact: &VerifiedManifest,
        units: Vec<(u8, u64, u64)>,
    ) -> Result<(), KeyError> {
        let id = capability.id.as_uuid();
        let receipt = Receipt {
            key: Some(key_ref(key)),
            artifact: Some(artifact_ref(artifact)),
            capability: Some(capability.id),
            request_id: Some(capability.request_id),
            node: Some(capability.node.clone()),
            units,
            ..self.of_record(
                Event::Unlocked,
                &capability.node,
                capability.issued_at,
                &[id.as_bytes()],
            )
        };
        self.record(&receipt).await
    }

    pub async fn revoked(
        &self,
        revocation: &Revocation,
        artifact: &VerifiedManifest,
        actor: &SpiffeId,
    ) -> Result<(), KeyError> {
        let receipt = Receipt {
            artifact: Some(artifact_ref(artifact)),
            node: revocation.node.clone(),
            reason: Some(revocation.reason.clone()),
            ..self.of_record(
                Event::Revoked,
                actor,
                revocation.at,
                &[&revocation.epoch.to_be_bytes()],
            )
        };
        self.record(&receipt).await
    }

    /// Records a refusal and gives the error back; a log that cannot take it is the error instead.
    pub async fn refused(&self, actor: &SpiffeId, about: Refused<'_>, error: KeyError) -> KeyError {
        let now = self.clock.unix_millis();
        let new = NewReceipt {
            id: ReceiptId::from_parts(millis(now), &self.randomness.bytes()),
            event: Event::Refused,
            actor: actor.clone(),
            replica: self.log.replica().clone(),
            time: now,
        };
        let receipt = Receipt {
            request_id: about.request_id,
            key: about.key.map(key_ref),
            artifact: about.artifact.map(artifact_ref),
            units: about.units,
            job: about.job,
            reason: Some(error.to_string()),
            ..new.into()
        };
        match self.log.record(&receipt).await {
            Ok(_) => error,
            Err(log_error) => log_error.into(),
        }
    }

    async fn record(&self, receipt: &Receipt) -> Result<(), KeyError> {
        self.log.record(receipt).await?;
        Ok(())
    }

    /// The start of a receipt whose id follows from what it is about.
    fn of_record(&self, event: Event, actor: &SpiffeId, at: i64, about: &[&[u8]]) -> Receipt {
        let mut hash = Sha256::new();
        hash.update(event.as_str());
        hash.update(self.log.replica().to_string());
        about.iter().for_each(|part| hash.update(part));
        let digest = hash.finalize();
        let tail = digest[..10].try_into().expect("10 of 32 bytes");
        NewReceipt {
            id: ReceiptId::from_parts(millis(at), &tail),
            event,
            actor: actor.clone(),
            replica: self.log.replica().clone(),
            time: at,
        }
        .into()
    }
}

fn key_ref(key: &KeyRecord) -> KeyRef {
    KeyRef {
        id: key.id,
        fingerprint: key.fingerprint,
        version: key.version,
    }
}

fn artifact_ref(artifact: &VerifiedManifest) -> ArtifactRef {
    ArtifactRef {
        model: artifact.manifest().model.clone(),
        digest: artifact.digest(),
    }
}

pub fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}
