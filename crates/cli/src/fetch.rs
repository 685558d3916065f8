//! `chancery artifacts fetch`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use api::client::{Client, Retry, explain, is_transient};
use api::v1::{ArtifactKind, GetBlobRequest};
use checkpoint::StagedDir;
use indicatif::ProgressBar;
use registry_domain::ManifestFile;
use serde::Serialize;
use service_runtime::{Randomness, SystemRandomness};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

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

/// Writes one file. Its pieces are written and hashed on a thread of their own.
async fn store(
    storage: &Client,
    out: &Arc<StagedDir>,
    file: &ManifestFile,
    bar: &ProgressBar,
) -> Result<()> {
    let (pieces, mut arriving) = mpsc::channel(PIECES_AHEAD);
    let (out, path) = (out.clone(), file.path.clone());
    let writer = spawn_blocking(move || {
        out.write_parts(&path, |write| {
            while let Some(piece) = arriving.blocking_recv() {
                let piece: api::v1::GetBlobResponse = piece;
                write(&piece.data)?;
            }
            Ok(())
        })
    });
    let received = receive(storage, file, &pieces, bar).await;
    drop(pieces);
    // A full disk says more than the broken channel that follows from it.
    let written = writer.await.context("the writer failed")??;
    received?;
    ensure!(
        written.bytes == file.size && written.sha256 == file.sha256,
        "storage gave other bytes than the manifest lists: SHA-256 {} for {}",
        written.sha256,
        file.sha256
    );
    Ok(())
}

/// Hands on a blob's pieces in order, reading on where a stream broke off.
async fn receive(
    storage: &Client,
    file: &ManifestFile,
    pieces: &mpsc::Sender<api::v1::GetBlobResponse>,
    bar: &ProgressBar,
) -> Result<()> {
    let randomness: &dyn Randomness = &SystemRandomness;
    let retry = Retry::new(u64::from_le_bytes(randomness.bytes()));
    let (mut got, mut failures) = (0, 0);
    while got < file.size {
        let before = got;
        let error = match stream(storage, file, &mut got, pieces, bar).await {
            Ok(()) => anyhow::anyhow!("storage ended its answer at {got} of {} bytes", file.size),
            Err(error) => match error.downcast_ref::<tonic::Status>() {
                Some(status) if is_transient(status) => {
                    anyhow::anyhow!("{}", explain(status))
                }
                _ => return Err(error),
            },
        };
        failures = if got > before { 1 } else { failures + 1 };
        if got < file.size {
            if failures >= Retry::ATTEMPTS {
                return Err(error);
            }
            tokio::time::sleep(retry.pause(failures)).await;
        }
    }
    Ok(())
}

async fn stream(
    storage: &Client,
    file: &ManifestFile,
    got: &mut u64,
    pieces: &mpsc::Sender<api::v1::GetBlobResponse>,
    bar: &ProgressBar,
) -> Result<()> {
    let request = GetBlobRequest {
        digest: file.sha256.to_string(),
        offset: *got,
        length: file.size - *got,
        capability: String::new(),
    };
    let mut service = storage.storage_service();
    let silent = || format!("storage sent nothing for {} seconds", STALL.as_secs());
    let answers = timeout(STALL, service.get_blob(request));
    let mut answers = answers.await.with_context(silent)??.into_inner();
    while let Some(piece) = timeout(STALL, answers.message())
        .await
        .with_context(silent)??
    {
        let length = piece.data.len() as u64;
        ensure!(
            length <= file.size - *got,
            "storage sends more than the {} bytes that the manifest lists",
            file.size
        );
        pieces
            .send(piece)
            .await
            .ok()
            .context("the file cannot be written")?;
        *got += length;
        bar.inc(length);
    }
    Ok(())
}

/// Pieces of at most 1 MiB that wait for the disk.
const PIECES_AHEAD: usize = 8;
/// Longest silence of a stream.
const STALL: Duration = Duration::from_secs(30);
