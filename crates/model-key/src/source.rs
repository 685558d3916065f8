//! Where subkeys come from: a model key held here, or a grant's subkeys.

use hkdf::Hkdf;
use identifiers::Fingerprint;
use rand_core::CryptoRng;
use secret::Secret;
use sha2::Sha256;

use crate::label::{Component, Label, SubkeyId};

/// A derived 32-byte key for one [`SubkeyId`].
pub type Subkey = Secret<32>;

/// Gives subkeys by typed id.
///
/// Implemented by [`ModelKey`] (offline work) and by a grant's prefetched subkeys, so that the
/// code that seals and unlocks never needs a model key.
pub trait SubkeySource: Sync {
    /// The subkey for `id`, or why it is not available here.
    fn subkey(&self, id: &SubkeyId) -> Result<Subkey, SubkeyError>;

    /// The fingerprint of the model key that the subkeys come from.
    fn fingerprint(&self) -> Fingerprint;
}

/// A source did not give a subkey.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no subkey for {label} of {component:?}: {reason}")]
pub struct SubkeyError {
    /// The component asked for.
    pub component: Component,
    /// The label's text.
    pub label: String,
    /// Why.
    pub reason: &'static str,
}

/// A source seen from one component's key.
#[derive(Clone, Copy)]
pub struct Scoped<'a> {
    source: &'a dyn SubkeySource,
    component: Component,
}

impl<'a> Scoped<'a> {
    /// `source`, with labels starting from `component`'s key.
    #[must_use]
    pub fn new(source: &'a dyn SubkeySource, component: Component) -> Self {
        Self { source, component }
    }

    /// The subkey for `label` under this component.
    pub fn subkey(&self, label: Label) -> Result<Subkey, SubkeyError> {
        self.source.subkey(&SubkeyId {
            component: self.component,
            label,
        })
    }
}

/// A model key in clear. Only the key service and offline commands hold one.
pub struct ModelKey(Secret<32>);

impl ModelKey {
    /// Wraps 32 key bytes.
    #[must_use]
    pub fn new(bytes: Secret<32>) -> Self {
        Self(bytes)
    }

    /// The key's bytes, for wrapping under a root key or writing a key file.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }
}

impl ModelKey {
    /// A new key from 32 random bytes.
    #[must_use]
    pub fn generate(rng: &mut impl CryptoRng) -> Self {
        Self(Secret::fill_with(|bytes| rng.fill_bytes(bytes)))
    }

    /// The key of a catalog's model, where this is the catalog's master key.
    #[must_use]
    pub fn catalog_key(&self, entry: &CatalogEntry) -> Self {
        let label = format!("catalog/v1/{}/k{}", entry.repo_id, entry.key_version);
        Self(derive(self.expose(), &label))
    }

    /// The fingerprint of a component's own key; of the model key itself for
    /// [`Component::Model`].
    #[must_use]
    pub fn component_fingerprint(&self, component: Component) -> Fingerprint {
        match component.label() {
            None => self.fingerprint(),
            Some(label) => Self(derive(self.expose(), label)).fingerprint(),
        }
    }
}

impl std::fmt::Debug for ModelKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ModelKey({})", self.fingerprint())
    }
}

/// A model of a catalog: whose key, and which version of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    repo_id: String,
    key_version: u32,
}

impl CatalogEntry {
    /// A checked entry: `repo_id` is `<owner>/<name>`, each 1 to 96 ASCII letters, digits, `-`,
    /// `_` and `.`, and neither `.` nor `..`. `None` otherwise.
    #[must_use]
    pub fn new(repo_id: &str, key_version: u32) -> Option<Self> {
        let sane = |part: &str| {
            (1..=MAX_REPO_PART).contains(&part.len())
                && !matches!(part, "." | "..")
                && part
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        let (owner, name) = repo_id.split_once('/')?;
        (sane(owner) && sane(name)).then(|| Self {
            repo_id: repo_id.to_owned(),
            key_version,
        })
    }
}

impl SubkeySource for ModelKey {
    fn subkey(&self, id: &SubkeyId) -> Result<Subkey, SubkeyError> {
        let label = id.label.to_string();
        Ok(match id.component.label() {
            None => derive(self.expose(), &label),
            Some(component) => derive(derive(self.expose(), component).expose(), &label),
        })
    }

    fn fingerprint(&self) -> Fingerprint {
        let mut bytes = [0; 8];
        expand(self.expose(), "fingerprint", &mut bytes);
        Fingerprint::new(bytes)
    }
}

fn derive(key: &[u8; 32], label: &str) -> Subkey {
    Secret::fill_with(|bytes| expand(key, label, bytes))
}

/// HKDF-SHA256 with salt `kllm/v1` and the label as info (spec: sealed checkpoint, section 1).
fn expand(key: &[u8; 32], label: &str, out: &mut [u8]) {
    Hkdf::<Sha256>::new(Some(SALT), key)
        .expand(label.as_bytes(), out)
        .expect("the output is at most 255 hash blocks");
}

const MAX_REPO_PART: usize = 96;
const SALT: &[u8] = b"kllm/v1";
