//! Making, taking in, showing and disabling model keys.

use identifiers::{Fingerprint, KeyId, RequestId, Sha256Digest, SpiffeId};
use key_wrap::Sealed;
use registry_domain::{KeyOrigin, KeyRecord, KeyState, NewKey, Page, RepositoryError};
use sha2::{Digest as _, Sha256};

use crate::app::KeyService;
use crate::error::KeyError;
use crate::receipts::millis;
use crate::vault::{VERSION, Wrapped};

/// Who asks, under which idempotency id.
#[derive(Debug, Clone)]
pub struct Caller {
    pub id: SpiffeId,
    pub request_id: RequestId,
}

impl KeyService {
    /// Makes a model key.
    pub async fn create_key(&self, caller: Caller, name: String) -> Result<KeyRecord, KeyError> {
        let id = self.new_key_id();
        let wrapped = self.vault.create(id);
        let body = body(&[b"create", name.as_bytes()]);
        self.add_key(caller, id, name, wrapped, KeyOrigin::Created, body)
            .await
    }

    /// Takes in a model key that was encrypted to the import key.
    pub async fn import_key(
        &self,
        caller: Caller,
        name: String,
        announced: Fingerprint,
        import_key_id: &str,
        sealed: &Sealed,
    ) -> Result<KeyRecord, KeyError> {
        if import_key_id != self.vault.import_key_id() {
            return Err(KeyError::ImportKey);
        }
        let id = self.new_key_id();
        let wrapped = self.vault.import(id, announced, sealed)?;
        let body = body(&[b"import", name.as_bytes(), announced.as_bytes()]);
        self.add_key(caller, id, name, wrapped, KeyOrigin::Imported, body)
            .await
    }

    /// One key, by id or name. A key whose receipt is not in the log yet does not exist.
    pub async fn find_key(&self, which: &str) -> Result<KeyRecord, KeyError> {
        let key = match which.parse() {
            Ok(id) => self.keys.key(id).await?,
            Err(_) => self.keys.key_by_name(which).await?,
        };
        if key.state == KeyState::Pending {
            return Err(RepositoryError::NotFound("key").into());
        }
        Ok(key)
    }

    /// A page of keys, newest first.
    pub async fn list_keys(&self, page: Page<KeyId>) -> Result<Vec<KeyRecord>, KeyError> {
        Ok(self.keys.list_keys(page).await?)
    }

    /// Refuses every further use of a key.
    ///
    /// The key is disabled before the receipt is written: if the log cannot take the receipt the
    /// caller gets an error and tries again, and meanwhile the key is off.
    pub async fn disable_key(
        &self,
        caller: Caller,
        which: &str,
        reason: &str,
    ) -> Result<KeyRecord, KeyError> {
        let found = self.find_key(which).await?;
        let now = self.clock.unix_millis();
        let key = self
            .keys
            .change_key_state(found.id, KeyState::Disabled, now)
            .await?
            .into_inner();
        self.receipts
            .key_disabled(&key, &caller.id, caller.request_id, reason)
            .await?;
        Ok(key)
    }

    /// Stores a key as pending, puts its receipt into the log, makes it active. A retry goes on
    /// where an earlier attempt stopped.
    async fn add_key(
        &self,
        caller: Caller,
        id: KeyId,
        name: String,
        wrapped: Wrapped,
        origin: KeyOrigin,
        body: Sha256Digest,
    ) -> Result<KeyRecord, KeyError> {
        let new = NewKey {
            id,
            name,
            fingerprint: wrapped.fingerprint,
            version: VERSION,
            wrapped: wrapped.envelope,
            origin,
            caller: caller.id,
            request_id: caller.request_id,
            body,
            created_at: self.clock.unix_millis(),
        };
        let key = self.keys.insert_key(&new).await?.into_inner();
        if key.state != KeyState::Pending {
            return Ok(key);
        }
        self.receipts.key_made(&key).await?;
        let now = self.clock.unix_millis();
        let key = self
            .keys
            .change_key_state(key.id, KeyState::Active, now)
            .await?;
        Ok(key.into_inner())
    }

    fn new_key_id(&self) -> KeyId {
        KeyId::from_parts(millis(self.clock.unix_millis()), &self.randomness.bytes())
    }
}

/// SHA-256 over length-prefixed parts: what a repeated request must equal.
pub fn body(parts: &[&[u8]]) -> Sha256Digest {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    Sha256Digest::new(hash.finalize().into())
}
