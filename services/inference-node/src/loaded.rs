//! A loaded model: what stands about it, and what a revocation takes away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use api::v1;
use identifiers::CapabilityId;
use pager::Stats;
use receipt::Receipt;
use registry_domain::VerifiedManifest;
use service_runtime::CancellationToken;

use crate::blob::Token;
use crate::error::NodeError;
use crate::open::{Open, minimum_budget};

/// A model that was loaded. Its sessions, keys and pages end when it is closed; what it was stays.
pub(crate) struct Loaded {
    pub manifest: VerifiedManifest,
    pub facts: Facts,
    pub token: Token,
    /// Ends reads and the renewal.
    pub stop: CancellationToken,
    state: Mutex<State>,
}

/// Sizes, which outlive the pages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub blocks: u32,
    pub page_bytes: u64,
    pub dense_bytes: u64,
    pub context: usize,
}

/// Why a model is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The capability was not renewed.
    #[error("the model's capability was revoked: {0}")]
    Revoked(String),
    /// By request.
    #[error("the model was unloaded")]
    Unloaded,
    /// With the node.
    #[error("the node is stopping")]
    Stopping,
}

/// The capability in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    pub capability: CapabilityId,
    /// Unix seconds.
    pub issued_at: i64,
    /// Unix seconds.
    pub expires_at: i64,
}

impl Lease {
    /// When it is renewed: after 60% of its life.
    pub(crate) const fn renew_at(&self) -> i64 {
        let life = self.expires_at.saturating_sub(self.issued_at);
        self.issued_at.saturating_add(life.saturating_mul(3) / 5)
    }
}

struct State {
    open: Option<Arc<Open>>,
    lease: Lease,
    closed: Option<Closed>,
    sessions: Vec<Weak<AtomicBool>>,
    /// What the pager had done when it was closed.
    last: Stats,
    unloading: Option<Receipt>,
}

impl Loaded {
    pub(crate) fn new(
        manifest: VerifiedManifest,
        open: Open,
        token: Token,
        stop: CancellationToken,
        lease: Lease,
    ) -> Self {
        use engine::Weights as _;
        let facts = Facts {
            blocks: u32::try_from(open.model.layers()).unwrap_or(u32::MAX),
            page_bytes: open.page_bytes,
            dense_bytes: open.weights.dense().len() as u64,
            context: open.context(),
        };
        Self {
            manifest,
            facts,
            token,
            stop,
            state: Mutex::new(State {
                open: Some(Arc::new(open)),
                lease,
                closed: None,
                sessions: Vec::new(),
                last: Stats::default(),
                unloading: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is complete.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's name.
    pub(crate) fn name(&self) -> &str {
        &self.manifest.manifest().model
    }

    /// What is needed to run it. Drop it outside the runtime: pages and threads may go with it.
    pub(crate) fn open(&self) -> Result<Arc<Open>, NodeError> {
        let state = self.state();
        match (&state.open, &state.closed) {
            (Some(open), None) => Ok(open.clone()),
            (_, closed) => Err(closed.clone().unwrap_or(Closed::Unloaded).into()),
        }
    }

    /// Why it is closed, if it is.
    pub(crate) fn closed(&self) -> Option<Closed> {
        self.state().closed.clone()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.state().closed.is_none()
    }

    pub(crate) fn lease(&self) -> Lease {
        self.state().lease
    }

    /// Widens or shrinks the budget.
    pub(crate) fn resize(&self, budget: u64) -> Result<(), NodeError> {
        let open = self.open()?;
        let minimum = minimum_budget(open.pager.geometry());
        if budget < minimum {
            let asked = budget;
            return Err(NodeError::Budget { asked, minimum });
        }
        Ok(open.pager.set_budget(budget)?)
    }

    /// Takes a renewed capability into use.
    pub(crate) fn renew(&self, token: &str, lease: Lease) {
        self.token.replace(token);
        self.state().lease = lease;
    }

    /// A flag that is set when the model is closed.
    pub(crate) fn admit(&self) -> Result<Arc<AtomicBool>, NodeError> {
        let mut state = self.state();
        if let Some(closed) = &state.closed {
            return Err(closed.clone().into());
        }
        let flag = Arc::new(AtomicBool::new(false));
        state.sessions.retain(|session| session.strong_count() > 0);
        state.sessions.push(Arc::downgrade(&flag));
        Ok(flag)
    }

    /// Stops admitting, cancels sessions, drops keys, wipes pages. False when it was closed before.
    pub(crate) async fn close(&self, why: Closed) -> bool {
        let open = {
            let mut state = self.state();
            if state.closed.is_some() {
                return false;
            }
            state.closed = Some(why);
            for session in state.sessions.drain(..) {
                if let Some(session) = session.upgrade() {
                    session.store(true, Ordering::Relaxed);
                }
            }
            let open = state.open.take();
            if let Some(open) = &open {
                state.last = open.pager.stats();
                state.last.resident = 0;
            }
            open
        };
        self.stop.cancel();
        let Some(open) = open else { return true };
        open.keys.clear();
        open.pager.revoke();
        let name = self.name().to_owned();
        let dropped = tokio::task::spawn_blocking(move || {
            if !open.pager.wait_released(RELEASE) {
                tracing::warn!(model = name, "a page is still held by a session");
            }
        });
        if dropped.await.is_err() {
            tracing::error!(model = self.name(), "dropping the pages failed");
        }
        true
    }

    /// The receipt of the unloading: the first one when it is tried again.
    pub(crate) fn unloading(&self, receipt: Receipt) -> Receipt {
        self.state().unloading.get_or_insert(receipt).clone()
    }

    fn stats(&self) -> Stats {
        let state = self.state();
        match &state.open {
            Some(open) => open.pager.stats(),
            None => state.last,
        }
    }

    /// As a message.
    pub(crate) fn describe(&self) -> v1::LoadedModel {
        let stats = self.stats();
        let total = stats.total();
        let closed = self.closed();
        let state = match closed {
            None => v1::ModelState::Ready,
            Some(_) => v1::ModelState::Revoked,
        };
        let manifest = self.manifest.manifest();
        v1::LoadedModel {
            model: manifest.model.clone(),
            artifact_digest: self.manifest.digest().to_string(),
            architecture: manifest.seal.architecture.clone(),
            blocks: self.facts.blocks,
            page_bytes: self.facts.page_bytes,
            budget_bytes: stats.budget,
            dense_bytes: self.facts.dense_bytes,
            state: state.into(),
            message: closed.map(|why| why.to_string()).unwrap_or_default(),
            pager: Some(v1::PagerStatistics {
                hits: total.hits,
                misses: total.misses,
                evictions: total.evictions,
                bytes_read: total.bytes_read,
                resident_bytes: stats.resident,
            }),
            capability_expires_at: self.lease().expires_at,
            source_aggregate: manifest.source.aggregate().to_string(),
            context_length: u32::try_from(self.facts.context).unwrap_or(u32::MAX),
        }
    }
}

/// How long a session may take to let go of its page.
const RELEASE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_renewed_after_three_fifths() {
        let lease = |issued_at, expires_at| Lease {
            capability: CapabilityId::from_parts(1, &[1; 10]),
            issued_at,
            expires_at,
        };
        assert_eq!(lease(1000, 1300).renew_at(), 1180);
        assert_eq!(lease(1000, 1001).renew_at(), 1000);
        assert!(lease(1000, 900).renew_at() < 1000);
    }
}
