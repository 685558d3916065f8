//! The commands over seal jobs.

use clap::{Args, Subcommand, ValueEnum};

use super::{CatalogEntryArgs, LockArg, RequestArgs, TransformArg};

/// `chancery seal`.
#[derive(Debug, Subcommand)]
pub enum SealCommand {
    /// Submit a seal job.
    Submit(SubmitArgs),
    /// Register a copy with lock v2 of a checkpoint artifact with lock v1.
    Relock(DeriveArgs),
    /// Register a copy of a checkpoint artifact without its lock, or one tensor of it.
    Unlock {
        #[command(flatten)]
        derive: DeriveArgs,
        /// Only this tensor; in a pipeline `FOLDER/NAME`.
        #[arg(long, value_name = "NAME")]
        tensor: Option<String>,
    },
    /// Register what an untrusted machine may have of a checkpoint artifact.
    Cloud(DeriveArgs),
    /// Register a checkpoint artifact with a catalog manifest.
    Catalog {
        #[command(flatten)]
        derive: DeriveArgs,
        #[command(flatten)]
        entry: CatalogEntryArgs,
    },
    /// Compare a checkpoint artifact with what was sealed.
    Verify {
        #[command(flatten)]
        job: ArtifactJobArgs,
        /// The checkpoint folder that was sealed, relative to one of the sealer's source roots.
        #[arg(long)]
        base: String,
        /// Largest difference of an orth-sealed value, in units in the last place.
        #[arg(long, default_value_t = 1)]
        ulps: u32,
    },
    /// Compare every stored file of a checkpoint artifact with its manifest.
    Check(ArtifactJobArgs),
    /// Follow a job until it ends.
    Watch {
        /// The job's id.
        job: String,
    },
    /// One job as it is now.
    Show {
        /// The job's id.
        job: String,
    },
    /// Every job, newest first.
    List,
    /// Ask a job to stop.
    Cancel {
        /// The job's id.
        job: String,
    },
}

/// A job over a checkpoint artifact.
#[derive(Debug, Args)]
pub struct ArtifactJobArgs {
    /// An artifact's id, its digest, or a model's name (its newest checkpoint).
    pub artifact: String,
    /// Follow the job until it ends.
    #[arg(long)]
    pub watch: bool,
    #[command(flatten)]
    pub request: RequestArgs,
}

/// A job that makes an artifact of another.
#[derive(Debug, Args)]
pub struct DeriveArgs {
    #[command(flatten)]
    pub job: ArtifactJobArgs,
    /// The name that the new artifact gets in the registry.
    #[arg(long)]
    pub model: String,
}

/// Arguments of `seal submit`.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// A checkpoint folder, relative to one of the sealer's source roots.
    pub source: String,
    /// The key's id or name.
    #[arg(long)]
    pub key: String,
    /// The model's name in the registry.
    #[arg(long)]
    pub model: String,
    /// The transform.
    #[arg(long, value_enum, default_value = "perm")]
    pub transform: TransformArg,
    /// The weight lock of the checkpoint.
    #[arg(long, value_enum, default_value = "v2")]
    pub lock: LockArg,
    /// The sealing scheme. All but l1 need `--no-container`.
    #[arg(long, value_enum, default_value = "l1")]
    pub scheme: SchemeArg,
    /// Do not write a sealed checkpoint.
    #[arg(long)]
    pub no_checkpoint: bool,
    /// Do not write a sealed container.
    #[arg(long)]
    pub no_container: bool,
    /// The container's matrices become Q8_0.
    #[arg(long)]
    pub q8: bool,
    /// Follow the job until it ends.
    #[arg(long)]
    pub watch: bool,
    #[command(flatten)]
    pub request: RequestArgs,
}

/// A sealing scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemeArg {
    /// Decoders and MiniMax H3.
    L1,
    /// Z-Image, client keyed.
    Client,
    /// Z-Image, trusted and untrusted parts.
    D1,
}
