//! Scheme `l1` for a MiniMax H3 pipeline.

use checkpoint::Root;
use checkpoint::json::Value;
use model_key::Component as KeyComponent;
use weight_transform::{H3Latent, minimax_h3_text_encoder, minimax_h3_transformer, minimax_h3_vae};

use super::{
    FilePlan, Metadata, PlannedFile, Scheme, SealOptions, Tokens, lock_the_rest, open_component,
    pipeline_files, read_config, read_vocabulary, usual_plan, vocabulary_entries,
};
use crate::component::{Component, Output};
use crate::error::SealingError;
use crate::files;

pub(super) fn scheme(
    root: &Root,
    index: &Value,
    options: &SealOptions,
) -> Result<Scheme, SealingError> {
    if options.client {
        return Err(SealingError::Options {
            problem: "the client scheme is for Z-Image pipelines",
        });
    }
    let partition = index
        .get("_minimax_h3")
        .and_then(|part| part.get("partition"))
        .cloned()
        .ok_or_else(|| SealingError::File {
            file: "model_index.json".to_owned(),
            problem: "_minimax_h3.partition is missing".to_owned(),
        })?;
    let vocabulary = read_vocabulary(root, "tokenizer/tokenizer.json")?;
    let text = read_config(root, "text_encoder/config.json")?;
    let transformer = read_config(root, "transformer/config.json")?;
    let video = H3Latent::Video.channels(&transformer)?;
    let audio = H3Latent::Audio.channels(&transformer)?;
    let plans = [
        (
            "text_encoder",
            minimax_h3_text_encoder(&text, options.transform, vocabulary)?,
        ),
        (
            "transformer",
            minimax_h3_transformer(&transformer, &text, options.transform)?,
        ),
        (VIDEO, minimax_h3_vae(H3Latent::Video, video)),
        (AUDIO, minimax_h3_vae(H3Latent::Audio, audio)),
    ];
    let mut components = Vec::new();
    for (folder, plan) in &plans {
        let checkpoint = open_component(root, folder)?;
        let output = Output::SameFiles;
        components.push(Component::new(
            folder,
            checkpoint,
            plan,
            output,
            options.lock,
        )?);
    }
    let entries = pipeline_files(root)?;
    lock_the_rest(root, &entries, options.lock, &mut components)?;
    let tokens = Tokens {
        component: KeyComponent::H3TextEncoder,
        vocabulary,
    };
    let mut planned = Vec::new();
    for entry in entries {
        let path = entry.path.as_str();
        let folder = files::folder_of(path);
        let secret = matches!(folder, "tokenizer" | "processor" | "text_encoder");
        let plan = match files::base_name(path) {
            "tokenizer.json" if secret => FilePlan::Tokenizer(root.read_json(path)?, tokens),
            "vocab.json" if secret => FilePlan::VocabularyFile(root.read_json(path)?, tokens),
            "config.json" if folder == VIDEO => {
                FilePlan::LatentStatistics(root.read_json(path)?, H3Latent::Video, video)
            }
            "config.json" if folder == AUDIO => {
                FilePlan::LatentStatistics(root.read_json(path)?, H3Latent::Audio, audio)
            }
            _ => usual_plan(path, &components),
        };
        planned.push(PlannedFile {
            path: entry.path,
            plan,
        });
    }
    let mut after = vec![
        ("architecture", "MiniMaxH3".into()),
        ("partition", partition),
    ];
    after.extend(vocabulary_entries(vocabulary));
    Ok(Scheme {
        components,
        files: planned,
        blob: "trusted.kllm",
        metadata: Metadata::Pipeline {
            before: vec![
                ("scheme", "l1".into()),
                ("transform", options.transform.name().into()),
            ],
            after,
        },
    })
}

const VIDEO: &str = "video_vae";
const AUDIO: &str = "audio_vae";
