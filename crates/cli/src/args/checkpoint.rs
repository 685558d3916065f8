//! The commands over sealed checkpoint folders.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{KeyArgs, LockArg, OptionalKeyArgs, TransformArg};

/// `chancery checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Seal a checkpoint folder.
    Seal(CheckpointSealArgs),
    /// Take the weight lock off a sealed folder, or off one of its tensors.
    Unlock {
        /// The sealed folder.
        source: PathBuf,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
        /// Only this tensor, as a safetensors file; in a pipeline `FOLDER/NAME`.
        #[arg(long, value_name = "NAME")]
        tensor: Option<String>,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Replace lock v1 by v2.
    Relock {
        /// The sealed folder.
        source: PathBuf,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Compare a sealed folder with what was sealed.
    Verify {
        /// The sealed folder.
        sealed: PathBuf,
        /// The checkpoint folder that was sealed.
        #[arg(long)]
        base: PathBuf,
        /// Largest difference of an orth-sealed value, in units in the last place.
        #[arg(long, default_value_t = 1)]
        ulps: u64,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Write what an untrusted host may have.
    Cloud {
        /// The sealed folder.
        sealed: PathBuf,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        key: OptionalKeyArgs,
    },
    /// What a sealed folder says about itself.
    Show {
        /// The sealed folder.
        folder: PathBuf,
    },
    /// Whether a folder is sealed, and how.
    Recognise {
        /// The folder.
        folder: PathBuf,
    },
    /// Manifests of published folders.
    #[command(subcommand)]
    Catalog(CatalogCommand),
    /// Compare a folder with its store record.
    Check {
        /// The sealed folder.
        folder: PathBuf,
        /// Write the record instead.
        #[arg(long)]
        write: bool,
    },
}

/// Arguments of `checkpoint seal`.
#[derive(Debug, Args)]
pub struct CheckpointSealArgs {
    /// The checkpoint folder.
    pub source: PathBuf,
    /// Where to write; it must not exist.
    #[arg(short, long)]
    pub output: PathBuf,
    #[command(flatten)]
    pub key: KeyArgs,
    /// The transform.
    #[arg(long, value_enum)]
    pub transform: TransformArg,
    /// The weight lock.
    #[arg(long, value_enum)]
    pub lock: LockArg,
    /// For Z-Image: the client scheme instead of the split one.
    #[arg(long)]
    pub client: bool,
}

/// `chancery checkpoint catalog`.
#[derive(Debug, Subcommand)]
pub enum CatalogCommand {
    /// Write a sealed folder's `kllm-manifest.json`.
    Write(CatalogWriteArgs),
    /// Compare a published folder with its `kllm-manifest.json`.
    Check {
        /// The published folder.
        folder: PathBuf,
    },
}

/// Arguments of `checkpoint catalog write`.
#[derive(Debug, Args)]
pub struct CatalogWriteArgs {
    /// The sealed folder.
    pub folder: PathBuf,
    #[command(flatten)]
    pub entry: CatalogEntryArgs,
}

/// What a catalog says about a published model.
#[derive(Debug, Args)]
pub struct CatalogEntryArgs {
    /// The model's name in the catalog.
    #[arg(long)]
    pub name: String,
    /// Repository of the base.
    #[arg(long)]
    pub repo_id: String,
    /// Revision of the base.
    #[arg(long)]
    pub revision: String,
    /// Licence of the base.
    #[arg(long)]
    pub license: String,
    /// What the model takes and gives.
    #[arg(long, default_value = "text")]
    pub modality: String,
    /// Published for client-keyed serving.
    #[arg(long)]
    pub client: bool,
    /// Version of the catalog key.
    #[arg(long, default_value_t = 1)]
    pub key_version: u32,
    /// Version of the kLLM tools that read the folder.
    #[arg(long, value_name = "VERSION", default_value = "0.1.0")]
    pub kllm: String,
    /// Days until the model is published.
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    pub embargo_days: u32,
    /// Access to the base is gated.
    #[arg(long)]
    pub gated: bool,
}

/// Arguments of `serve-view`.
#[derive(Debug, Args)]
pub struct ServeViewArgs {
    /// The sealed folder, without a weight lock.
    pub folder: PathBuf,
    #[command(flatten)]
    pub key: KeyArgs,
    /// A folder in memory to make the view in; XDG_RUNTIME_DIR or /dev/shm when not given.
    #[arg(long = "in", value_name = "DIR")]
    pub parent: Option<PathBuf>,
    /// Link the weights into the view, for engines that take one folder; multimodal models have
    /// them linked always.
    #[arg(long)]
    pub link_weights: bool,
}
