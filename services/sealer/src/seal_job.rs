//! A source to its registered artifacts.

use std::sync::Arc;

use model_key::GrantedSubkeys;
use receipt::KeyRef;
use registry_domain::{DurableFile, FileFate, FileOutcome, JobResult};
use sealing::{FileReport, Outcome, SealPlan};

use crate::checkpoint_stage;
use crate::container_stage::{self, CONTAINER};
use crate::failure::JobError;
use crate::job::Attempt;
use crate::keys;
use crate::order::SealOrder;
use crate::registration::{self, Product};
use crate::resume::Resume;

/// What the outputs are made of.
struct Inputs {
    plan: Arc<SealPlan>,
    resume: Resume,
    key: KeyRef,
    subkeys: GrantedSubkeys,
    durable: Vec<DurableFile>,
}

/// Seals the order's source. Whatever an earlier attempt made durable is not done again.
pub async fn run(attempt: &Arc<Attempt>, order: &SealOrder) -> Result<JobResult, JobError> {
    let (plan, resume) = settle_source(attempt, order).await?;
    attempt.meter.phase("fetching keys");
    let key = key(attempt, order).await?;
    let grant = attempt.open_grant(&key, &resume.terms(order)).await?;
    let planned = plan.clone();
    let labels = attempt.blocking(move |_| Ok(planned.subkeys()?)).await?;
    let inputs = Inputs {
        plan,
        resume,
        key,
        subkeys: attempt.fetch(&grant, labels).await?,
        durable: attempt.durable_files().await?,
    };
    let produced = order.clone();
    let (inputs, product) = attempt
        .blocking(move |attempt| {
            let product = produce(attempt, &produced, &inputs)?;
            Ok((inputs, product))
        })
        .await?;
    attempt.meter.phase("registering");
    let artifacts =
        registration::register(attempt, order, &inputs.key, &inputs.resume, &product).await?;
    Ok(JobResult {
        artifacts,
        files: product.outcomes,
        comparison: None,
    })
}

/// Opens the source and hashes its weights: the first attempt keeps what a later one compares.
async fn settle_source(
    attempt: &Arc<Attempt>,
    order: &SealOrder,
) -> Result<(Arc<SealPlan>, Resume), JobError> {
    let earlier = earlier(attempt)?;
    let (blob_salt, container_salt) = match &earlier {
        Some(earlier) => (earlier.blob_salt, earlier.container_salt),
        None => (
            attempt.means.randomness.bytes(),
            attempt.means.randomness.bytes(),
        ),
    };
    attempt.meter.phase("reading the source");
    let planned = order.clone();
    let plan = attempt
        .blocking(move |attempt| plan(attempt, &planned, blob_salt))
        .await?;
    let plan = Arc::new(plan);
    let hashed = plan.clone();
    if let Some(earlier) = earlier {
        attempt.meter.phase("comparing the source");
        let source = earlier.source.clone();
        attempt
            .blocking(move |attempt| Ok(hashed.check_source(&source, &attempt.monitor(&|_| {}))?))
            .await?;
        return Ok((plan, earlier));
    }
    attempt.meter.phase("hashing the source");
    let source = attempt
        .blocking(move |attempt| Ok(hashed.source_manifest(&attempt.monitor(&|_| {}))?))
        .await?;
    let resume = Resume {
        source,
        blob_salt,
        container_salt,
    };
    save(attempt, &resume).await?;
    Ok((plan, resume))
}

/// Makes and stores every output.
fn produce(
    attempt: &Arc<Attempt>,
    order: &SealOrder,
    inputs: &Inputs,
) -> Result<Product, JobError> {
    let Inputs {
        plan,
        resume,
        key,
        subkeys,
        durable,
    } = inputs;
    let earlier = durable.iter().find(|file| file.stage == CONTAINER);
    let need_local = order.container && earlier.is_none();
    let sealed =
        checkpoint_stage::seal(attempt, order, plan, subkeys, resume, durable, need_local)?;
    let container = match earlier {
        Some(file) => Some(container_stage::recorded(file)?),
        None if need_local => {
            let staged = &sealed.staged;
            Some(container_stage::seal(
                attempt, order, subkeys, key, resume, staged,
            )?)
        }
        None => None,
    };
    attempt.meter.expect_left(0);
    Ok(Product {
        outcomes: outcomes(plan, &sealed.report.files)?,
        report: sealed.report,
        checkpoint: sealed.files,
        container,
    })
}

fn plan(attempt: &Attempt, order: &SealOrder, blob_salt: [u8; 16]) -> Result<SealPlan, JobError> {
    let root = attempt.means.sources.open(&order.source)?;
    let plan = SealPlan::from_root(root, order.seal_options(blob_salt))?;
    if plan.scheme() != order.scheme {
        let (is, asked) = (plan.scheme().name(), order.scheme.name());
        let message = format!("the source is sealed under scheme {is}, not {asked}");
        return Err(JobError::refused("options-refused", message));
    }
    if order.container && plan.is_pipeline() {
        let message = "a pipeline does not become a container; ask for the checkpoint only";
        return Err(JobError::refused("options-refused", message));
    }
    Ok(plan)
}

fn earlier(attempt: &Attempt) -> Result<Option<Resume>, JobError> {
    let document = attempt.lease.job.resume.clone();
    let earlier = document.map(serde_json::from_value).transpose();
    earlier.map_err(|_| JobError::refused("state-damaged", "the resume document is damaged"))
}

async fn save(attempt: &Attempt, resume: &Resume) -> Result<(), JobError> {
    let document = serde_json::to_value(resume);
    let document =
        document.map_err(|error| JobError::refused("sealer-failed", error.to_string()))?;
    let saved = attempt.means.jobs.save_resume(&attempt.lease, &document);
    Ok(attempt.until_stopped(saved).await??)
}

async fn key(attempt: &Attempt, order: &SealOrder) -> Result<KeyRef, JobError> {
    let found = keys::find(&attempt.means.key_service, &order.key);
    let found = attempt.until_stopped(found).await?;
    let key = found.map_err(|status| JobError::of_key_service(&status))?;
    if key.is_active {
        return Ok(key.key);
    }
    Err(JobError::refused(
        "key-refused",
        "the key is disabled or destroyed",
    ))
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
