//! Receipts as in-toto statements.

use std::collections::BTreeMap;

use ed25519_dalek::SigningKey;
use identifiers::{
    CapabilityId, Fingerprint, GrantId, JobId, KeyId, ReceiptId, RequestId, Sha256Digest, SpiffeId,
};
use serde::{Deserialize, Serialize};
use shard_identity::{ShardManifest, Summary};

use crate::dsse::{Envelope, EnvelopeError, TrustedSigners};

/// What changed custody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A model key was made.
    KeyCreated,
    /// A model key was taken in.
    KeyImported,
    /// A model key gives no further subkeys.
    KeyDisabled,
    /// A model key's bytes are gone.
    KeyDestroyed,
    /// A seal job may derive subkeys.
    SealGranted,
    /// A seal job finished.
    Sealed,
    /// A job made an artifact from another one: with another lock, without one, or a part of it.
    Derived,
    /// An artifact was registered.
    Registered,
    /// Unit keys were handed to a node.
    Unlocked,
    /// A request for keys was refused.
    Refused,
    /// A node opened a model.
    Loaded,
    /// A node dropped a model.
    Unloaded,
    /// The right to unlock was withdrawn, or a node saw that it was.
    Revoked,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 13] = [
        Self::KeyCreated,
        Self::KeyImported,
        Self::KeyDisabled,
        Self::KeyDestroyed,
        Self::SealGranted,
        Self::Sealed,
        Self::Derived,
        Self::Registered,
        Self::Unlocked,
        Self::Refused,
        Self::Loaded,
        Self::Unloaded,
        Self::Revoked,
    ];

    /// The event's name in a receipt.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::KeyCreated => "key-created",
            Self::KeyImported => "key-imported",
            Self::KeyDisabled => "key-disabled",
            Self::KeyDestroyed => "key-destroyed",
            Self::SealGranted => "seal-granted",
            Self::Sealed => "sealed",
            Self::Derived => "derived",
            Self::Registered => "registered",
            Self::Unlocked => "unlocked",
            Self::Refused => "refused",
            Self::Loaded => "loaded",
            Self::Unloaded => "unloaded",
            Self::Revoked => "revoked",
        }
    }
}

/// One change of custody. Fields that an event has no use for are `None` and left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// The receipt's id: appending it again has no effect.
    pub id: ReceiptId,
    /// What happened.
    pub event: Event,
    /// Whose request it was.
    pub actor: SpiffeId,
    /// The replica that did it and signs.
    pub replica: SpiffeId,
    /// Unix milliseconds by the replica's clock; the log's order is what counts.
    pub time: i64,
    /// The caller's idempotency id.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub request_id: Option<RequestId>,
    /// The model key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<KeyRef>,
    /// The artifact.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub artifact: Option<ArtifactRef>,
    /// The artifact that it was made from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub from: Option<Sha256Digest>,
    /// The source's base weights.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<WeightIdentity>,
    /// The seal job.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub job: Option<JobId>,
    /// The seal grant.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub grant: Option<GrantId>,
    /// The capability.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub capability: Option<CapabilityId>,
    /// The inference node concerned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<SpiffeId>,
    /// Units unlocked or refused: region id, first unit, one past the last.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub units: Vec<(u8, u64, u64)>,
    /// Why: always set for refusals, revocations and what is derived.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
}

/// The required part of a receipt; the rest is set field by field.
#[derive(Debug, Clone)]
pub struct NewReceipt {
    /// The receipt's id.
    pub id: ReceiptId,
    /// What happened.
    pub event: Event,
    /// Whose request it was.
    pub actor: SpiffeId,
    /// The replica that did it and signs.
    pub replica: SpiffeId,
    /// Unix milliseconds.
    pub time: i64,
}

/// A model key as receipts name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRef {
    /// Its id.
    pub id: KeyId,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// Its version.
    pub version: u32,
}

/// An artifact as receipts name it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactRef {
    /// The model's name.
    pub model: String,
    /// Digest of the manifest.
    pub digest: Sha256Digest,
}

/// Base weights as receipts name them: the summary always, the whole manifest where it fits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightIdentity {
    /// The bounded summary.
    pub summary: Summary,
    /// Every shard; `None` for a model of too many shards for one log entry.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub manifest: Option<ShardManifest>,
}

/// What a statement is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// `artifact/<model>`, `key/<id>` or `source`.
    pub name: String,
    /// Digests by algorithm.
    pub digest: BTreeMap<String, String>,
}

/// A receipt whose signature and form were checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedReceipt(Receipt);

/// Why a receipt is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptError {
    /// The envelope is not accepted.
    #[error("receipt envelope")]
    Envelope(#[from] EnvelopeError),
    /// The payload is not a receipt statement.
    #[error("receipt statement is malformed: {0}")]
    Malformed(String),
    /// Signed by a key of someone other than the replica it names.
    #[error("the receipt names the replica {replica}, the key belongs to {signer}")]
    OtherSigner {
        /// As the receipt says.
        replica: SpiffeId,
        /// Whose key signed.
        signer: SpiffeId,
    },
    /// Too large for a log entry.
    #[error("the receipt has {0} bytes, a log entry at most {MAX_ENTRY}")]
    TooLarge(usize),
}

impl From<NewReceipt> for Receipt {
    fn from(new: NewReceipt) -> Self {
        Self {
            id: new.id,
            event: new.event,
            actor: new.actor,
            replica: new.replica,
            time: new.time,
            request_id: None,
            key: None,
            artifact: None,
            from: None,
            source: None,
            job: None,
            grant: None,
            capability: None,
            node: None,
            units: Vec::new(),
            reason: None,
        }
    }
}

impl Receipt {
    /// Signs the receipt: the bytes of its log entry. The same receipt and key give the same bytes.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, ReceiptError> {
        let statement = Statement {
            statement_type: STATEMENT_TYPE.to_owned(),
            subject: self.subjects(),
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: self.clone(),
        };
        let payload = serde_json::to_vec(&statement).expect("a statement has text keys only");
        let entry = Envelope::sign(PAYLOAD_TYPE, payload, key).to_json();
        if entry.len() > MAX_ENTRY {
            return Err(ReceiptError::TooLarge(entry.len()));
        }
        Ok(entry)
    }

    /// Checks a log entry: signature by a trusted key of the replica it names, strict form.
    pub fn verify(entry: &[u8], signers: &TrustedSigners) -> Result<VerifiedReceipt, ReceiptError> {
        if entry.len() > MAX_ENTRY {
            return Err(ReceiptError::TooLarge(entry.len()));
        }
        let envelope = Envelope::from_json(entry)?;
        let verified = envelope.verify(PAYLOAD_TYPE, signers)?;
        let malformed = |reason: &str| ReceiptError::Malformed(reason.to_owned());
        let statement: Statement = serde_json::from_slice(verified.payload)
            .map_err(|error| ReceiptError::Malformed(error.to_string()))?;
        if statement.statement_type != STATEMENT_TYPE {
            return Err(malformed("_type is not an in-toto statement, version 1"));
        }
        if statement.predicate_type != PREDICATE_TYPE {
            return Err(malformed("predicateType is not a receipt"));
        }
        let receipt = statement.predicate;
        if statement.subject != receipt.subjects() {
            return Err(malformed("subject and predicate disagree"));
        }
        if receipt.replica != *verified.signer {
            return Err(ReceiptError::OtherSigner {
                replica: receipt.replica,
                signer: verified.signer.clone(),
            });
        }
        Ok(VerifiedReceipt(receipt))
    }

    fn subjects(&self) -> Vec<Subject> {
        let one = |name: String, algorithm: &str, digest: String| Subject {
            name,
            digest: BTreeMap::from([(algorithm.to_owned(), digest)]),
        };
        let mut subjects = Vec::new();
        if let Some(artifact) = &self.artifact {
            let name = format!("artifact/{}", artifact.model);
            subjects.push(one(name, "sha256", artifact.digest.to_hex()));
        }
        if let Some(source) = &self.source {
            let aggregate = source.summary.aggregate_sha256.to_hex();
            subjects.push(one("source".to_owned(), AGGREGATE_ALGORITHM, aggregate));
        }
        if let Some(key) = &self.key {
            let name = format!("key/{}", key.id);
            subjects.push(one(
                name,
                FINGERPRINT_ALGORITHM,
                key.fingerprint.to_string(),
            ));
        }
        subjects
    }
}

impl VerifiedReceipt {
    /// The receipt.
    #[must_use]
    pub fn receipt(&self) -> &Receipt {
        &self.0
    }

    /// The receipt, by value.
    #[must_use]
    pub fn into_inner(self) -> Receipt {
        self.0
    }
}

impl WeightIdentity {
    /// Names base weights, with every shard where there are few enough for a log entry.
    #[must_use]
    pub fn of(manifest: &ShardManifest) -> Self {
        Self {
            summary: manifest.summary(),
            manifest: (manifest.shards().len() <= MAX_LISTED_SHARDS).then(|| manifest.clone()),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Statement {
    #[serde(rename = "_type")]
    statement_type: String,
    subject: Vec<Subject>,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    predicate: Receipt,
}

/// The predicate type of a receipt.
pub const PREDICATE_TYPE: &str = "https://chancery.dev/receipt/v1";
/// The largest log entry (C2SP tlog-tiles: a 16-bit length).
pub const MAX_ENTRY: usize = 65_535;
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
const AGGREGATE_ALGORITHM: &str = "kiln.base-model-content.v1";
const FINGERPRINT_ALGORITHM: &str = "kllm-fingerprint";
/// A shard takes at most 400 bytes of JSON, thus 534 of base64; the rest of a receipt stays
/// under 11,000.
const MAX_LISTED_SHARDS: usize = 100;
