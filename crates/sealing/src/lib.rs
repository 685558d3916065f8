//! Seals, unlocks, verifies and exports checkpoints, over a source of subkeys.
//!
//! [`SealPlan`] looks at a source without a key and lists the subkeys that sealing takes;
//! [`Sealer`] writes shard by shard, so that a service can resume; [`seal`] does it all at once.
//! [`unlock`] and [`relock`] write copies with another lock, [`UnlockingSource`] reads a sealed
//! directory in place, [`unlock_tensor`] one tensor of it, [`open_trusted`] the files in its blob. [`verify`] compares with the base,
//! [`cloud_export`] writes what an untrusted machine gets. Every one of them compares the
//! fingerprint before it decrypts anything.

mod blob;
mod cloud;
mod component;
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
pub use cloud::cloud_export;
pub use error::SealingError;
pub use files::Outcome;
pub use metadata::{Scheme, SealMetadata};
pub use monitor::{Monitor, Step};
pub use scheme::SealOptions;
pub use seal::{FileReport, SealPlan, SealReport, SealedShard, Sealer, seal};
pub use source::{UnlockedTensor, UnlockingSource, unlock_tensor};
pub use store::{
    CatalogEntry, CheckReport, RecordedFile, Shown, StoreRecord, catalog_manifest, check_catalog,
    record_path, show,
};
pub use unlock::{CopyReport, relock, unlock};
pub use verify::{Difference, VerifyReport, verify};
