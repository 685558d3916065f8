use async_trait::async_trait;
use identifiers::{ArtifactId, Fingerprint, KeyId, ReceiptId, RequestId, Sha256Digest, SpiffeId};

use serde::{Deserialize, Serialize};

use crate::{Page, RepositoryError};

/// The registered artifacts. They are written by [`LogRepository::append`](crate::LogRepository::append)
/// together with their receipts.
#[async_trait]
pub trait ArtifactRepository: Send + Sync {
    /// One artifact.
    async fn artifact(&self, id: ArtifactId) -> Result<ArtifactRecord, RepositoryError>;
    /// One artifact by the digest of its manifest.
    async fn artifact_by_digest(
        &self,
        digest: &Sha256Digest,
    ) -> Result<ArtifactRecord, RepositoryError>;
    /// The newest artifact of a model and kind.
    async fn newest_artifact(
        &self,
        model: &str,
        kind: ArtifactKind,
    ) -> Result<ArtifactRecord, RepositoryError>;
    /// Artifacts, newest first.
    async fn list_artifacts(
        &self,
        filter: &ArtifactFilter,
        page: Page<ArtifactId>,
    ) -> Result<Vec<ArtifactRecord>, RepositoryError>;
}

/// What an artifact's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactKind {
    /// A sealed Hugging Face checkpoint directory.
    Checkpoint,
    /// One sealed `.jlm` container.
    Container,
}

/// An artifact to be registered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewArtifact {
    /// Its id.
    pub id: ArtifactId,
    /// SHA-256 of the manifest's bytes.
    pub digest: Sha256Digest,
    /// The model's name.
    pub model: String,
    /// What it is.
    pub kind: ArtifactKind,
    /// The key that sealed it.
    pub key_id: KeyId,
    /// The key's fingerprint.
    pub fingerprint: Fingerprint,
    /// Base-weight aggregate of the source.
    pub source_aggregate: Sha256Digest,
    /// The signed manifest (a DSSE envelope).
    pub envelope: Vec<u8>,
    /// Who registers it.
    pub sealer: SpiffeId,
    /// The sealer's idempotency id.
    pub request_id: RequestId,
    /// Unix milliseconds.
    pub registered_at: i64,
}

/// A registered artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRecord {
    /// As it was registered.
    pub artifact: NewArtifact,
    /// The receipt of its registration.
    pub receipt_id: ReceiptId,
}

impl ArtifactKind {
    /// The kind's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::Container => "container",
        }
    }
}

/// Which artifacts to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ArtifactFilter {
    /// Only of this model.
    pub model: Option<String>,
    /// Only of this source.
    pub source_aggregate: Option<Sha256Digest>,
}
