//! One attempt at one job: its lease, its grant, its files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use api::client::Client;
use api::v1;
use custody::CustodyLog;
use identifiers::{GrantId, Sha256Digest};
use key_client::{GrantClient, SealGrant};
use model_key::{GrantedSubkeys, SubkeyId};
use receipt::{KeyRef, ModelSigner};
use registry_domain::{DurableFile, JobRepository, JobResult, Lease, ManifestFile};
use sealing::{Monitor, Step};
use service_runtime::{Clock, Randomness};

use crate::failure::JobError;
use crate::meter::Meter;
use crate::order::{Order, Work};
use crate::resume::manifest_file;
use crate::sources::SourceRoots;
use crate::stop::Stop;
use crate::{artifact_job, seal_job, upload};

/// What every job is worked on with.
pub struct Means {
    pub jobs: Arc<dyn JobRepository>,
    pub key_service: Client,
    pub grants: GrantClient,
    pub storage: Client,
    pub registry: Client,
    pub log: Arc<CustodyLog>,
    pub model_signer: ModelSigner,
    pub sources: SourceRoots,
    pub work_dir: PathBuf,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}

/// A leased job under way.
pub struct Attempt {
    pub means: Arc<Means>,
    pub lease: Lease,
    pub order: Order,
    pub stop: Arc<Stop>,
    pub meter: Arc<Meter>,
    /// The job's own folder.
    pub folder: PathBuf,
    grant: Mutex<Option<GrantId>>,
}

/// What a grant is asked for.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Aggregate of the base weights.
    pub source: Sha256Digest,
    pub scheme: v1::Scheme,
    /// Unspecified where only a lock changes.
    pub transform: v1::Transform,
    pub lock: v1::Lock,
    /// The lock taken off; unspecified where none is.
    pub unlock: v1::Lock,
    pub blob_salt: Option<[u8; 16]>,
    pub container_salt: Option<[u8; 16]>,
}

/// A file of the output that is complete in the job's folder.
pub struct OutputFile {
    pub stage: &'static str,
    pub number: u32,
    pub on_disk: PathBuf,
    pub written: checkpoint::WrittenFile,
    pub detail: serde_json::Value,
    /// Whether the work still needs it on disk.
    pub keep: bool,
}

impl Attempt {
    pub fn new(means: Arc<Means>, lease: Lease, order: Order, stop: Arc<Stop>) -> Self {
        Self {
            folder: means.work_dir.join(lease.job.id.to_string()),
            means,
            lease,
            order,
            stop,
            meter: Arc::default(),
            grant: Mutex::default(),
        }
    }

    /// Does the job. Whatever an earlier attempt made durable is not done again.
    pub async fn run(self: &Arc<Self>) -> Result<JobResult, JobError> {
        tokio::fs::create_dir_all(&self.folder).await?;
        match &self.order.work {
            Work::Seal(order) => seal_job::run(self, order).await,
            Work::Artifact(digest, operation) => artifact_job::run(self, *digest, operation).await,
        }
    }

    /// Ends the job's grant, if it was opened. A grant that cannot be closed now expires.
    pub async fn close_grant(&self) {
        let grant = *self.grant.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(grant) = grant
            && let Err(error) = self.means.grants.close(grant).await
        {
            tracing::warn!(job = %self.lease.job.id, %grant, %error, "the grant stays until it expires");
        }
    }

    /// Removes the job's folder.
    pub async fn clean_up(&self) {
        let folder = self.folder.clone();
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
        match removed {
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(job = %self.lease.job.id, %error, "the work folder stays");
            }
            _ => {}
        }
    }

    /// Reports tensors, and stops when the attempt should.
    pub fn monitor<'a>(&'a self, progress: &'a (dyn Fn(Step) + Sync)) -> Monitor<'a> {
        Monitor {
            progress,
            cancel: self.stop.flag(),
        }
    }

    /// Waits for something on a thread of its own, unless the work should stop.
    pub fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T, JobError> {
        tokio::runtime::Handle::current().block_on(self.until_stopped(future))
    }

    /// The future's output, unless the work should stop.
    pub async fn until_stopped<T>(&self, future: impl Future<Output = T>) -> Result<T, JobError> {
        tokio::select! {
            biased;
            () = self.stop.stopped() => Err(JobError::Stopped),
            output = future => Ok(output),
        }
    }

    /// Stores a file and records that it is durable.
    pub async fn store(&self, file: OutputFile) -> Result<ManifestFile, JobError> {
        let written = &file.written;
        let storage = &self.means.storage;
        let put = upload::put(storage, &file.on_disk, written.sha256, written.bytes);
        let chunk_root = self.until_stopped(put).await??;
        let durable = DurableFile {
            stage: file.stage.to_owned(),
            number: file.number,
            path: written.path.clone(),
            size: written.bytes,
            sha256: written.sha256,
            chunk_root,
            detail: file.detail,
        };
        let recorded = self.means.jobs.file_durable(&self.lease, &durable);
        self.until_stopped(recorded).await??;
        if !file.keep {
            tokio::fs::remove_file(&file.on_disk).await?;
        }
        Ok(manifest_file(&durable))
    }

    /// Opens the job's grant, or makes it last longer.
    pub async fn open_grant(&self, key: &KeyRef, terms: &Terms) -> Result<SealGrant, JobError> {
        let salt = |salt: Option<[u8; 16]>| salt.map(Vec::from).unwrap_or_default();
        let request = v1::OpenSealGrantRequest {
            job_id: self.lease.job.id.to_string(),
            fence: self.lease.fence,
            key_id: key.id.to_string(),
            source_aggregate: terms.source.to_string(),
            scheme: terms.scheme.into(),
            transform: terms.transform.into(),
            lock: terms.lock.into(),
            unlock: terms.unlock.into(),
            blob_salt: salt(terms.blob_salt),
            container_salt: salt(terms.container_salt),
        };
        let grant = self
            .until_stopped(self.means.grants.open(request))
            .await??;
        if grant.fingerprint != key.fingerprint {
            let message = "the grant is of a key with another fingerprint";
            return Err(JobError::refused("key-refused", message));
        }
        *self.grant.lock().unwrap_or_else(PoisonError::into_inner) = Some(grant.id);
        Ok(grant)
    }

    /// What earlier attempts made durable.
    pub async fn durable_files(&self) -> Result<Vec<DurableFile>, JobError> {
        let recorded = self.means.jobs.durable_files(self.lease.job.id);
        Ok(self.until_stopped(recorded).await??)
    }

    /// Fetches subkeys under the grant.
    pub async fn fetch(
        &self,
        grant: &SealGrant,
        ids: Vec<SubkeyId>,
    ) -> Result<GrantedSubkeys, JobError> {
        let mut rng = self.means.randomness.rng();
        let fetched = self.means.grants.fetch(grant, ids, &mut rng);
        Ok(self.until_stopped(fetched).await??)
    }

    /// Runs work that takes the CPU or the disk on a thread for such.
    pub async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Arc<Self>) -> Result<T, JobError> + Send + 'static,
    ) -> Result<T, JobError> {
        let attempt = self.clone();
        // Not given up when the work should stop: it sees that itself, and lets go of its files.
        tokio::task::spawn_blocking(move || work(&attempt)).await?
    }
}
