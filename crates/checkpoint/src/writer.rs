//! Writes one safetensors file.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use identifiers::Sha256Digest;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::CheckpointError;
use crate::flush::Flusher;
use crate::header::LENGTH_FIELD;
use crate::plan::PlannedShard;

/// Writes a planned file: tensors in any order, whole or in parts, from any thread, each byte once.
///
/// The bytes go to `.<name>.partial` beside the file, which gets its name once everything is written
/// and synced, which starts while later ones are made; dropping an unfinished writer removes it. The file's SHA-256 is taken while it is
/// written as far as the writes come in file order; what is left is read back once at the end
/// (from the page cache). A header whose metadata is known only at the end (a lock's domains) puts
/// all of the file behind that point: a hash cannot start before the first byte is known.
#[derive(Debug)]
pub struct ShardWriter {
    plan: PlannedShard,
    by_name: HashMap<String, usize>,
    written: Vec<AtomicU64>,
    file: File,
    flusher: Flusher,
    partial: PathBuf,
    target: PathBuf,
    data_start: u64,
    header_is_final: bool,
    hash: Mutex<RunningHash>,
    finished: bool,
}

/// A file that was written whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenFile {
    /// Path relative to the output directory.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the whole file.
    pub sha256: Sha256Digest,
}

#[derive(Debug)]
struct RunningHash {
    hash: Sha256,
    next: u64,
}

impl ShardWriter {
    /// Starts a file in `directory` whose metadata is known, usually `{"format": "pt"}`.
    pub fn create(
        directory: &Path,
        plan: &PlannedShard,
        metadata: &[(String, String)],
    ) -> Result<Self, CheckpointError> {
        let header = plan.header(metadata, 0);
        let writer = Self::start(directory, plan, header.len() as u64, true)?;
        writer.put(0, &header)?;
        Ok(writer)
    }

    /// Starts a file whose metadata is known only at the end, and will take no more room than
    /// `widest` does. The header is then padded with spaces up to that room.
    pub fn create_reserving(
        directory: &Path,
        plan: &PlannedShard,
        widest: &[(String, String)],
    ) -> Result<Self, CheckpointError> {
        let room = plan.header(widest, 0).len() as u64;
        Self::start(directory, plan, room, false)
    }

    fn start(
        directory: &Path,
        plan: &PlannedShard,
        data_start: u64,
        header_is_final: bool,
    ) -> Result<Self, CheckpointError> {
        let target = directory.join(plan.file());
        let partial = directory.join(format!(".{}.partial", plan.file()));
        if target.symlink_metadata().is_ok() {
            return Err(CheckpointError::Exists { path: target });
        }
        // What a killed process left behind; a link in its place is removed, not followed.
        match std::fs::remove_file(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(CheckpointError::io(
                    plan.file(),
                    "remove an old part",
                    error,
                ));
            }
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&partial);
        let file = file.map_err(|e| CheckpointError::io(plan.file(), "create", e))?;
        let flusher = file.try_clone().and_then(Flusher::start);
        let flusher = flusher.map_err(|e| CheckpointError::io(plan.file(), "sync", e))?;
        let names = plan.tensors().iter().map(|info| info.name.clone());
        let writer = Self {
            by_name: names.zip(0..).collect(),
            written: plan.tensors().iter().map(|_| AtomicU64::new(0)).collect(),
            plan: plan.clone(),
            file,
            flusher,
            partial,
            target,
            data_start,
            header_is_final,
            hash: Mutex::new(RunningHash {
                hash: Sha256::new(),
                next: 0,
            }),
            finished: false,
        };
        let length = data_start.saturating_add(plan.data_length());
        match fallocate(&writer.file, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(writer),
            Err(error) => Err(CheckpointError::io(plan.file(), "reserve space", error)),
        }
    }

    /// Writes a whole tensor.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (at, info) = self.find(name)?;
        if bytes.len() as u64 != info.bytes {
            return Err(self.range_error(at, 0, bytes.len()));
        }
        self.write_at(name, 0, bytes)
    }

    /// Writes a part of a tensor, from byte `offset` of it on.
    pub fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (at, info) = self.find(name)?;
        if offset.saturating_add(bytes.len() as u64) > info.bytes {
            return Err(self.range_error(at, offset, bytes.len()));
        }
        self.put(self.data_start + info.offset + offset, bytes)?;
        self.written[at].fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Finishes a file whose metadata was given at the start.
    pub fn finish(self) -> Result<WrittenFile, CheckpointError> {
        self.complete()
    }

    /// Finishes a file started with [`ShardWriter::create_reserving`].
    pub fn finish_with(
        self,
        metadata: &[(String, String)],
    ) -> Result<WrittenFile, CheckpointError> {
        let room = (self.data_start - LENGTH_FIELD) as usize;
        let header = self.plan.header(metadata, room);
        if header.len() as u64 != self.data_start || self.header_is_final {
            return Err(CheckpointError::HeaderRoom {
                file: self.plan.file().to_owned(),
                needed: header.len(),
                kept: self.data_start as usize,
            });
        }
        self.put(0, &header)?;
        self.complete()
    }

    fn complete(mut self) -> Result<WrittenFile, CheckpointError> {
        for (info, written) in self.plan.tensors().iter().zip(&self.written) {
            let written = written.load(Ordering::Relaxed);
            if written != info.bytes {
                return Err(CheckpointError::Incomplete {
                    file: self.plan.file().to_owned(),
                    tensor: info.name.clone(),
                    written,
                    bytes: info.bytes,
                });
            }
        }
        let bytes = self.data_start + self.plan.data_length();
        let file = self.plan.file();
        // Every byte is written: the disk and the hash need not wait for each other.
        let (sha256, synced) = std::thread::scope(|scope| {
            let sync = scope.spawn(|| self.flusher.finish().and_then(|()| self.file.sync_all()));
            let sha256 = self.hash_rest(bytes);
            let lost = |_| Err(io::Error::other("the thread that syncs ended early"));
            (sha256, sync.join().unwrap_or_else(lost))
        });
        let sha256 = sha256?;
        synced.map_err(|e| CheckpointError::io(file, "sync", e))?;
        let named = std::fs::rename(&self.partial, &self.target);
        named.map_err(|e| CheckpointError::io(file, "name", e))?;
        self.finished = true;
        Ok(WrittenFile {
            path: self.plan.file().to_owned(),
            bytes,
            sha256,
        })
    }

    /// Hashes what did not come in order.
    fn hash_rest(&self, length: u64) -> Result<Sha256Digest, CheckpointError> {
        let mut running = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        let mut buffer = vec![0; HASH_STEP.min(length - running.next) as usize];
        while running.next < length {
            let step = HASH_STEP.min(length - running.next);
            let part = &mut buffer[..step as usize];
            self.file
                .read_exact_at(part, running.next)
                .map_err(|e| CheckpointError::io(self.plan.file(), "read back", e))?;
            running.hash.update(part);
            running.next += step;
        }
        Ok(Sha256Digest::new(running.hash.finalize_reset().into()))
    }

    fn put(&self, position: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.file
            .write_all_at(bytes, position)
            .map_err(|e| CheckpointError::io(self.plan.file(), "write", e))?;
        self.flusher.wrote(bytes.len() as u64);
        let mut running = self.hash.lock().unwrap_or_else(PoisonError::into_inner);
        if running.next == position {
            running.hash.update(bytes);
            running.next += bytes.len() as u64;
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Result<(usize, &crate::header::TensorInfo), CheckpointError> {
        let at = self.by_name.get(name).copied();
        let at = at.ok_or_else(|| CheckpointError::NoTensor {
            tensor: name.to_owned(),
        })?;
        Ok((at, &self.plan.tensors()[at]))
    }

    fn range_error(&self, at: usize, start: u64, length: usize) -> CheckpointError {
        let info = &self.plan.tensors()[at];
        CheckpointError::Range {
            tensor: info.name.clone(),
            start,
            end: start.saturating_add(length as u64),
            bytes: info.bytes,
        }
    }
}

impl Drop for ShardWriter {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing more can be done about a file that cannot be removed.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

const HASH_STEP: u64 = 4 << 20;
