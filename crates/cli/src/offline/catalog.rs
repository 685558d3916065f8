//! `chancery checkpoint catalog`.

use std::io::Write as _;

use anyhow::{Context as _, Result};
use sealing::{CATALOG_MANIFEST, CatalogEntry};
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
        name: arguments.entry.name.clone(),
        repo_id: arguments.entry.repo_id.clone(),
        revision: arguments.entry.revision.clone(),
        license: arguments.entry.license.clone(),
        modality: arguments.entry.modality.clone(),
        client: arguments.entry.client,
        key_version: arguments.entry.key_version,
        kllm: arguments.entry.kllm.clone(),
        embargo_days: arguments.entry.embargo_days,
        gated: arguments.entry.gated,
    };
    let text = sealing::catalog_manifest(&arguments.folder, &entry)?;
    let path = arguments.folder.join(CATALOG_MANIFEST);
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
