//! Artifacts, keys, jobs and the log as the services see them: records, state machines and the
//! repository traits that a store implements.
//!
//! Every time is Unix milliseconds and comes from the caller, as do all ids. Every write either
//! has its whole effect or returns a [`RepositoryError`].

mod artifacts;
mod error;
mod jobs;
mod keys;
mod log;
mod manifest;
mod page;
mod pin;
mod verified;

pub use artifacts::{
    ArtifactFilter, ArtifactKind, ArtifactRecord, ArtifactRepository, NewArtifact,
};
pub use error::{Conflict, RepositoryError};
pub use jobs::{
    Comparison, DurableFile, FileFate, FileOutcome, Heartbeat, JobFailure, JobFilter, JobRecord,
    JobRepository, JobResult, JobState, Lease, LeaseTerms, NewJob, Progress, SealedArtifact,
};
pub use keys::{
    CapabilityRecord, Grant, GrantRefusal, GrantScope, GrantState, KeyOrigin, KeyRecord,
    KeyRepository, KeyState, NewCapability, NewGrant, NewKey, NewRevocation, PolicyRecord, Quota,
    Revocation, WrappedKey,
};
pub use log::{
    Append, Appended, CheckpointSigner, EntryFilter, LogEntry, LogHead, LogRepository, NewEntry,
    ProofError, consistency_proof, inclusion_proof,
};
pub use manifest::{
    ArtifactManifest, ContainerRecord, ManifestFile, PAYLOAD_TYPE, RegionUnits, SealRecord,
};
pub use page::{Inserted, Page};
pub use pin::{CheckpointPin, PinError, check_against_pin};
pub use verified::{ManifestError, VerifiedManifest};
