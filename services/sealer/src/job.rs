//! One attempt at one job, from its source to its registered artifacts.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use api::client::Client;
use api::v1;
use custody::CustodyLog;
use identifiers::GrantId;
use key_client::{GrantClient, SealGrant};
use model_key::{GrantedSubkeys, SubkeyId};
use registry_domain::{
    DurableFile, FileFate, FileOutcome, JobRepository, JobResult, Lease, ManifestFile,
};
use sealing::{FileReport, Monitor, Outcome, SealPlan, Step};
use service_runtime::{Clock, Randomness};

use crate::checkpoint_stage;
use crate::container_stage::{self, CONTAINER};
use crate::failure::JobError;
use crate::keys::{self, KeyFacts};
use crate::meter::Meter;
use crate::order::Order;
use crate::registration::{self, Product};
use crate::resume::{Resume, manifest_file};
use crate::sources::SourceRoots;
use crate::stop::Stop;
use crate::upload;

/// What every job is worked on with.
pub struct Means {
    pub jobs: Arc<dyn JobRepository>,
    pub key_service: Client,
    pub grants: GrantClient,
    pub storage: Client,
    pub registry: Client,
    pub log: Arc<CustodyLog>,
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

/// What the outputs are made of.
struct Inputs {
    plan: Arc<SealPlan>,
    resume: Resume,
    key: KeyFacts,
    subkeys: GrantedSubkeys,
    durable: Vec<DurableFile>,
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
        let (plan, resume) = self.settle_source().await?;
        self.meter.phase("fetching keys");
        let key = self.key().await?;
        let grant = self.open_grant(&key, &resume).await?;
        let planned = plan.clone();
        let labels = self.blocking(move |_| Ok(planned.subkeys()?)).await?;
        let inputs = Inputs {
            plan,
            resume,
            key,
            subkeys: self.fetch(&grant, labels).await?,
            durable: self
                .until_stopped(self.means.jobs.durable_files(self.lease.job.id))
                .await??,
        };
        let (inputs, product) = self
            .blocking(move |attempt| attempt.produce(&inputs).map(|product| (inputs, product)))
            .await?;
        self.meter.phase("registering");
        let artifacts = registration::register(self, &inputs.key, &inputs.resume, &product).await?;
        Ok(JobResult {
            artifacts,
            files: product.outcomes,
        })
    }

    /// Opens the source and hashes its weights: the first attempt keeps what a later one compares.
    async fn settle_source(self: &Arc<Self>) -> Result<(Arc<SealPlan>, Resume), JobError> {
        let earlier = self.earlier()?;
        let (blob_salt, container_salt) = match &earlier {
            Some(earlier) => (earlier.blob_salt, earlier.container_salt),
            None => (self.means.randomness.bytes(), self.means.randomness.bytes()),
        };
        self.meter.phase("reading the source");
        let plan = self
            .blocking(move |attempt| attempt.plan(blob_salt))
            .await?;
        let plan = Arc::new(plan);
        let hashed = plan.clone();
        if let Some(earlier) = earlier {
            self.meter.phase("comparing the source");
            let source = earlier.source.clone();
            self.blocking(move |attempt| {
                Ok(hashed.check_source(&source, &attempt.monitor(&|_| {}))?)
            })
            .await?;
            return Ok((plan, earlier));
        }
        self.meter.phase("hashing the source");
        let source = self
            .blocking(move |attempt| Ok(hashed.source_manifest(&attempt.monitor(&|_| {}))?))
            .await?;
        let resume = Resume {
            source,
            blob_salt,
            container_salt,
        };
        self.save(&resume).await?;
        Ok((plan, resume))
    }

    /// Makes and stores every output.
    fn produce(self: &Arc<Self>, inputs: &Inputs) -> Result<Product, JobError> {
        let Inputs {
            plan,
            resume,
            key,
            subkeys,
            durable,
        } = inputs;
        let earlier = durable.iter().find(|file| file.stage == CONTAINER);
        let need_local = self.order.container && earlier.is_none();
        let sealed = checkpoint_stage::seal(self, plan, subkeys, resume, durable, need_local)?;
        let container = match earlier {
            Some(file) => Some(container_stage::recorded(file)?),
            None if need_local => {
                let staged = &sealed.staged;
                Some(container_stage::seal(self, subkeys, key, resume, staged)?)
            }
            None => None,
        };
        self.meter.expect_left(0);
        Ok(Product {
            outcomes: outcomes(plan, &sealed.report.files)?,
            report: sealed.report,
            checkpoint: sealed.files,
            container,
        })
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
    pub async fn open_grant(&self, key: &KeyFacts, resume: &Resume) -> Result<SealGrant, JobError> {
        let container_salt = self.order.container.then_some(resume.container_salt);
        let request = v1::OpenSealGrantRequest {
            job_id: self.lease.job.id.to_string(),
            fence: self.lease.fence,
            key_id: key.id.to_string(),
            source_aggregate: resume.source.aggregate().to_string(),
            scheme: self.order.scheme_message().into(),
            transform: self.order.transform_message().into(),
            lock: self.order.lock_message().into(),
            blob_salt: resume.blob_salt.to_vec(),
            container_salt: container_salt.map(Vec::from).unwrap_or_default(),
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

    fn plan(&self, blob_salt: [u8; 16]) -> Result<SealPlan, JobError> {
        let root = self.means.sources.open(&self.order.source)?;
        let plan = SealPlan::from_root(root, self.order.seal_options(blob_salt))?;
        if plan.scheme() != self.order.scheme {
            let (is, asked) = (plan.scheme().name(), self.order.scheme.name());
            let message = format!("the source is sealed under scheme {is}, not {asked}");
            return Err(JobError::refused("options-refused", message));
        }
        if self.order.container && plan.is_pipeline() {
            let message = "a pipeline does not become a container; ask for the checkpoint only";
            return Err(JobError::refused("options-refused", message));
        }
        Ok(plan)
    }

    fn earlier(&self) -> Result<Option<Resume>, JobError> {
        let document = self.lease.job.resume.clone();
        let earlier = document.map(serde_json::from_value).transpose();
        earlier.map_err(|_| JobError::refused("state-damaged", "the resume document is damaged"))
    }

    async fn save(&self, resume: &Resume) -> Result<(), JobError> {
        let document = serde_json::to_value(resume);
        let document =
            document.map_err(|error| JobError::refused("sealer-failed", error.to_string()))?;
        let saved = self.means.jobs.save_resume(&self.lease, &document);
        Ok(self.until_stopped(saved).await??)
    }

    async fn key(&self) -> Result<KeyFacts, JobError> {
        let found = keys::find(&self.means.key_service, &self.order.key);
        let found = self.until_stopped(found).await?;
        let key = found.map_err(|status| JobError::of_key_service(&status))?;
        if key.is_active {
            return Ok(key);
        }
        Err(JobError::refused(
            "key-refused",
            "the key is disabled or destroyed",
        ))
    }
}

/// What became of each file of the source.
fn outcomes(plan: &SealPlan, reports: &[FileReport]) -> Result<Vec<FileOutcome>, JobError> {
    let mut outcomes = Vec::with_capacity(reports.len());
    for report in reports {
        let (fate, why) = match &report.outcome {
            Outcome::Sealed => (FileFate::Sealed, ""),
            Outcome::Copied => (FileFate::Copied, ""),
            Outcome::Secret => (FileFate::Sealed, "in the trusted blob"),
            Outcome::LeftOut(reason) => (FileFate::LeftOut, *reason),
            // Files that only the output has are no business of the source's.
            Outcome::Written if plan.has_source_file(&report.path)? => {
                (FileFate::Copied, "rewritten")
            }
            Outcome::Written => continue,
        };
        outcomes.push(FileOutcome {
            path: report.path.clone(),
            fate,
            why: why.to_owned(),
        });
    }
    Ok(outcomes)
}
