use std::fmt;

use async_trait::async_trait;
use identifiers::{
    CapabilityId, Fingerprint, GrantId, JobId, KeyId, RequestId, Sha256Digest, SpiffeId,
};

use crate::{Inserted, Page, RepositoryError};

/// What the key service stores: wrapped keys, grants, issued capabilities, policies, revocations.
#[async_trait]
pub trait KeyRepository: Send + Sync {
    /// Stores a key as [`KeyState::Pending`]. The same caller, request id and body give the stored
    /// key.
    async fn insert_key(&self, key: &NewKey) -> Result<Inserted<KeyRecord>, RepositoryError>;
    /// One key.
    async fn key(&self, id: KeyId) -> Result<KeyRecord, RepositoryError>;
    /// One key by its unique name.
    async fn key_by_name(&self, name: &str) -> Result<KeyRecord, RepositoryError>;
    /// Keys that are not pending, newest first.
    async fn list_keys(&self, page: Page<KeyId>) -> Result<Vec<KeyRecord>, RepositoryError>;
    /// Moves a key to a state that [`KeyState::may_become`] allows; the state it is in already is
    /// no change. Destroying wipes the wrapped bytes and closes its grants, disabling closes its grants.
    async fn change_key_state(
        &self,
        id: KeyId,
        to: KeyState,
        at: i64,
    ) -> Result<Inserted<KeyRecord>, RepositoryError>;

    /// Opens the grant of a job, binding the key to the source in the same transaction. The same
    /// job and fence give the same grant with the later expiry; a higher fence takes the
    /// grant over, a lower one is [`RepositoryError::FencedOff`].
    async fn open_grant(&self, grant: &NewGrant) -> Result<Grant, RepositoryError>;
    /// One grant, with the state its key is in.
    async fn grant(&self, id: GrantId) -> Result<Grant, RepositoryError>;
    /// Closes a grant; a closed one stays closed.
    async fn close_grant(&self, id: GrantId, at: i64) -> Result<Grant, RepositoryError>;

    /// Records that a capability is issued, counting the quota in the same transaction. The
    /// same caller, request id and body give the stored record.
    async fn record_capability(
        &self,
        capability: &NewCapability,
        quota: Option<Quota>,
    ) -> Result<Inserted<CapabilityRecord>, RepositoryError>;
    /// One issued capability.
    async fn capability(&self, id: CapabilityId) -> Result<CapabilityRecord, RepositoryError>;
    /// How many capabilities the node was issued for the artifact since `since`.
    async fn capabilities_since(
        &self,
        node: &SpiffeId,
        artifact: &Sha256Digest,
        since: i64,
    ) -> Result<u64, RepositoryError>;

    /// Withdraws an artifact from a node or from all; the epoch grows by one. Idempotent by caller and request id.
    async fn revoke(
        &self,
        revocation: &NewRevocation,
    ) -> Result<Inserted<Revocation>, RepositoryError>;
    /// The newest revocation that covers the node and artifact.
    async fn revocation(
        &self,
        node: &SpiffeId,
        artifact: &Sha256Digest,
    ) -> Result<Option<Revocation>, RepositoryError>;
    /// The epoch of the newest revocation; 0 before the first.
    async fn revocation_epoch(&self) -> Result<u64, RepositoryError>;

    /// Stores the next version of the release policy; it must follow the newest.
    async fn put_policy(&self, policy: &PolicyRecord) -> Result<(), RepositoryError>;
    /// The newest release policy.
    async fn policy(&self) -> Result<Option<PolicyRecord>, RepositoryError>;
}

/// A model key under the root key: ciphertext, printed as its length.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedKey(pub Vec<u8>);

impl fmt::Debug for WrappedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WrappedKey({} bytes)", self.0.len())
    }
}

/// A key to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewKey {
    /// Its id.
    pub id: KeyId,
    /// Its unique name.
    pub name: String,
    /// Its public fingerprint.
    pub fingerprint: Fingerprint,
    /// Its version.
    pub version: u32,
    /// The wrapped key.
    pub wrapped: WrappedKey,
    /// Made here or imported.
    pub origin: KeyOrigin,
    /// Who asked for it.
    pub caller: SpiffeId,
    /// The caller's idempotency id.
    pub request_id: RequestId,
    /// SHA-256 over what the caller asked for: the same request id with another one is refused.
    pub body: Sha256Digest,
    /// Unix milliseconds.
    pub created_at: i64,
}

/// A stored key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its id.
    pub id: KeyId,
    /// Its unique name.
    pub name: String,
    /// Its public fingerprint.
    pub fingerprint: Fingerprint,
    /// Its version.
    pub version: u32,
    /// The wrapped key; empty once destroyed.
    pub wrapped: WrappedKey,
    /// Made here or imported.
    pub origin: KeyOrigin,
    /// Its state.
    pub state: KeyState,
    /// The one source it serves, once it served one.
    pub source_aggregate: Option<Sha256Digest>,
    /// Who asked for it.
    pub caller: SpiffeId,
    /// Unix milliseconds.
    pub created_at: i64,
    /// When it was disabled or destroyed, Unix milliseconds.
    pub disabled_at: Option<i64>,
}

/// How a key came here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrigin {
    /// Made by the key service.
    Created,
    /// Imported from a key file.
    Imported,
}

/// What a key may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyState {
    /// Stored, its receipt is not in the log yet: not usable.
    Pending,
    /// Usable.
    Active,
    /// Refuses every grant and unlock.
    Disabled,
    /// Its bytes are gone.
    Destroyed,
}

impl KeyState {
    /// Whether the state machine allows the change.
    #[must_use]
    pub const fn may_become(self, to: Self) -> bool {
        matches!(
            (self, to),
            (Self::Pending, Self::Active | Self::Destroyed)
                | (Self::Active, Self::Disabled)
                | (Self::Disabled, Self::Destroyed)
        )
    }

    /// The state's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Disabled => "disabled",
            Self::Destroyed => "destroyed",
        }
    }
}

/// What a grant lets its holder derive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantScope {
    /// `l1`, `client` or `d1-v1`.
    pub scheme: String,
    /// `perm` or `orth`; `none` for a job that changes a lock only.
    pub transform: String,
    /// The lock put on: `none`, `v1` or `v2`.
    pub lock: String,
    /// The lock taken off: `none`, `v1` or `v2`.
    pub unlock: String,
    /// Salt of the trusted blob, if one is written.
    pub blob_salt: Option<[u8; 16]>,
    /// Salt of the sealed container, if one is written.
    pub container_salt: Option<[u8; 16]>,
}

/// A grant to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewGrant {
    /// Its id, if the job has none yet.
    pub id: GrantId,
    /// The seal job.
    pub job_id: JobId,
    /// The job's fencing token.
    pub fence: u64,
    /// The key.
    pub key_id: KeyId,
    /// Base-weight aggregate of the source.
    pub source_aggregate: Sha256Digest,
    /// What it covers.
    pub scope: GrantScope,
    /// Who holds it.
    pub holder: SpiffeId,
    /// Unix milliseconds.
    pub opened_at: i64,
    /// Unix milliseconds.
    pub expires_at: i64,
}

/// The right of one seal job to subkeys of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its id.
    pub id: GrantId,
    /// The seal job.
    pub job_id: JobId,
    /// The fencing token it was last opened with.
    pub fence: u64,
    /// The key.
    pub key_id: KeyId,
    /// The state the key is in.
    pub key_state: KeyState,
    /// Base-weight aggregate of the source.
    pub source_aggregate: Sha256Digest,
    /// What it covers.
    pub scope: GrantScope,
    /// Who holds it.
    pub holder: SpiffeId,
    /// Open or closed.
    pub state: GrantState,
    /// Unix milliseconds.
    pub opened_at: i64,
    /// Unix milliseconds.
    pub expires_at: i64,
}

/// Whether a grant was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GrantState {
    /// Usable until it expires.
    Open,
    /// Ended.
    Closed,
}

/// Why a grant gives no subkeys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantRefusal {
    /// It belongs to another caller.
    #[error("the grant belongs to another sealer")]
    OtherHolder,
    /// A later lease of the job took it over.
    #[error("a later lease of the job has taken the grant over")]
    FencedOff,
    /// It was ended.
    #[error("the grant is closed")]
    Closed,
    /// Its time is over.
    #[error("the grant has expired")]
    Expired,
    /// Its key is not active.
    #[error("the grant's key is {}", .0.as_str())]
    KeyNotActive(KeyState),
}

impl Grant {
    /// Whether `caller` may derive under it at `now` (Unix milliseconds) with this fencing token.
    pub fn check(&self, caller: &SpiffeId, fence: u64, now: i64) -> Result<(), GrantRefusal> {
        if self.holder != *caller {
            return Err(GrantRefusal::OtherHolder);
        }
        if self.fence != fence {
            return Err(GrantRefusal::FencedOff);
        }
        if self.state == GrantState::Closed {
            return Err(GrantRefusal::Closed);
        }
        if self.key_state != KeyState::Active {
            return Err(GrantRefusal::KeyNotActive(self.key_state));
        }
        if now >= self.expires_at {
            return Err(GrantRefusal::Expired);
        }
        Ok(())
    }
}

/// A capability about to be issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewCapability {
    /// Its id (`jti`).
    pub id: CapabilityId,
    /// The caller's idempotency id.
    pub request_id: RequestId,
    /// SHA-256 over what the caller asked for.
    pub body: Sha256Digest,
    /// The node it is for.
    pub node: SpiffeId,
    /// The artifact.
    pub artifact: Sha256Digest,
    /// The key.
    pub key_id: KeyId,
    /// The revocation epoch that the decision saw.
    pub epoch: u64,
    /// Unix milliseconds.
    pub issued_at: i64,
    /// Unix milliseconds.
    pub expires_at: i64,
}

/// An issued capability.
pub type CapabilityRecord = NewCapability;

/// At most `limit` capabilities for one node and artifact since `since` (Unix milliseconds).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// The most allowed, the new one included.
    pub limit: u64,
    /// Start of the window.
    pub since: i64,
}

/// A revocation to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRevocation {
    /// Who revokes.
    pub caller: SpiffeId,
    /// The caller's idempotency id.
    pub request_id: RequestId,
    /// The artifact.
    pub artifact: Sha256Digest,
    /// The node; `None` means every node.
    pub node: Option<SpiffeId>,
    /// Why.
    pub reason: String,
    /// Unix milliseconds.
    pub at: i64,
}

/// A recorded revocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    /// Its place in the order of revocations, from 1.
    pub epoch: u64,
    /// The artifact.
    pub artifact: Sha256Digest,
    /// The node; `None` means every node.
    pub node: Option<SpiffeId>,
    /// Why.
    pub reason: String,
    /// Unix milliseconds.
    pub at: i64,
}

/// One version of the release policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyRecord {
    /// From 1, without gaps.
    pub version: u64,
    /// The policy document (TOML).
    pub document: String,
    /// Who stored it.
    pub author: SpiffeId,
    /// Unix milliseconds.
    pub at: i64,
}
