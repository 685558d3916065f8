//! Schemes `client` and `d1-v1` for a Z-Image pipeline.

use checkpoint::Root;
use checkpoint::json::Value;
use model_key::Component as KeyComponent;
use weight_transform::{
    z_image_client_transformer, z_image_split_transformer, z_image_text_encoder,
};

use super::{
    FilePlan, Metadata, PlannedFile, Scheme, SealOptions, Tokens, lock_the_rest, open_component,
    pipeline_files, read_config, read_vocabulary, usual_plan, vocabulary_entries,
};
use crate::component::{Component, Output};
use crate::error::SealingError;
use crate::files;

pub(super) fn scheme(root: &Root, options: &SealOptions) -> Result<Scheme, SealingError> {
    if options.client {
        client(root, options)
    } else {
        split(root, options)
    }
}

fn client(root: &Root, options: &SealOptions) -> Result<Scheme, SealingError> {
    let vocabulary = read_vocabulary(root, "tokenizer/tokenizer.json")?;
    let text = read_config(root, "text_encoder/config.json")?;
    let config = read_config(root, TRANSFORMER_CONFIG)?;
    let plans = [
        (
            "text_encoder",
            z_image_text_encoder(&text, options.transform, vocabulary)?,
        ),
        (
            "transformer",
            z_image_client_transformer(&config, &text, options.transform, vocabulary)?,
        ),
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
        component: KeyComponent::ZImageTextEncoder,
        vocabulary,
    };
    let mut planned = Vec::new();
    for entry in entries {
        let path = entry.path.as_str();
        let plan = match path {
            "tokenizer/tokenizer.json" => FilePlan::Tokenizer(root.read_json(path)?, tokens),
            "tokenizer/vocab.json" => FilePlan::VocabularyFile(root.read_json(path)?, tokens),
            _ if is_picture(files::base_name(path)) => FilePlan::LeaveOut("a picture"),
            _ => usual_plan(path, &components),
        };
        planned.push(PlannedFile {
            path: entry.path,
            plan,
        });
    }
    let channels = root.read_json(TRANSFORMER_CONFIG)?;
    let channels = channels.get("in_channels").cloned().unwrap_or(Value::Null);
    let mut after = vec![("architecture", "ZImagePipeline".into())];
    after.extend(vocabulary_entries(vocabulary));
    after.push(("latent_channels", channels));
    Ok(Scheme {
        components,
        files: planned,
        blob: "trusted.kllm",
        metadata: Metadata::Pipeline {
            before: vec![
                ("scheme", "client".into()),
                ("transform", options.transform.name().into()),
            ],
            after,
        },
    })
}

fn split(root: &Root, options: &SealOptions) -> Result<Scheme, SealingError> {
    let plan = z_image_split_transformer(&read_config(root, TRANSFORMER_CONFIG)?)?;
    let checkpoint = open_component(root, "transformer")?;
    let index = checkpoint
        .index_file()
        .map(|name| format!("transformer/{name}"));
    let output = Output::Single("untrusted.safetensors");
    let mut components = vec![Component::new(
        "transformer",
        checkpoint,
        &plan,
        output,
        options.lock,
    )?];
    let entries = pipeline_files(root)?;
    lock_the_rest(root, &entries, options.lock, &mut components)?;
    let planned = entries.into_iter().map(|entry| {
        let plan = if Some(&entry.path) == index.as_ref() {
            FilePlan::LeaveOut("the index of the unsealed transformer")
        } else {
            usual_plan(&entry.path, &components)
        };
        PlannedFile {
            path: entry.path,
            plan,
        }
    });
    Ok(Scheme {
        files: planned.collect(),
        components,
        blob: super::SPLIT_BLOB,
        metadata: Metadata::Pipeline {
            before: vec![("scheme", "d1-v1".into())],
            after: vec![("architecture", "ZImagePipeline".into())],
        },
    })
}

fn is_picture(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let ends = [".jpg", ".jpeg", ".png"]
        .iter()
        .any(|end| lower.ends_with(end));
    ends || lower.starts_with("teaser.")
}

const TRANSFORMER_CONFIG: &str = "transformer/config.json";
