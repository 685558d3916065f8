//! `chancery identity`.

use std::path::Path;

use anyhow::{Context as _, Result};
use checkpoint::{Checkpoint, Root, Shard as ShardFile};
use shard_identity::{Shard, ShardManifest};

use crate::args::IdentityCommand;
use crate::files::parent;
use crate::outcome::Outcome;
use crate::progress;

/// Runs a command.
pub fn execute(command: IdentityCommand) -> Result<Outcome> {
    let IdentityCommand::Manifest { path } = command;
    let manifest = if path.is_dir() {
        manifest(Checkpoint::open(&path)?.shards())?
    } else {
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .with_context(|| format!("{} is no file name", path.display()))?;
        let shard = Root::open(parent(&path))
            .and_then(|root| ShardFile::open(&root, name))
            .with_context(|| path.display().to_string())?;
        manifest(std::slice::from_ref(&shard))?
    };
    Ok(Outcome::new(&manifest, manifest.to_json()))
}

/// Each shard is hashed through the descriptor that it was opened with.
fn manifest(files: &[ShardFile]) -> Result<ShardManifest> {
    let total = files.iter().map(|file| file.file().length()).sum();
    let bar = progress::bytes("hashing", total);
    let mut shards = Vec::with_capacity(files.len());
    for file in files {
        let digest = file.digest(|step| bar.inc(step))?;
        shards.push(Shard {
            filename: file_name(&digest.name).to_owned(),
            size_bytes: digest.bytes,
            sha256: digest.sha256,
        });
    }
    bar.finish_and_clear();
    Ok(ShardManifest::new(shards)?)
}

fn file_name(path: &str) -> &str {
    Path::new(path)
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or(path)
}
