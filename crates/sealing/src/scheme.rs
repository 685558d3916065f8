//! Which scheme a source directory is sealed under, and what each scheme does with its files.

mod language_model;
mod minimax_h3;
mod z_image;

use checkpoint::json::Value;
use checkpoint::{Checkpoint, FileEntry, Root};
use model_key::{Component as KeyComponent, SubkeyId};
use weight_lock::Version;
use weight_transform::{H3Latent, Transform, Vocabulary};

use crate::component::{Component, Output};
use crate::error::SealingError;
use crate::files::{self, Outcome};
use crate::metadata::{CONFIG, PIPELINE_FILE, SealMetadata};

/// How to seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SealOptions {
    /// The algorithm. A split pipeline takes permutations only.
    pub transform: Transform,
    /// The lock on the weights.
    pub lock: Option<Version>,
    /// For Z-Image: the client scheme instead of the split one.
    pub client: bool,
    /// The trusted blob's salt: fresh random bytes for every seal.
    pub salt: [u8; 16],
}

/// What a scheme makes of a source directory. No key has been used yet.
pub(crate) struct Scheme {
    pub components: Vec<Component>,
    pub files: Vec<PlannedFile>,
    /// Where the trusted blob goes.
    pub blob: &'static str,
    pub metadata: Metadata,
}

/// A file beside the weights.
pub(crate) struct PlannedFile {
    pub path: String,
    pub plan: FilePlan,
}

pub(crate) enum FilePlan {
    /// As it is.
    Copy,
    /// Not in the output.
    LeaveOut(&'static str),
    /// Weights: a component's.
    Weights,
    /// Replaced by one that is written.
    Replaced,
    /// Into the blob, the vocabulary of `model.vocab` permuted.
    Tokenizer(Value, Tokens),
    /// Into the blob, its ids permuted.
    VocabularyFile(Value, Tokens),
    /// `latents_mean` and `latents_std` lists of this length permuted.
    LatentStatistics(Value, H3Latent, usize),
}

#[derive(Clone, Copy)]
pub(crate) struct Tokens {
    pub component: KeyComponent,
    pub vocabulary: Vocabulary,
}

impl Tokens {
    pub(crate) fn subkey(self) -> SubkeyId {
        model_key::permutation_id(
            self.component,
            &model_key::Path::new(model_key::Site::Vocab),
        )
    }
}

/// The seal metadata but for fingerprint and lock.
pub(crate) enum Metadata {
    /// In `config.json`, whose value this is.
    Config {
        config: Value,
        before: Entries,
        after: Entries,
    },
    /// In `kllm.json`.
    Pipeline { before: Entries, after: Entries },
}

pub(crate) type Entries = Vec<(&'static str, Value)>;

impl Scheme {
    /// Its kind, as the metadata will say.
    pub(crate) fn kind(&self, options: &SealOptions) -> crate::metadata::Scheme {
        use crate::metadata::Scheme::{Client, L1, Split};
        if self.blob == SPLIT_BLOB {
            Split
        } else if options.client {
            Client
        } else {
            L1
        }
    }

    pub(crate) fn of(root: &Root, options: &SealOptions) -> Result<Self, SealingError> {
        if let Some(sealed) = SealMetadata::recognise(root)? {
            return Err(SealingError::AlreadySealed { file: sealed.file });
        }
        if root.has_file("trusted.kllm")? {
            return Err(SealingError::AlreadySealed {
                file: "trusted.kllm".to_owned(),
            });
        }
        if !root.has_file(MODEL_INDEX)? {
            return language_model::scheme(root, options);
        }
        let index = root.read_json(MODEL_INDEX)?;
        let class = index
            .get("_class_name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if class.contains("MiniMaxH3") {
            minimax_h3::scheme(root, &index, options)
        } else if class == "ZImagePipeline" {
            z_image::scheme(root, options)
        } else {
            Err(SealingError::File {
                file: MODEL_INDEX.to_owned(),
                problem: format!("_class_name: {class:?} is not a pipeline that can be sealed"),
            })
        }
    }
}

/// Reads a JSON file both as Python writes it back and as rules read it.
pub(crate) fn read_config(root: &Root, path: &str) -> Result<serde_json::Value, SealingError> {
    Ok(root.read_json(path)?.to_serde())
}

/// The tokenizer's vocabulary and its two secret files in `folder`.
pub(crate) fn read_vocabulary(root: &Root, path: &str) -> Result<Vocabulary, SealingError> {
    let tokenizer = root.read_json(path)?;
    Ok(Vocabulary::of_tokenizer(&tokenizer.to_serde())?)
}

pub(crate) fn open_component(root: &Root, folder: &str) -> Result<Checkpoint, SealingError> {
    Ok(Checkpoint::from_root(root.folder(folder)?)?)
}

/// Every file of a pipeline, caches skipped.
pub(crate) fn pipeline_files(root: &Root) -> Result<Vec<FileEntry>, SealingError> {
    let entries = root.list()?.into_iter();
    let entries: Vec<FileEntry> = entries
        .filter(|entry| !files::is_cache(&entry.path))
        .collect();
    for entry in &entries {
        files::require_regular(entry)?;
    }
    Ok(entries)
}

/// What becomes of a pipeline's file that its scheme says nothing of.
pub(crate) fn usual_plan(path: &str, components: &[Component]) -> FilePlan {
    let name = files::base_name(path);
    let folder = files::folder_of(path);
    if name.ends_with(".safetensors") {
        let counts = |component: &Component| {
            component.folder == folder
                && component
                    .checkpoint
                    .shards()
                    .iter()
                    .any(|shard| shard.name() == name)
        };
        if components.iter().any(counts) {
            return FilePlan::Weights;
        }
        if files::is_never_locked(folder) {
            return FilePlan::Copy;
        }
    }
    files::withheld(name).map_or(FilePlan::Copy, FilePlan::LeaveOut)
}

/// Components for the folders with weights that no scheme transforms: they are only locked.
pub(crate) fn lock_the_rest(
    root: &Root,
    entries: &[FileEntry],
    lock: Option<Version>,
    components: &mut Vec<Component>,
) -> Result<(), SealingError> {
    let plan = weight_transform::unchanged();
    for entry in entries
        .iter()
        .filter(|entry| entry.path.ends_with(".safetensors"))
    {
        let folder = files::folder_of(&entry.path);
        let known = components
            .iter()
            .any(|component| component.folder == folder);
        if known || files::is_never_locked(folder) {
            continue;
        }
        let checkpoint = if folder.is_empty() {
            Checkpoint::open(root.path())?
        } else {
            open_component(root, folder)?
        };
        components.push(Component::new(
            folder,
            checkpoint,
            &plan,
            Output::SameFiles,
            lock,
        )?);
    }
    Ok(())
}

impl FilePlan {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Copy => Outcome::Copied,
            Self::LeaveOut(reason) => Outcome::LeftOut(reason),
            Self::Weights => Outcome::Sealed,
            Self::Replaced | Self::LatentStatistics(..) => Outcome::Written,
            Self::Tokenizer(..) | Self::VocabularyFile(..) => Outcome::Secret,
        }
    }
}

impl Metadata {
    /// The file that holds the metadata, and its value.
    pub(crate) fn file(&self, fingerprint: &str, lock: Option<Version>) -> (&'static str, Value) {
        let object = |before: &Entries, after: &Entries| {
            let own = |entries: &Entries| -> Vec<(String, Value)> {
                entries
                    .iter()
                    .map(|(k, v)| ((*k).to_owned(), v.clone()))
                    .collect()
            };
            let mut all = own(before);
            all.push(("fingerprint".to_owned(), fingerprint.into()));
            all.extend(own(after));
            if let Some(version) = lock {
                all.push(("lock".to_owned(), version.to_string().into()));
            }
            Value::Object(all)
        };
        match self {
            Self::Config {
                config,
                before,
                after,
            } => {
                let mut config = config.clone();
                config.set("tie_word_embeddings", false.into());
                config.set("kllm", object(before, after));
                (CONFIG, config)
            }
            Self::Pipeline { before, after } => (PIPELINE_FILE, object(before, after)),
        }
    }
}

/// Entries about the vocabulary.
pub(crate) fn vocabulary_entries(vocabulary: Vocabulary) -> Entries {
    let mut entries: Entries = vec![("vocab_regular", (vocabulary.regular as u64).into())];
    if vocabulary.start != 0 {
        entries.push(("vocab_start", (vocabulary.start as u64).into()));
    }
    entries
}

const MODEL_INDEX: &str = "model_index.json";
/// Where the split scheme puts its trusted blob.
pub(crate) const SPLIT_BLOB: &str = "transformer/trusted.kllm";
