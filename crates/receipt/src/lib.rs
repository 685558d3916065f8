//! Receipts: in-toto statements in DSSE envelopes, and model-signing bundles.
//!
//! Everything that changes custody leaves a [`Receipt`], signed by the replica that did it. A
//! receipt's envelope is one entry of the log; checking it needs public keys only.
//!

mod dsse;
mod model_signing;
mod statement;

pub use dsse::{Envelope, EnvelopeError, TrustedSigners, VerifiedPayload, key_id};
pub use model_signing::{
    BundleError, MODEL_SIGNATURE, ModelSigner, Resource, sign_model, verify_model,
};
pub use statement::{
    ArtifactRef, Event, KeyRef, MAX_ENTRY, NewReceipt, PREDICATE_TYPE, Receipt, ReceiptError,
    Subject, VerifiedReceipt, WeightIdentity,
};
