//! The receipts of the inference node.

use std::sync::Arc;

use custody::{CustodyError, CustodyLog};
use identifiers::{ReceiptId, SpiffeId};
use receipt::{ArtifactRef, Event, KeyRef, NewReceipt, Receipt, ReceiptError, WeightIdentity};
use registry_domain::VerifiedManifest;
use service_runtime::{Clock, Randomness};

use crate::loaded::Lease;

/// Writes receipts.
#[derive(Clone)]
pub(crate) struct Receipts {
    pub log: Arc<CustodyLog>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}

impl Receipts {
    /// A receipt about a model on this node. `actor` is who asked; this node itself by default.
    pub(crate) fn about(
        &self,
        event: Event,
        actor: Option<&SpiffeId>,
        artifact: &VerifiedManifest,
        lease: Lease,
    ) -> Receipt {
        let manifest = artifact.manifest();
        let now = self.clock.unix_millis();
        let replica = self.log.replica();
        let new = NewReceipt {
            id: ReceiptId::from_parts(millis(now), &self.randomness.bytes()),
            event,
            actor: actor.unwrap_or(replica).clone(),
            replica: replica.clone(),
            time: now,
        };
        let mut receipt = Receipt {
            key: Some(KeyRef {
                id: manifest.key_id,
                fingerprint: manifest.fingerprint,
                version: manifest.key_version,
            }),
            artifact: Some(ArtifactRef {
                model: manifest.model.clone(),
                digest: artifact.digest(),
            }),
            source: Some(WeightIdentity {
                summary: manifest.source.summary(),
                manifest: Some(manifest.source.clone()),
            }),
            capability: Some(lease.capability),
            node: Some(replica.clone()),
            ..new.into()
        };
        let fits = !matches!(receipt.sign(self.log.key()), Err(ReceiptError::TooLarge(_)));
        if !fits && let Some(source) = &mut receipt.source {
            source.manifest = None;
        }
        receipt
    }

    pub(crate) async fn record(&self, receipt: &Receipt) -> Result<(), CustodyError> {
        self.log.record(receipt).await.map(drop)
    }
}

/// A clock's milliseconds as those of an id.
pub(crate) fn millis(time: i64) -> u64 {
    u64::try_from(time).unwrap_or(0)
}
