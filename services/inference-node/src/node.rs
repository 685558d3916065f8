//! The node's domain: models that are loaded, and sessions with them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::client::{Client, Retry};
use api::v1::get_artifact_request::Which;
use api::{fields, v1};
use custody::CustodyLog;
use identifiers::{RequestId, SessionId, Sha256Digest, SpiffeId};
use key_client::{KeyClientError, Unlocked, issue_unlock};
use receipt::Event;
use registry_domain::{ArtifactKind, VerifiedManifest};
use serde_json::{Map, Value, json};
use service_runtime::{CancellationToken, Clock, Randomness};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use crate::blob::{Blob, Token};
use crate::compute::{Compute, Job};
use crate::config::ModelSettings;
use crate::counts::Counts;
use crate::error::NodeError;
use crate::generation::{Answers, DEFAULT_TOKENS, Generation};
use crate::loaded::{Closed, Lease, Loaded};
use crate::open::{Sizes, container_of, open};
use crate::receipts::{Receipts, millis};
use crate::renewal::renew;

/// The node.
pub(crate) struct Node {
    pub log: Arc<CustodyLog>,
    pub receipts: Receipts,
    pub key_service: Client,
    pub storage: Client,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
    pub settings: ModelSettings,
    pub compute: Compute,
    pub counts: Counts,
    /// Nothing is admitted any more.
    pub draining: CancellationToken,
    /// Nothing is waited for any more.
    pub stopping: CancellationToken,
    pub models: Models,
    /// One load or unload at a time.
    pub changing: tokio::sync::Mutex<()>,
}

/// Loaded models by artifact; the order is that of loading.
#[derive(Default)]
pub(crate) struct Models(Mutex<Vec<Arc<Loaded>>>);

/// How a request names a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelName {
    Digest(Sha256Digest),
    Name(String),
}

impl ModelName {
    pub(crate) fn parse(text: &str) -> Result<Self, NodeError> {
        Ok(if text.starts_with("sha256:") {
            Self::Digest(fields::digest("model", text)?)
        } else {
            Self::Name(fields::name("model", text)?)
        })
    }

    fn names(&self, model: &Loaded) -> bool {
        match self {
            Self::Digest(digest) => *digest == model.manifest.digest(),
            Self::Name(name) => name == model.name(),
        }
    }

    fn which(&self) -> Which {
        match self {
            Self::Digest(digest) => Which::Digest(digest.to_string()),
            Self::Name(name) => Which::Model(v1::ModelRef {
                model: name.clone(),
                kind: v1::ArtifactKind::Container.into(),
            }),
        }
    }
}

impl std::fmt::Display for ModelName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Digest(digest) => digest.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Models {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Loaded>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every model.
    pub(crate) fn all(&self) -> Vec<Arc<Loaded>> {
        self.lock().clone()
    }

    /// The model of this name that was loaded last, one that is ready first.
    fn find(&self, name: &ModelName) -> Option<Arc<Loaded>> {
        let models = self.lock();
        let named = || models.iter().rev().filter(|model| name.names(model));
        named()
            .find(|model| model.is_ready())
            .or_else(|| named().next())
            .cloned()
    }

    /// Puts a model in, in the place of an earlier load of the same artifact.
    fn put(&self, model: Arc<Loaded>) {
        let mut models = self.lock();
        models.retain(|other| other.manifest.digest() != model.manifest.digest());
        models.push(model);
    }

    fn remove(&self, model: &Arc<Loaded>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, model));
    }
}

impl Node {
    /// Loads a model. One that is loaded gets the budget that is asked for, if one is.
    pub(crate) async fn load(
        self: &Arc<Self>,
        actor: SpiffeId,
        name: ModelName,
        budget: Option<u64>,
    ) -> Result<Arc<Loaded>, NodeError> {
        let node = self.clone();
        // Once begun it ends, whether the caller waits or not: its receipt must be true.
        tokio::spawn(async move { node.load_one(&actor, &name, budget).await }).await?
    }

    async fn load_one(
        self: &Arc<Self>,
        actor: &SpiffeId,
        name: &ModelName,
        budget: Option<u64>,
    ) -> Result<Arc<Loaded>, NodeError> {
        let _changing = self.changing.lock().await;
        if self.draining.is_cancelled() {
            return Err(NodeError::Stopping);
        }
        if let ModelName::Digest(_) = name
            && let Some(loaded) = self.models.find(name).filter(|model| model.is_ready())
        {
            return resized(loaded, budget);
        }
        let artifact = self.log.artifact(name.which()).await?;
        let digest = ModelName::Digest(artifact.digest());
        if let Some(loaded) = self.models.find(&digest).filter(|model| model.is_ready()) {
            return resized(loaded, budget);
        }
        if artifact.manifest().kind != ArtifactKind::Container {
            return Err(NodeError::NotContainer);
        }
        let ready = self
            .models
            .all()
            .iter()
            .filter(|model| model.is_ready())
            .count();
        if ready >= self.settings.max_loaded {
            return Err(NodeError::TooManyModels(ready));
        }
        let model = Arc::new(self.open(artifact, budget).await?);
        let receipt =
            self.receipts
                .about(Event::Loaded, Some(actor), &model.manifest, model.lease());
        if let Err(error) = self.receipts.record(&receipt).await {
            model.close(Closed::Unloaded).await;
            return Err(error.into());
        }
        self.models.put(model.clone());
        self.counts.models.set(self.ready_count());
        tokio::spawn(renew(self.clone(), model.clone()));
        tracing::info!(model = model.name(), artifact = %model.manifest.digest(), "loaded");
        Ok(model)
    }

    /// Unlocks and opens an artifact.
    async fn open(
        &self,
        artifact: VerifiedManifest,
        budget: Option<u64>,
    ) -> Result<Loaded, NodeError> {
        let now = self.clock.unix_seconds();
        let unlocked = self.unlock(&artifact).await?;
        let lease = Lease {
            capability: unlocked.id,
            issued_at: now,
            expires_at: unlocked.expires_at,
        };
        let token = Token::new(&unlocked.capability);
        let stop = CancellationToken::new();
        let (file, _) = container_of(artifact.manifest())?;
        let blob = Arc::new(Blob {
            client: self.storage.clone(),
            digest: file.sha256,
            size: file.size,
            chunk_root: file.chunk_root,
            token: token.clone(),
            runtime: Handle::current(),
            stop: stop.clone(),
            streams: self.settings.streams.max(1),
            retry: Retry::new(u64::from_le_bytes(self.randomness.bytes())),
        });
        let sizes = Sizes {
            budget,
            default_budget: self.settings.default_budget_bytes,
            kv: self.settings.kv_bytes,
        };
        let opening = tokio::task::spawn_blocking(move || {
            let opened = open(blob, artifact.manifest(), unlocked.keys, sizes)?;
            Ok::<_, NodeError>((artifact, opened))
        });
        let (artifact, opened) = opening.await??;
        Ok(Loaded::new(artifact, opened, token, stop, lease))
    }

    /// Asks the key service for a new capability and the unit keys.
    pub(crate) async fn unlock(
        &self,
        artifact: &VerifiedManifest,
    ) -> Result<Unlocked, KeyClientError> {
        let id = RequestId::from_parts(millis(self.clock.unix_millis()), &self.randomness.bytes());
        let record = artifact.manifest().container.as_ref();
        let salt = record
            .and_then(|record| record.salt_bytes())
            .unwrap_or_default();
        let mut rng = self.randomness.rng();
        issue_unlock(
            &self.key_service,
            id,
            artifact.digest(),
            salt,
            &[],
            &mut rng,
        )
        .await
    }

    /// Drops a model. One that is not loaded is unloaded already.
    pub(crate) async fn unload(
        self: &Arc<Self>,
        actor: SpiffeId,
        name: ModelName,
    ) -> Result<(), NodeError> {
        let node = self.clone();
        let unloading = tokio::spawn(async move {
            let _changing = node.changing.lock().await;
            while let Some(model) = node.models.find(&name) {
                node.unload_one(Some(&actor), &model, Closed::Unloaded)
                    .await?;
            }
            Ok(())
        });
        unloading.await?
    }

    async fn unload_one(
        &self,
        actor: Option<&SpiffeId>,
        model: &Arc<Loaded>,
        why: Closed,
    ) -> Result<(), NodeError> {
        // What was revoked has its receipt already.
        if model.is_ready() {
            let (event, lease) = (Event::Unloaded, model.lease());
            let receipt = self.receipts.about(event, actor, &model.manifest, lease);
            self.receipts.record(&model.unloading(receipt)).await?;
        }
        model.close(why).await;
        self.models.remove(model);
        self.counts.models.set(self.ready_count());
        tracing::info!(model = model.name(), "unloaded");
        Ok(())
    }

    /// Starts a session.
    pub(crate) async fn generate(&self, wanted: Generation) -> Result<Answers, NodeError> {
        if self.draining.is_cancelled() {
            return Err(NodeError::Stopping);
        }
        let name = ModelName::parse(&wanted.model)?;
        let model = self
            .models
            .find(&name)
            .ok_or_else(|| NodeError::NotLoaded(name.to_string()))?;
        let cancel = model.admit()?;
        let encoding = {
            let model = model.clone();
            tokio::task::spawn_blocking(move || {
                let prompt = wanted.prompt(&*model.open()?)?;
                Ok::<_, NodeError>((wanted, prompt))
            })
        };
        let (wanted, prompt) = encoding.await??;
        let now = millis(self.clock.unix_millis());
        let (answers, stream) = mpsc::channel(ANSWERS_AHEAD);
        let stream = Answers::new(ReceiverStream::new(stream), cancel.clone());
        self.compute.submit(Job {
            model,
            session_id: SessionId::from_parts(now, &self.randomness.bytes()).to_string(),
            prompt,
            max_tokens: wanted.max_tokens.unwrap_or(DEFAULT_TOKENS),
            sampling: wanted.sampling,
            seed: wanted.seed,
            ignore_stop: wanted.ignore_stop,
            cancel,
            answers,
        })?;
        Ok(stream)
    }

    pub(crate) fn ready_count(&self) -> i64 {
        let models = self.models.all();
        let ready = models.iter().filter(|model| model.is_ready()).count();
        i64::try_from(ready).unwrap_or(i64::MAX)
    }

    /// Admits nothing more, lets sessions end within `grace`, cancels the others, and says in the
    /// log, if it can be reached, that the models are gone.
    pub(crate) async fn drain(&self, grace: Duration) {
        self.draining.cancel();
        let idle = async {
            while !self.compute.is_idle() {
                tokio::time::sleep(IDLE_POLL).await;
            }
        };
        if timeout(grace, idle).await.is_err() {
            tracing::warn!("running sessions are cancelled: the drain time is over");
        }
        // A load under way ends as it would; it is not waited for longer than the rest.
        let changing = timeout(LAST_RECEIPTS, self.changing.lock()).await;
        let unload = async {
            for model in self.models.all() {
                let unloaded = self.unload_one(None, &model, Closed::Stopping).await;
                if let Err(error) = unloaded {
                    tracing::warn!(model = model.name(), %error, "unloaded without a receipt");
                }
            }
        };
        if timeout(LAST_RECEIPTS, unload).await.is_err() {
            tracing::warn!("the log could not be reached in time: unloaded without receipts");
        }
        drop(changing);
        for model in self.models.all() {
            model.close(Closed::Stopping).await;
        }
        self.stopping.cancel();
    }

    /// What `/health` adds.
    pub(crate) fn details(&self) -> Map<String, Value> {
        let models = self.models.all();
        let identity = |model: &Arc<Loaded>| json!(model.manifest.manifest().source.summary());
        let mut identities: Vec<Value> = models
            .iter()
            .filter(|model| model.is_ready())
            .map(identity)
            .collect();
        let identities = match identities.len() {
            0 => Value::Null,
            1 => identities.remove(0),
            _ => Value::Array(identities),
        };
        let described: Vec<Value> = models
            .iter()
            .map(|model| {
                let described = model.describe();
                let pager = described.pager.unwrap_or_default();
                json!({
                    "model": described.model,
                    "artifact_digest": described.artifact_digest,
                    "state": if model.is_ready() { "ready" } else { "revoked" },
                    "message": described.message,
                    "budget_bytes": described.budget_bytes,
                    "resident_bytes": pager.resident_bytes,
                    "base_weight_identity": identity(model),
                })
            })
            .collect();
        let mut details = Map::new();
        details.insert("base_weight_identity".to_owned(), identities);
        details.insert("models".to_owned(), described.into());
        details.insert("sessions".to_owned(), self.counts.sessions.get().into());
        details.insert("tokens".to_owned(), self.counts.tokens.get().into());
        details
    }

    /// What `/v1/debug/model-state` answers: every model with its whole shard manifest.
    pub(crate) fn debug_state(&self) -> Value {
        let models = self.models.all();
        let states: Vec<Value> = models
            .iter()
            .map(|model| {
                let manifest = model.manifest.manifest();
                let by_region: HashMap<u8, u64> = manifest
                    .container
                    .iter()
                    .flat_map(|container| &container.units)
                    .map(|units| (units.region, units.count))
                    .collect();
                json!({
                    "model": manifest.model,
                    "artifact_digest": model.manifest.digest(),
                    "state": if model.is_ready() { "ready" } else { "revoked" },
                    "architecture": manifest.seal.architecture,
                    "units_by_region": by_region,
                    "base_weight_identity": manifest.source,
                })
            })
            .collect();
        json!({ "models": states })
    }
}

fn resized(loaded: Arc<Loaded>, budget: Option<u64>) -> Result<Arc<Loaded>, NodeError> {
    if let Some(budget) = budget {
        loaded.resize(budget)?;
    }
    Ok(loaded)
}

/// Tokens that a session may be ahead of its client.
const ANSWERS_AHEAD: usize = 16;
const IDLE_POLL: Duration = Duration::from_millis(50);
const LAST_RECEIPTS: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_named_by_name_or_digest() {
        let digest = Sha256Digest::new([7; 32]);
        assert_eq!(
            ModelName::parse(&digest.to_string()).unwrap(),
            ModelName::Digest(digest)
        );
        assert_eq!(
            ModelName::parse("tiny-qwen3").unwrap(),
            ModelName::Name("tiny-qwen3".to_owned())
        );
        for bad in ["", "sha256:12", "a/b"] {
            assert!(ModelName::parse(bad).is_err(), "{bad}");
        }
    }
}
