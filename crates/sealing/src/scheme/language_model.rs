//! Scheme `l1` for a language model.

use checkpoint::{Checkpoint, Root};
use model_key::Component as KeyComponent;
use weight_transform::{architecture_name, language_model};

use super::{
    FilePlan, Metadata, PlannedFile, Scheme, SealOptions, Tokens, read_vocabulary,
    vocabulary_entries,
};
use crate::component::{Component, Output};
use crate::error::SealingError;
use crate::files;
use crate::metadata::CONFIG;

pub(super) fn scheme(root: &Root, options: &SealOptions) -> Result<Scheme, SealingError> {
    if options.client {
        return Err(SealingError::Options {
            problem: "the client scheme is for Z-Image pipelines",
        });
    }
    let config = root.read_json(CONFIG)?;
    let rules = config.to_serde();
    let architecture = architecture_name(&rules)?.to_owned();
    let vocabulary = read_vocabulary(root, TOKENIZER)?;
    let plan = language_model(&rules, options.transform, vocabulary)?;
    let checkpoint = Checkpoint::open(root.path())?;
    let counted = |path: &str| checkpoint.shards().iter().any(|shard| shard.name() == path);
    let tokens = Tokens {
        component: KeyComponent::Model,
        vocabulary,
    };
    let mut planned = Vec::new();
    for entry in root.list()? {
        let path = entry.path.as_str();
        let nested = path.contains('/');
        if !nested {
            files::require_regular(&entry)?;
        }
        let plan = match path {
            _ if nested => FilePlan::LeaveOut("in a folder"),
            CONFIG => FilePlan::Replaced,
            TOKENIZER => FilePlan::Tokenizer(root.read_json(path)?, tokens),
            VOCABULARY => FilePlan::VocabularyFile(root.read_json(path)?, tokens),
            _ if counted(path) => FilePlan::Weights,
            _ if Some(path) == checkpoint.index_file() => FilePlan::Replaced,
            _ if path.ends_with(".safetensors.index.json") => {
                FilePlan::LeaveOut("an index of other weights")
            }
            _ => files::withheld(path).map_or(FilePlan::Copy, FilePlan::LeaveOut),
        };
        planned.push(PlannedFile {
            path: entry.path,
            plan,
        });
    }
    let component = Component::new("", checkpoint, &plan, Output::Sharded, options.lock)?;
    let mut after = vec![("base_architecture", architecture.into())];
    after.extend(vocabulary_entries(vocabulary));
    Ok(Scheme {
        components: vec![component],
        files: planned,
        blob: "trusted.kllm",
        metadata: Metadata::Config {
            config,
            before: vec![
                ("scheme", "l1".into()),
                ("transform", options.transform.name().into()),
            ],
            after,
        },
    })
}

const TOKENIZER: &str = "tokenizer.json";
const VOCABULARY: &str = "vocab.json";
