use std::collections::HashMap;
use std::fmt;

use identifiers::Fingerprint;
use secret::Secret;

use crate::label::SubkeyId;
use crate::source::{Subkey, SubkeyError, SubkeySource};

/// The subkeys of one grant, fetched ahead: all that a sealer or an inference node holds of a key.
pub struct GrantedSubkeys {
    fingerprint: Fingerprint,
    subkeys: HashMap<SubkeyId, Subkey>,
}

impl GrantedSubkeys {
    /// An empty set for the model key with this fingerprint.
    #[must_use]
    pub fn new(fingerprint: Fingerprint) -> Self {
        Self {
            fingerprint,
            subkeys: HashMap::new(),
        }
    }

    /// Adds a subkey, replacing one held under the same id.
    pub fn insert(&mut self, id: SubkeyId, subkey: Subkey) {
        self.subkeys.insert(id, subkey);
    }

    /// Drops a subkey; whether it was held.
    pub fn remove(&mut self, id: &SubkeyId) -> bool {
        self.subkeys.remove(id).is_some()
    }

    /// Whether `id` is held.
    #[must_use]
    pub fn contains(&self, id: &SubkeyId) -> bool {
        self.subkeys.contains_key(id)
    }

    /// How many subkeys are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.subkeys.len()
    }

    /// Whether none is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.subkeys.is_empty()
    }
}

impl Extend<(SubkeyId, Subkey)> for GrantedSubkeys {
    fn extend<I: IntoIterator<Item = (SubkeyId, Subkey)>>(&mut self, subkeys: I) {
        self.subkeys.extend(subkeys);
    }
}

impl SubkeySource for GrantedSubkeys {
    fn subkey(&self, id: &SubkeyId) -> Result<Subkey, SubkeyError> {
        let held = self.subkeys.get(id).ok_or_else(|| SubkeyError {
            component: id.component,
            label: id.label.to_string(),
            reason: "the grant does not include it",
        })?;
        Ok(Secret::fill_with(|bytes| {
            bytes.copy_from_slice(held.expose())
        }))
    }

    fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

impl fmt::Debug for GrantedSubkeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantedSubkeys")
            .field("fingerprint", &self.fingerprint)
            .field("subkeys", &self.subkeys.len())
            .finish()
    }
}
