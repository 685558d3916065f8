//! Locks on and off whole tensors, in parts spread over the rayon pool.

use model_key::{Component, Label, LockVersion, SubkeyId, SubkeySource, TensorId};
use rayon::prelude::*;
use weight_lock::{Domain, Element, Lock, LockError, Scan, Version};

use crate::error::SealingError;

/// The subkey of a tensor's lock stream. A tensor in a component's folder is scoped by it.
pub(crate) fn lock_subkey(
    version: Version,
    folder: &str,
    tensor: &str,
) -> Result<SubkeyId, SealingError> {
    let id = tensor_id(folder, tensor);
    let id = TensorId::new(&id).ok_or_else(|| SealingError::TensorName {
        tensor: tensor.to_owned(),
    })?;
    let version = match version {
        Version::V1 => LockVersion::V1,
        Version::V2 => LockVersion::V2,
    };
    Ok(SubkeyId {
        component: Component::Model,
        label: Label::Lock(version, id),
    })
}

/// A tensor's id: its name, or `<folder>/<name>`.
pub(crate) fn tensor_id(folder: &str, tensor: &str) -> String {
    if folder.is_empty() {
        tensor.to_owned()
    } else {
        format!("{folder}/{tensor}")
    }
}

/// How a tensor is locked: `None` where a lock of this version leaves it as it is.
pub(crate) fn lockable(
    version: Version,
    dtype: checkpoint::Dtype,
    packed: bool,
    bytes: u64,
) -> Option<Element> {
    Element::of_dtype(dtype.name(), packed)
        .filter(|element| element.is_coded_by(version) && bytes > 0)
}

/// The domain of a tensor's values. `None`: they have no code (a table with negative entries), and
/// the tensor stays as it is.
pub(crate) fn scan(element: Element, bytes: &[u8]) -> Result<Option<Domain>, LockError> {
    let scanned = bytes
        .par_chunks(PART)
        .enumerate()
        .map(|(k, part)| {
            let mut scan = Scan::new(element);
            scan.update((k * PART) as u64, part)?;
            Ok(scan)
        })
        .try_reduce(
            || Scan::new(element),
            |mut all, part| {
                all.merge(&part);
                Ok(all)
            },
        );
    Ok(scanned?.domain())
}

/// Locks a tensor in place; every value must be in the domain, which goes to the record.
pub(crate) fn lock(
    keys: &dyn SubkeySource,
    id: &SubkeyId,
    version: Version,
    domain: Domain,
    bytes: &mut [u8],
) -> Result<Result<(), LockError>, SealingError> {
    let lock = Lock::new(version, &keys.subkey(id)?, domain);
    Ok(in_parts(bytes, |at, part| lock.lock(at, part)))
}

/// Takes a lock off a tensor, or a part that starts at byte `at` of it.
pub(crate) fn unlock(
    keys: &dyn SubkeySource,
    id: &SubkeyId,
    version: Version,
    domain: Domain,
    at: u64,
    bytes: &mut [u8],
) -> Result<Result<(), LockError>, SealingError> {
    let lock = Lock::new(version, &keys.subkey(id)?, domain);
    Ok(in_parts(bytes, |offset, part| {
        lock.unlock(at + offset, part)
    }))
}

fn in_parts(
    bytes: &mut [u8],
    work: impl Fn(u64, &mut [u8]) -> Result<(), LockError> + Sync,
) -> Result<(), LockError> {
    bytes
        .par_chunks_mut(PART)
        .enumerate()
        .try_for_each(|(k, part)| work((k * PART) as u64, part))
}

/// A multiple of every element and of every key stream batch.
const PART: usize = 1 << 20;
