//! Seals, unlocks, verifies and exports checkpoints, over a source of subkeys.
//!
//! [`SealPlan`] looks at a source without a key and lists the subkeys that sealing takes;
//! [`Sealer`] writes shard by shard, so that a service can resume; [`seal`] does it all at once.
//! [`unlock`] and [`relock`] write copies with another lock, [`cloud_export`] what an untrusted
//! machine gets; [`CopyPlan`] and [`Copier`] do so file by file. [`UnlockingSource`] reads a sealed
//! directory in place, [`unlock_tensor`] one tensor of it, [`open_trusted`] the files in its blob.
//! [`verify`] compares with the base. Every one of them compares the fingerprint before it decrypts
//! anything.

mod blob;
mod cloud;
mod component;
mod copy;
mod error;
mod files;
mod layout;
mod locking;
mod manifest;
mod metadata;
mod monitor;
mod pipeline;
mod rewrite;
mod scheme;
mod seal;
mod source;
mod store;
mod unlock;
mod verify;

pub use blob::{TrustedFiles, open_trusted};
pub use copy::{Copier, CopyPlan, CopyReport, cloud_export, relock, unlock};
pub use error::SealingError;
pub use files::Outcome;
pub use metadata::{Scheme, SealMetadata};
pub use monitor::{Monitor, Step};
pub use scheme::SealOptions;
pub use seal::{FileReport, SealPlan, SealReport, SealedShard, Sealer, seal};
pub use source::{UnlockedTensor, UnlockingSource, unlock_tensor};
pub use store::{
    CATALOG_MANIFEST, CatalogEntry, CheckReport, RecordedFile, Shown, StoreRecord,
    catalog_manifest, catalog_text, check_catalog, record_path, show,
};
pub use verify::{Difference, Verification, VerifyReport, verify};
