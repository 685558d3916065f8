//! `chancery artifacts fetch`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use api::client::Client;
use api::v1::ArtifactKind;
use checkpoint::StagedDir;
use indicatif::ProgressBar;
use registry_domain::ManifestFile;
use serde::Serialize;

use crate::artifacts::verified;
use crate::context::{Context, Person, Workload};
use crate::outcome::{Outcome, bytes};
use crate::progress;

#[derive(Serialize)]
struct FetchView {
    model: String,
    digest: String,
    folder: String,
    bytes: u64,
    files: Vec<ManifestFile>,
}

/// Downloads every file that an artifact's manifest lists. The manifest's signature is verified
/// first, and each file's SHA-256 as it arrives; the folder appears whole or not at all.
///
/// The registry is read as the platform, the blobs as the operator: the role table lets no platform
/// read blobs.
pub async fn fetch(context: &Context, artifact: String, output: PathBuf) -> Result<Outcome> {
    let (artifact, manifest) = verified(context, artifact, ArtifactKind::Checkpoint).await?;
    let storage = context.client(Workload::StorageNode, Person::Operator)?;
    let total = manifest.files.iter().map(|file| file.size).sum();
    let out = Arc::new(StagedDir::create(&output)?);
    out.require_space(total)?;
    let bar = progress::bytes("fetching", total);
    let download = async {
        for file in &manifest.files {
            store(&storage, &out, file, &bar)
                .await
                .with_context(|| file.path.clone())?;
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::select! {
        done = download => done?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
    }
    bar.finish_and_clear();
    Arc::into_inner(out)
        .context("the output is still being written")?
        .commit()?;
    let view = FetchView {
        model: artifact.model,
        digest: artifact.digest,
        folder: output.display().to_string(),
        bytes: total,
        files: manifest.files,
    };
    let text = format!(
        "{} files, {}, verified, in {}",
        view.files.len(),
        bytes(total),
        view.folder
    );
    Ok(Outcome::new(&view, text))
}

/// Writes one file, hashed as it is written.
async fn store(
    storage: &Client,
    out: &Arc<StagedDir>,
    file: &ManifestFile,
    bar: &ProgressBar,
) -> Result<()> {
    let (out, path, bar) = (out.clone(), file.path.clone(), bar.clone());
    let digest = file.sha256.to_string();
    let written = storage.read_blob(&digest, file.size, move |pieces| {
        out.write_parts(&path, |write| {
            for piece in pieces {
                write(&piece.data)?;
                bar.inc(piece.data.len() as u64);
            }
            Ok(())
        })
    });
    let written = written.await??;
    ensure!(
        written.bytes == file.size && written.sha256 == file.sha256,
        "storage gave other bytes than the manifest lists: SHA-256 {} for {}",
        written.sha256,
        file.sha256
    );
    Ok(())
}
