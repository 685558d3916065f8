use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use jlm::{Region, UnitId};
use model_key::Subkey;
use sealed_jlm::{SealedHeader, SealedJlmError};

use crate::{PageArray, PageId, PageOpener, UnsealError, Unsealer};

/// Gives the keys of a container's units; without one the unit stays closed.
pub trait UnitKeys: Send + Sync {
    /// The key of a unit, or none when it was not granted or was taken back.
    fn unit_key(&self, unit: UnitId) -> Option<Arc<Subkey>>;
}

/// The keys of one container that a grant gave, until they are dropped.
#[derive(Default)]
pub struct KeyRing(RwLock<HashMap<UnitId, Arc<Subkey>>>);

impl KeyRing {
    /// No keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a unit's key; one that is there is replaced.
    pub fn insert(&self, unit: UnitId, key: Subkey) {
        let mut keys = self.0.write().unwrap_or_else(PoisonError::into_inner);
        keys.insert(unit, Arc::new(key));
    }

    /// Drops every key. One that opens a page at this moment is wiped when it is done.
    pub fn clear(&self) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    /// Keys held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyRing({} keys)", self.len())
    }
}

impl UnitKeys for KeyRing {
    fn unit_key(&self, unit: UnitId) -> Option<Arc<Subkey>> {
        let keys = self.0.read().unwrap_or_else(PoisonError::into_inner);
        keys.get(&unit).cloned()
    }
}

/// Opens the pages of a sealed container with keys from elsewhere.
#[derive(Debug)]
pub struct ContainerUnsealer<K> {
    header: Arc<SealedHeader>,
    keys: K,
}

impl<K: UnitKeys> ContainerUnsealer<K> {
    /// An unsealer of the container that `header` describes.
    pub const fn new(header: Arc<SealedHeader>, keys: K) -> Self {
        Self { header, keys }
    }

    /// The unit that a page belongs to, and which of its pages it is.
    fn unit(&self, page: PageId) -> Option<(UnitId, u32)> {
        let index = u64::from(page.index);
        Some(match page.array {
            PageArray::Text => (UnitId::new(Region::Text, index), 0),
            PageArray::Vision => (UnitId::new(Region::Vision, index), 0),
            PageArray::Expert => {
                let experts = self.header.container().experts();
                let block = page.index.checked_div(experts)?;
                (
                    UnitId::new(Region::Experts, block.into()),
                    page.index % experts,
                )
            }
        })
    }
}

impl<K: UnitKeys> Unsealer for ContainerUnsealer<K> {
    fn chunk(&self) -> usize {
        self.header.chunk().bytes() as usize
    }

    fn page<'a>(&'a self, page: PageId) -> Result<Box<dyn PageOpener + 'a>, UnsealError> {
        let (unit, expert) = self.unit(page).ok_or(UnsealError::NoKey)?;
        let key = self.keys.unit_key(unit).ok_or(UnsealError::NoKey)?;
        let opener = self
            .header
            .page_opener(unit, expert, &key)
            .map_err(refused)?;
        Ok(Box::new(opener))
    }
}

impl PageOpener for sealed_jlm::PageOpener<'_> {
    fn open(&mut self, at: usize, bytes: &mut [u8]) -> Result<(), UnsealError> {
        sealed_jlm::PageOpener::open(self, at as u64, bytes).map_err(refused)
    }
}

impl<K: UnitKeys + ?Sized> UnitKeys for Arc<K> {
    fn unit_key(&self, unit: UnitId) -> Option<Arc<Subkey>> {
        (**self).unit_key(unit)
    }
}

fn refused(error: SealedJlmError) -> UnsealError {
    UnsealError::Refused(Box::new(error))
}
