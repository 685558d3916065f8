//! Files of a checkpoint that go to storage while the next ones are made.

use std::path::Path;
use std::sync::Arc;

use identifiers::Sha256Digest;
use registry_domain::{DurableFile, ManifestFile};
use tokio::task::JoinHandle;

use crate::failure::JobError;
use crate::job::{Attempt, OutputFile};
use crate::upload::digest;

/// Uploads, one under way at a time.
pub struct Uploads<'a> {
    attempt: &'a Arc<Attempt>,
    under_way: Option<JoinHandle<Result<ManifestFile, JobError>>>,
    pub stored: Vec<ManifestFile>,
}

impl<'a> Uploads<'a> {
    pub const fn new(attempt: &'a Arc<Attempt>) -> Self {
        Self {
            attempt,
            under_way: None,
            stored: Vec::new(),
        }
    }

    pub fn push(&mut self, file: OutputFile) -> Result<(), JobError> {
        self.settle()?;
        let attempt = self.attempt.clone();
        let upload = async move { attempt.store(file).await };
        self.under_way = Some(tokio::runtime::Handle::current().spawn(upload));
        Ok(())
    }

    fn settle(&mut self) -> Result<(), JobError> {
        if let Some(upload) = self.under_way.take() {
            // The upload itself ends when the work should stop.
            self.stored
                .push(tokio::runtime::Handle::current().block_on(upload)??);
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Vec<ManifestFile>, JobError> {
        self.settle()?;
        Ok(std::mem::take(&mut self.stored))
    }
}

impl Drop for Uploads<'_> {
    fn drop(&mut self) {
        if let Some(upload) = &self.under_way {
            upload.abort();
        }
    }
}

/// The file of that number, where an earlier attempt made it durable.
pub fn recorded(durable: &[DurableFile], number: u32) -> Option<&DurableFile> {
    let mut files = durable.iter();
    files.find(|file| file.stage == CHECKPOINT && file.number == number)
}

/// Whether a file is there with this content.
pub fn is_file(path: &Path, sha256: Sha256Digest, size: u64) -> Result<bool, JobError> {
    match digest(path) {
        Ok(found) => Ok(found == (sha256, size)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes what an attempt left unfinished.
pub fn remove_if_there(path: &Path) -> Result<(), JobError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// A place among a checkpoint's files.
pub fn number(at: usize) -> Result<u32, JobError> {
    u32::try_from(at).map_err(|_| JobError::refused("source-refused", "too many files"))
}

/// The stage's name in the record of durable files.
pub const CHECKPOINT: &str = "checkpoint";
