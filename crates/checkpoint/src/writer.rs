//! Writes one safetensors file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use direct_io::{AlignedBuf, Appender, ReadAt, ReadError};
use identifiers::Sha256Digest;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::CheckpointError;
use crate::header::LENGTH_FIELD;
use crate::plan::PlannedShard;

/// Writes a planned file: its tensors in their order, each byte once, past the page cache where
/// the file system allows it.
///
/// The bytes go to `.<name>.partial` beside the file, which gets its name once everything is
/// written and synced; dropping an unfinished writer removes it. The file's SHA-256 is taken while
/// it is written. A header whose metadata is known only at the end (a lock's domains) puts all of
/// the file behind that point, for a hash cannot start before the first byte is known: such a file
/// is read back once.
#[derive(Debug)]
pub struct ShardWriter {
    plan: PlannedShard,
    /// Tensors written.
    written: usize,
    file: File,
    appender: Option<Appender>,
    partial: PathBuf,
    target: PathBuf,
    data_start: u64,
    /// Of what was written; none before the header is known.
    hash: Option<Sha256>,
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

impl ShardWriter {
    /// Starts a file in `directory` whose metadata is known, usually `{"format": "pt"}`.
    pub fn create(
        directory: &Path,
        plan: &PlannedShard,
        metadata: &[(String, String)],
    ) -> Result<Self, CheckpointError> {
        let header = plan.header(metadata, 0);
        let mut writer = Self::start(directory, plan, header.len() as u64, 0)?;
        writer.hash = Some(Sha256::new());
        writer.put(&header)?;
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
        Self::start(directory, plan, room, room)
    }

    fn start(
        directory: &Path,
        plan: &PlannedShard,
        data_start: u64,
        from: u64,
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
        let mut writer = Self {
            written: 0,
            plan: plan.clone(),
            file,
            appender: None,
            partial,
            target,
            data_start,
            hash: None,
            finished: false,
        };
        let length = data_start.saturating_add(plan.data_length());
        match fallocate(&writer.file, FallocateFlags::empty(), 0, length) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(writer.failed("reserve space", error.into())),
        }
        let appender = writer.file.try_clone();
        let appender = appender.and_then(|file| Appender::new(file, from));
        writer.appender = Some(appender.map_err(|error| writer.failed("write", error))?);
        Ok(writer)
    }

    /// Writes the next tensor of the file.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let next = self.plan.tensors().get(self.written);
        let Some(info) = next.filter(|info| info.name == name) else {
            return Err(self.not_next(name));
        };
        if bytes.len() as u64 != info.bytes {
            return Err(CheckpointError::Range {
                tensor: info.name.clone(),
                start: 0,
                end: bytes.len() as u64,
                bytes: info.bytes,
            });
        }
        self.put(bytes)?;
        self.written += 1;
        Ok(())
    }

    /// Finishes a file whose metadata was given at the start.
    pub fn finish(self) -> Result<WrittenFile, CheckpointError> {
        self.complete(None)
    }

    /// Finishes a file started with [`ShardWriter::create_reserving`].
    pub fn finish_with(
        self,
        metadata: &[(String, String)],
    ) -> Result<WrittenFile, CheckpointError> {
        let room = (self.data_start - LENGTH_FIELD) as usize;
        let header = self.plan.header(metadata, room);
        if header.len() as u64 != self.data_start || self.hash.is_some() {
            return Err(CheckpointError::HeaderRoom {
                file: self.plan.file().to_owned(),
                needed: header.len(),
                kept: self.data_start as usize,
            });
        }
        self.complete(Some(&header))
    }

    fn complete(mut self, header: Option<&[u8]>) -> Result<WrittenFile, CheckpointError> {
        if let Some(next) = self.plan.tensors().get(self.written) {
            return Err(CheckpointError::Incomplete {
                file: self.plan.file().to_owned(),
                tensor: next.name.clone(),
            });
        }
        let appended = self.appender.take().map_or(Ok(()), Appender::finish);
        appended.map_err(|error| self.failed("write", error))?;
        if let Some(header) = header {
            let put = self.file.write_all_at(header, 0);
            put.map_err(|error| self.failed("write", error))?;
        }
        let hash = self.hash.take();
        // Every byte is written: the disk and the hash need not wait for each other.
        let (sha256, synced) = std::thread::scope(|scope| {
            let sync = scope.spawn(|| self.file.sync_all());
            let sha256 = match hash {
                Some(hash) => Ok(Sha256Digest::new(hash.finalize().into())),
                None => self.hash_all(),
            };
            let lost = |_| Err(io::Error::other("the thread that syncs ended early"));
            (sha256, sync.join().unwrap_or_else(lost))
        });
        let sha256 = sha256?;
        synced.map_err(|error| self.failed("sync", error))?;
        let named = std::fs::rename(&self.partial, &self.target);
        named.map_err(|error| self.failed("name", error))?;
        self.finished = true;
        Ok(WrittenFile {
            path: self.plan.file().to_owned(),
            bytes: self.data_start + self.plan.data_length(),
            sha256,
        })
    }

    /// Reads the file back and hashes it.
    fn hash_all(&self) -> Result<Sha256Digest, CheckpointError> {
        let failed = |error: ReadError| self.failed("read back", io::Error::other(error));
        let file = direct_io::File::open(&self.partial).map_err(failed)?;
        let buffer = AlignedBuf::new(HASH_STEP);
        let mut buffer = buffer.map_err(|e| self.failed("read back", io::Error::other(e)))?;
        let mut hash = Sha256::new();
        let mut at = 0;
        while at < file.size() {
            let step = (file.size() - at).min(HASH_STEP as u64) as usize;
            // The last block, where it is not whole, would take its whole step to the page cache.
            let step = if step > direct_io::ALIGN {
                step / direct_io::ALIGN * direct_io::ALIGN
            } else {
                step
            };
            let part = &mut buffer[..step];
            file.read_exact_at(at, part).map_err(failed)?;
            hash.update(part);
            at += step as u64;
        }
        Ok(Sha256Digest::new(hash.finalize().into()))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        for part in bytes.chunks(PUT_STEP) {
            if let Some(hash) = &mut self.hash {
                hash.update(part);
            }
            if let Some(appender) = &mut self.appender {
                let appended = appender.append(part);
                appended.map_err(|error| self.failed("write", error))?;
            }
        }
        Ok(())
    }

    fn not_next(&self, name: &str) -> CheckpointError {
        let tensors = self.plan.tensors();
        if tensors.iter().all(|info| info.name != name) {
            return CheckpointError::NoTensor {
                tensor: name.to_owned(),
            };
        }
        CheckpointError::Order {
            file: self.plan.file().to_owned(),
            tensor: name.to_owned(),
            next: tensors.get(self.written).map(|info| info.name.clone()),
        }
    }

    fn failed(&self, action: &'static str, error: io::Error) -> CheckpointError {
        CheckpointError::io(self.plan.file(), action, error)
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

const HASH_STEP: usize = 4 << 20;
/// Small enough that what was hashed is still in the caches when it is copied.
const PUT_STEP: usize = 256 << 10;
