//! `chancery checkpoint catalog`.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use sealing::CatalogEntry;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::args::{CatalogCommand, CatalogWriteArgs};
use crate::files::StagedFile;
use crate::offline::checkpoint::checked;
use crate::outcome::Outcome;

/// Runs a command.
pub fn execute(command: &CatalogCommand) -> Result<Outcome> {
    match command {
        CatalogCommand::Write(arguments) => write(arguments),
        CatalogCommand::Check { folder } => {
            Ok(checked(&sealing::check_catalog(folder)?, "the manifest"))
        }
    }
}

#[derive(Serialize)]
struct ManifestView {
    path: String,
    sha256: String,
    manifest: serde_json::Value,
}

fn write(arguments: &CatalogWriteArgs) -> Result<Outcome> {
    let entry = CatalogEntry {
        name: arguments.name.clone(),
        repo_id: arguments.repo_id.clone(),
        revision: arguments.revision.clone(),
        license: arguments.license.clone(),
        modality: arguments.modality.clone(),
        client: arguments.client,
        key_version: arguments.key_version,
        kllm: arguments.kllm.clone(),
        embargo_days: arguments.embargo_days,
        gated: arguments.gated,
    };
    let text = sealing::catalog_manifest(&arguments.folder, &entry)?;
    let path = arguments.folder.join("kllm-manifest.json");
    let mut file = StagedFile::create(&path)?;
    file.writer()
        .write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.finish()?;
    let manifest: serde_json::Value = serde_json::from_str(&text).context("the manifest")?;
    let listed = manifest["files"].as_object().map_or(0, |files| files.len());
    let line = format!("{listed} files listed in {}", path.display());
    let view = ManifestView {
        path: path.display().to_string(),
        sha256: hex::encode(Sha256::digest(text.as_bytes())),
        manifest,
    };
    Ok(Outcome::new(&view, line))
}
