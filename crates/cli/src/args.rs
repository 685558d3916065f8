//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

mod checkpoint;
mod seal;

pub use checkpoint::{
    CatalogCommand, CatalogEntryArgs, CatalogWriteArgs, CheckpointCommand, CheckpointSealArgs,
    ServeViewArgs,
};
pub use seal::{ArtifactJobArgs, DeriveArgs, SchemeArg, SealCommand, SubmitArgs};

/// Seals models under keys, keeps the keys in one service, and runs what is sealed.
///
/// Exit codes: 0 done, 1 refused (one line of reason on standard error), 2 wrong use.
#[derive(Debug, Parser)]
#[command(name = "chancery", version, propagate_version = true)]
pub struct Cli {
    /// The state folder of `chancery up`.
    #[arg(
        long,
        global = true,
        env = "CHANCERY_STATE",
        default_value = ".state",
        value_name = "DIR"
    )]
    pub state: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the whole suite on this machine, on loopback.
    Up(UpArgs),
    /// Stop a suite that `up --detach` started.
    Down,
    /// Model keys.
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Seal jobs.
    #[command(subcommand)]
    Seal(SealCommand),
    /// Registered artifacts.
    #[command(subcommand)]
    Artifacts(ArtifactsCommand),
    /// Models on the inference node.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Generate text with a loaded model.
    Run(RunArgs),
    /// The custody log.
    #[command(subcommand)]
    Receipts(ReceiptsCommand),
    /// Stored blobs.
    #[command(subcommand)]
    Storage(StorageCommand),
    /// Sealed checkpoint folders, without services.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Prepare what a stock engine needs to serve a sealed folder, in memory, and print its command
    /// line. Without services.
    ServeView(ServeViewArgs),
    /// Trusted blobs, without services.
    #[command(subcommand)]
    Blob(BlobCommand),
    /// Convert a checkpoint folder or a GGUF file to a container.
    Convert(ConvertArgs),
    /// Containers, without services.
    #[command(subcommand)]
    Jlm(JlmCommand),
    /// What weights are these?
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Print a shell's completion script.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Arguments of `up`.
#[derive(Debug, Args)]
pub struct UpArgs {
    /// Return once everything is healthy; stop it with `chancery down`.
    #[arg(long)]
    pub detach: bool,
    /// A folder that seal jobs may read from; the working directory when none is given.
    #[arg(long = "source-root", value_name = "DIR")]
    pub source_roots: Vec<PathBuf>,
    /// The services' binaries; those beside this one when not given.
    #[arg(long, value_name = "DIR")]
    pub binaries: Option<PathBuf>,
}

/// `chancery keys`.
#[derive(Debug, Subcommand)]
pub enum KeysCommand {
    /// Make a model key in the key service.
    Create {
        /// Its name.
        name: String,
        #[command(flatten)]
        request: RequestArgs,
    },
    /// Take a key file into the key service, encrypted to it.
    Import {
        /// The key file.
        file: PathBuf,
        /// The name it gets.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        passphrase: PassphraseArgs,
        #[command(flatten)]
        request: RequestArgs,
    },
    /// Every key, newest first.
    List,
    /// One key.
    Show {
        /// A key's id or name.
        key: String,
    },
    /// Refuse every further use of a key.
    Disable {
        /// A key's id or name.
        key: String,
        /// Why, for the receipt.
        #[arg(long, default_value = "disabled by an operator")]
        reason: String,
        #[command(flatten)]
        request: RequestArgs,
    },
    /// Show a key file's kind and fingerprint. No services.
    Inspect {
        /// The key file.
        file: PathBuf,
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Make a key file. No services.
    Generate {
        /// Where to write it.
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
}

/// A caller's id of a request.
#[derive(Debug, Args)]
pub struct RequestArgs {
    /// Repeat a request with the id of the first try: it has one effect.
    #[arg(long, value_name = "UUID")]
    pub request_id: Option<String>,
}

/// Where a passphrase comes from.
#[derive(Debug, Args)]
pub struct PassphraseArgs {
    /// A file whose first line is the key file's passphrase.
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
}

/// A key file and its passphrase.
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The key file.
    #[arg(long, value_name = "KEYFILE")]
    pub key: PathBuf,
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// A key file, or none.
#[derive(Debug, Args)]
pub struct OptionalKeyArgs {
    /// The key file.
    #[arg(long, value_name = "KEYFILE")]
    pub key: Option<PathBuf>,
    #[command(flatten)]
    pub passphrase: PassphraseArgs,
}

/// A transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TransformArg {
    /// Signed permutations.
    Perm,
    /// Orthogonal matrices.
    Orth,
}

/// A weight lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LockArg {
    /// Not locked.
    None,
    /// AES-256-CTR.
    V1,
    /// ChaCha20.
    V2,
}

/// `chancery artifacts`.
#[derive(Debug, Subcommand)]
pub enum ArtifactsCommand {
    /// Every artifact, newest first.
    List {
        /// Only this model.
        #[arg(long)]
        model: Option<String>,
    },
    /// One artifact and what its manifest says.
    Show {
        /// An artifact's id, its digest, or a model's name (its container).
        artifact: String,
    },
    /// Download an artifact's files from the storage node, each verified by its SHA-256.
    Fetch {
        /// An artifact's id, its digest, or a model's name (its sealed checkpoint).
        artifact: String,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Withdraw an artifact from one node or from all.
    Revoke {
        /// An artifact's id, its digest, or a model's name (its newest container).
        artifact: String,
        /// The node's SPIFFE id; every node when not given.
        #[arg(long)]
        node: Option<String>,
        /// Why, for the receipt.
        #[arg(long, default_value = "revoked by an operator")]
        reason: String,
        #[command(flatten)]
        request: RequestArgs,
    },
}

/// `chancery model`.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Unlock and open a model.
    Load {
        /// A model's name or an artifact's digest.
        model: String,
        /// Bytes of pages kept resident; the node's default when not given.
        #[arg(long, default_value_t = 0)]
        budget: u64,
    },
    /// Drop a model's keys and pages.
    Unload {
        /// The model.
        model: String,
    },
    /// Every loaded model.
    List,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The loaded model.
    pub model: String,
    /// The prompt; read from standard input when not given.
    pub prompt: Option<String>,
    /// Render the prompt with the model's chat template, as the user's message.
    #[arg(long)]
    pub chat: bool,
    /// The prompt is token ids, separated by commas.
    #[arg(long, conflicts_with = "chat")]
    pub tokens: bool,
    /// Most tokens to generate.
    #[arg(long, default_value_t = 0)]
    pub max_tokens: u32,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Nucleus sampling.
    #[arg(long, default_value_t = 1.0)]
    pub top_p: f32,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Generate past stop tokens.
    #[arg(long)]
    pub ignore_stop: bool,
}

/// `chancery receipts`.
#[derive(Debug, Subcommand)]
pub enum ReceiptsCommand {
    /// Receipts by log index.
    List {
        /// First log index.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Only this event: sealed, unlocked, refused, ...
        #[arg(long)]
        event: Option<String>,
        /// Only this artifact digest.
        #[arg(long)]
        artifact: Option<String>,
        /// Only this SPIFFE id.
        #[arg(long)]
        actor: Option<String>,
    },
    /// One receipt with its statement.
    Show {
        /// A receipt's id or its log index.
        receipt: String,
    },
    /// Write receipts, proofs, the checkpoint and the trusted keys to a folder, for `verify`.
    Export {
        /// The folder; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Verify an exported folder offline; without one, the whole log as the registry gives it.
    Verify {
        /// A folder that `export` wrote.
        folder: Option<PathBuf>,
        /// The trusted keys; the folder's own, or the installation's, when not given.
        #[arg(long, value_name = "FILE")]
        trust: Option<PathBuf>,
        /// A file with the checkpoint held from before, which the log must extend. The newer one
        /// replaces it when the log verifies; the first time it is made.
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
    },
}

/// `chancery storage`.
#[derive(Debug, Subcommand)]
pub enum StorageCommand {
    /// Hash what is stored and report every difference.
    Scrub {
        /// Only this blob.
        #[arg(long)]
        digest: Option<String>,
    },
}

/// `chancery blob`.
#[derive(Debug, Subcommand)]
pub enum BlobCommand {
    /// The blob's payloads.
    List {
        /// The blob.
        file: PathBuf,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Write the blob's payloads to a private folder.
    Extract {
        /// The blob.
        file: PathBuf,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        key: KeyArgs,
    },
}

/// Arguments of `convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// A checkpoint folder or a GGUF file.
    pub source: PathBuf,
    /// The container to write.
    pub output: PathBuf,
    /// Matrices become Q8_0.
    #[arg(long)]
    pub q8: bool,
    /// Write bf16 as f32.
    #[arg(long)]
    pub widen_bf16: bool,
    /// Only say what would be written.
    #[arg(long)]
    pub plan: bool,
    /// The writer's fingerprint to record: HOST,DEVICE,WRITER,VRAM.
    #[arg(long, value_name = "HOST,DEVICE,WRITER,VRAM")]
    pub fingerprint: Option<String>,
}

/// `chancery jlm`.
#[derive(Debug, Subcommand)]
pub enum JlmCommand {
    /// Everything in a container.
    Dump {
        /// The container.
        file: PathBuf,
    },
    /// A container's regions and pages, for a person.
    Info {
        /// The container, plain or sealed.
        file: PathBuf,
        /// Draw the file's map here, as an SVG image; the file must not exist.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// What two containers differ in: fields, tensors, planes and pages. Exit code 0 when they are the
    /// same, 1 when they differ.
    Diff {
        /// A container, plain or sealed.
        left: PathBuf,
        /// The other one.
        right: PathBuf,
    },
    /// Seal a container.
    Seal {
        /// The plain container.
        file: PathBuf,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
        /// Base-weight aggregate of the source checkpoint; the container's own when not given.
        #[arg(long, value_name = "SHA256")]
        source_aggregate: Option<String>,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Open a sealed container.
    Open {
        /// The sealed container.
        file: PathBuf,
        /// Where to write; it must not exist.
        #[arg(short, long)]
        output: PathBuf,
        #[command(flatten)]
        key: KeyArgs,
    },
    /// Check a container: a plain one's structure, a sealed one's chunk root and, with the key,
    /// every chunk.
    Verify {
        /// The container.
        file: PathBuf,
        #[command(flatten)]
        key: OptionalKeyArgs,
    },
}

/// `chancery identity`.
#[derive(Debug, Subcommand)]
pub enum IdentityCommand {
    /// The base-weight manifest of a checkpoint folder or one weight file.
    Manifest {
        /// A folder or a `.safetensors` file.
        path: PathBuf,
    },
}
