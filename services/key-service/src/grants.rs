//! Seal grants: the right of one job to the subkeys of one key for one source.

use std::sync::Arc;

use identifiers::{GrantId, SpiffeId};
use key_wrap::{Purpose, Sealed};
use model_key::SubkeyId;
use registry_domain::{Conflict, Grant, KeyRecord, KeyState, NewGrant, RepositoryError};

use crate::app::KeyService;
use crate::error::KeyError;
use crate::receipts::{Refused, millis};
use crate::scope::GrantScope;

/// What a sealer asks for when it opens a grant.
#[derive(Debug, Clone)]
pub struct OpenGrant {
    pub job_id: identifiers::JobId,
    pub fence: u64,
    pub key_id: identifiers::KeyId,
    pub source_aggregate: identifiers::Sha256Digest,
    pub scope: GrantScope,
}

impl KeyService {
    /// Opens a grant, or extends it for the same job and fence.
    pub async fn open_grant(
        &self,
        holder: SpiffeId,
        wanted: OpenGrant,
    ) -> Result<(Grant, KeyRecord), KeyError> {
        let key = self.keys.key(wanted.key_id).await?;
        let now = self.clock.unix_millis();
        let opened = if key.state == KeyState::Active {
            let new = NewGrant {
                id: GrantId::from_parts(millis(now), &self.randomness.bytes()),
                job_id: wanted.job_id,
                fence: wanted.fence,
                key_id: wanted.key_id,
                source_aggregate: wanted.source_aggregate,
                scope: (&wanted.scope).into(),
                holder: holder.clone(),
                opened_at: now,
                expires_at: now + self.grant_lifetime_millis,
            };
            self.keys.open_grant(&new).await.map_err(KeyError::from)
        } else {
            Err(KeyError::KeyNotActive(key.state))
        };
        let grant = match opened {
            Ok(grant) => grant,
            Err(error) if is_refusal(&error) => {
                let about = Refused {
                    key: Some(&key),
                    job: Some(wanted.job_id),
                    ..Refused::default()
                };
                return Err(self.receipts.refused(&holder, about, error).await);
            }
            Err(error) => return Err(error),
        };
        self.receipts.granted(&grant, &key).await?;
        Ok((grant, key))
    }

    /// The grant, its scope and its key, if the caller may derive under it now.
    pub async fn use_grant(
        &self,
        caller: &SpiffeId,
        id: GrantId,
        fence: u64,
    ) -> Result<(Grant, GrantScope, KeyRecord), KeyError> {
        let grant = self.keys.grant(id).await?;
        let key = self.keys.key(grant.key_id).await?;
        let now = self.clock.unix_millis();
        if let Err(refusal) = grant.check(caller, fence, now) {
            let about = Refused {
                key: Some(&key),
                job: Some(grant.job_id),
                ..Refused::default()
            };
            let error = self.receipts.refused(caller, about, refusal.into()).await;
            return Err(error);
        }
        let scope = GrantScope::try_from(&grant.scope)?;
        Ok((grant, scope, key))
    }

    /// Derives subkeys under a grant and wraps them to the caller.
    pub async fn derive_subkeys(
        self: &Arc<Self>,
        caller: &SpiffeId,
        (grant, scope, key): (Grant, GrantScope, KeyRecord),
        ids: Vec<SubkeyId>,
        recipient: [u8; 32],
    ) -> Result<Sealed, KeyError> {
        let outside = ids
            .iter()
            .enumerate()
            .find_map(|(index, id)| scope.covers(id).err().map(|refusal| (index, refusal)));
        if let Some((index, refusal)) = outside {
            let about = Refused {
                key: Some(&key),
                job: Some(grant.job_id),
                ..Refused::default()
            };
            let error = KeyError::OutOfScope { index, refusal };
            return Err(self.receipts.refused(caller, about, error).await);
        }
        self.derive(key, ids, recipient, Purpose::Grant(grant.id))
            .await
    }

    /// Ends a grant of the caller's.
    pub async fn close_grant(
        &self,
        caller: &SpiffeId,
        id: GrantId,
    ) -> Result<(Grant, KeyRecord), KeyError> {
        let grant = self.keys.grant(id).await?;
        if grant.holder != *caller {
            return Err(registry_domain::GrantRefusal::OtherHolder.into());
        }
        let grant = self.keys.close_grant(id, self.clock.unix_millis()).await?;
        let key = self.keys.key(grant.key_id).await?;
        Ok((grant, key))
    }

    /// Derives on a blocking thread: a batch takes some milliseconds.
    pub(crate) async fn derive(
        self: &Arc<Self>,
        key: KeyRecord,
        ids: Vec<SubkeyId>,
        recipient: [u8; 32],
        purpose: Purpose,
    ) -> Result<Sealed, KeyError> {
        let service = self.clone();
        tokio::task::spawn_blocking(move || service.vault.derive(&key, &ids, &recipient, purpose))
            .await?
    }
}

/// Whether an error is a decision, which leaves a receipt, and not a fault.
fn is_refusal(error: &KeyError) -> bool {
    matches!(
        error,
        KeyError::KeyNotActive(_)
            | KeyError::Repository(
                RepositoryError::FencedOff
                    | RepositoryError::Conflict(
                        Conflict::KeyServesAnotherSource { .. } | Conflict::State { .. }
                    )
            )
    )
}
