//! Model keys in and out of their envelopes. Only here are they in clear.

use std::sync::Arc;

use identifiers::{Fingerprint, KeyId};
use key_wrap::{
    Purpose, RecipientKey, RootKey, Sealed, open_model_key, seal_subkeys, unwrap_model_key,
    wrap_model_key,
};
use model_key::{ModelKey, Subkey, SubkeyId, SubkeySource};
use registry_domain::{KeyRecord, KeyState, WrappedKey};
use secret::Secret;
use service_runtime::Randomness;
use sha2::{Digest as _, Sha256};

use crate::error::KeyError;

/// The root key and the import key of a key service.
pub struct Vault {
    root: RootKey,
    import: RecipientKey,
    randomness: Arc<dyn Randomness>,
}

/// A model key under the root key, with its public fingerprint.
pub struct Wrapped {
    /// The fingerprint.
    pub fingerprint: Fingerprint,
    /// The envelope.
    pub envelope: WrappedKey,
}

impl Vault {
    /// A vault over these keys.
    pub fn new(root: RootKey, import: RecipientKey, randomness: Arc<dyn Randomness>) -> Self {
        Self {
            root,
            import,
            randomness,
        }
    }

    /// The public key that imported model keys are encrypted to.
    pub fn import_key(&self) -> [u8; 32] {
        self.import.public_key()
    }

    /// The import key's id: 16 hex digits of its SHA-256.
    pub fn import_key_id(&self) -> String {
        hex::encode(&Sha256::digest(self.import.public_key())[..8])
    }

    /// Makes a model key.
    pub fn create(&self, id: KeyId) -> Wrapped {
        let bytes = Secret::fill_with(|bytes| self.randomness.fill(bytes));
        self.wrap(id, &ModelKey::new(bytes))
    }

    /// Takes in a model key that was encrypted to the import key.
    pub fn import(
        &self,
        id: KeyId,
        announced: Fingerprint,
        sealed: &Sealed,
    ) -> Result<Wrapped, KeyError> {
        let key = open_model_key(&self.import, announced, sealed)?;
        Ok(self.wrap(id, &key))
    }

    /// Derives subkeys of a stored key and wraps them to a caller.
    pub fn derive(
        &self,
        key: &KeyRecord,
        ids: &[SubkeyId],
        recipient: &[u8; 32],
        purpose: Purpose,
    ) -> Result<Sealed, KeyError> {
        if key.state != KeyState::Active {
            return Err(KeyError::KeyNotActive(key.state));
        }
        let model_key = unwrap_model_key(
            &self.root,
            &key.wrapped.0,
            key.id,
            key.fingerprint,
            key.version,
        )?;
        let subkeys: Vec<Subkey> = ids
            .iter()
            .map(|id| {
                model_key
                    .subkey(id)
                    .expect("a model key derives every subkey")
            })
            .collect();
        let mut rng = self.randomness.rng();
        Ok(seal_subkeys(&mut rng, recipient, purpose, ids, &subkeys)?)
    }

    fn wrap(&self, id: KeyId, key: &ModelKey) -> Wrapped {
        let mut rng = self.randomness.rng();
        Wrapped {
            fingerprint: key.fingerprint(),
            envelope: WrappedKey(wrap_model_key(&self.root, key, id, VERSION, &mut rng)),
        }
    }
}

/// Every model key's version: rotation makes a new key with a new id.
pub const VERSION: u32 = 1;
