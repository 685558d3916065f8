//! Keeps a model's capability alive, and closes the model when that is refused.

use std::sync::Arc;
use std::time::Duration;

use key_client::KeyClientError;
use receipt::Event;
use tokio::time::{sleep, timeout};

use crate::error::unlock_is_transient;
use crate::loaded::{Closed, Lease, Loaded};
use crate::node::Node;

/// Renews until the model is closed or the right to it ends.
pub(crate) async fn renew(node: Arc<Node>, model: Arc<Loaded>) {
    let stop = model.stop.clone();
    tokio::select! {
        () = stop.cancelled() => {}
        reason = until_refused(&node, &model) => {
            // Its own task: closing the model ends this one's select.
            tokio::spawn(revoke(node, model, reason));
        }
    }
}

/// Runs until the capability is refused or has ended; the reason.
async fn until_refused(node: &Node, model: &Loaded) -> String {
    let mut failures = 0_u32;
    loop {
        let lease = model.lease();
        let now = node.clock.unix_seconds();
        if now >= lease.expires_at {
            return "it expired, and the key service could not be reached to renew it".to_owned();
        }
        if now < lease.renew_at() {
            // The clock is looked at often: it may be set while this waits.
            sleep(TICK).await;
            continue;
        }
        let left = u64::try_from(lease.expires_at - now).unwrap_or(0);
        let limit = CALL.min(Duration::from_secs(left.max(1)));
        match timeout(limit, node.unlock(&model.manifest)).await {
            Ok(Ok(unlocked)) => {
                failures = 0;
                let lease = Lease {
                    capability: unlocked.id,
                    issued_at: now,
                    expires_at: unlocked.expires_at,
                };
                // The unit keys are those that are held already; these are wiped.
                model.renew(&unlocked.capability, lease);
                tracing::info!(model = model.name(), capability = %lease.capability, "renewed");
                // Never renew in a row, however short the life.
                sleep(TICK).await;
            }
            Ok(Err(error)) if !unlock_is_transient(&error) => return refusal(&error),
            Ok(Err(error)) => {
                failures += 1;
                tracing::warn!(
                    model = model.name(),
                    failures,
                    error = refusal(&error),
                    "not renewed"
                );
                sleep(TICK * failures.min(5)).await;
            }
            Err(_) => {
                failures += 1;
                tracing::warn!(
                    model = model.name(),
                    failures,
                    "not renewed: no answer in time"
                );
            }
        }
    }
}

/// Closes the model, then says so in the log, for as long as it takes.
async fn revoke(node: Arc<Node>, model: Arc<Loaded>, reason: String) {
    let closed = model.close(Closed::Revoked(reason.clone())).await;
    if !closed {
        return;
    }
    node.counts.revocations.inc();
    node.counts.models.set(node.ready_count());
    tracing::error!(
        model = model.name(),
        reason,
        "revoked: keys and pages are dropped"
    );
    let mut receipt = node
        .receipts
        .about(Event::Revoked, None, &model.manifest, model.lease());
    receipt.reason = Some(reason);
    let mut failures = 0_u32;
    while let Err(error) = node.receipts.record(&receipt).await {
        failures += 1;
        tracing::warn!(model = model.name(), %error, failures, "the revocation is not recorded yet");
        tokio::select! {
            () = node.stopping.cancelled() => return,
            () = sleep(TICK * failures.min(30)) => {}
        }
    }
}

fn refusal(error: &KeyClientError) -> String {
    match error.status() {
        Some(status) => api::client::explain(status),
        None => error.to_string(),
    }
}

const TICK: Duration = Duration::from_secs(1);
const CALL: Duration = Duration::from_secs(15);
