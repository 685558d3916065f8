//! An output directory that appears whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use identifiers::Sha256Digest;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, renameat_with, statvfs};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::error::CheckpointError;
use crate::root::{SourceFile, check_relative};
use crate::writer::WrittenFile;

/// Output under way in `.<name>.partial` beside its final place; [`StagedDir::commit`] gives it its
/// name. Dropped before that, it is removed, unless it is kept for a later
/// [`StagedDir::resume`]. A lock on the directory keeps a second writer out and tells an abandoned
/// one from one in use.
#[derive(Debug)]
pub struct StagedDir {
    staged: PathBuf,
    target: PathBuf,
    lock: OwnedFd,
    keep: bool,
    done: bool,
}

impl StagedDir {
    /// Starts afresh. What an abandoned run left in the staging place is removed; a target that
    /// exists, or a run in progress, is an error.
    pub fn create(target: &Path) -> Result<Self, CheckpointError> {
        let staged = Self::open(target)?;
        for entry in read_folder(&staged.staged)? {
            let removed = match entry.file_type() {
                Ok(kind) if kind.is_dir() => std::fs::remove_dir_all(entry.path()),
                _ => std::fs::remove_file(entry.path()),
            };
            removed.map_err(|e| io_error(&entry.path(), "remove", e))?;
        }
        Ok(staged)
    }

    /// Continues an earlier run, or starts one. The caller compares what is there with its own
    /// record before it trusts any of it; unless committed, the directory is kept.
    pub fn resume(target: &Path) -> Result<Self, CheckpointError> {
        let mut staged = Self::open(target)?;
        staged.keep = true;
        Ok(staged)
    }

    fn open(target: &Path) -> Result<Self, CheckpointError> {
        if target.symlink_metadata().is_ok() {
            let path = target.to_owned();
            return Err(CheckpointError::Exists { path });
        }
        let name = target.file_name().ok_or_else(|| CheckpointError::Path {
            path: target.display().to_string(),
            reason: "it names no directory to create",
        })?;
        let staged = target.with_file_name(format!(".{}.partial", name.to_string_lossy()));
        match std::fs::create_dir(&staged) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(io_error(&staged, "create", error));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&staged, flags, Mode::empty())
            .map_err(|e| io_error(&staged, "open", e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(CheckpointError::Exists { path: staged }),
            Err(error) => return Err(io_error(&staged, "lock", error)),
        }
        Ok(Self {
            staged,
            target: target.to_owned(),
            lock,
            keep: false,
            done: false,
        })
    }

    /// Where the output is written meanwhile.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.staged
    }

    /// Where the output will be.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Whether an uncommitted directory stays on disk for a later [`StagedDir::resume`].
    pub fn keep(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// Makes a folder, and its parents, in the output and gives its path.
    pub fn folder(&self, relative: &str) -> Result<PathBuf, CheckpointError> {
        check_relative(relative)?;
        let path = self.staged.join(relative);
        std::fs::create_dir_all(&path).map_err(|e| io_error(&path, "create", e))?;
        Ok(path)
    }

    /// Writes a small file: whole, synced, then named.
    pub fn write_file(&self, relative: &str, bytes: &[u8]) -> Result<WrittenFile, CheckpointError> {
        self.write_parts(relative, |write| write(bytes))
    }

    /// Copies a source file, unchanged; fails if it grew or shrank meanwhile.
    pub fn copy_file(
        &self,
        from: &SourceFile,
        relative: &str,
    ) -> Result<WrittenFile, CheckpointError> {
        self.write_parts(relative, |write| {
            let mut buffer = vec![0; COPY_STEP.min(from.length()) as usize];
            let mut at = 0;
            while at < from.length() {
                let step = COPY_STEP.min(from.length() - at);
                let part = &mut buffer[..step as usize];
                from.read_at(at, part)?;
                write(part)?;
                at += step;
            }
            from.check_length()
        })
    }

    /// Writes a file from parts that `produce` hands to its argument in order.
    pub fn write_parts(
        &self,
        relative: &str,
        produce: impl FnOnce(
            &mut dyn FnMut(&[u8]) -> Result<(), CheckpointError>,
        ) -> Result<(), CheckpointError>,
    ) -> Result<WrittenFile, CheckpointError> {
        check_relative(relative)?;
        let target = self.staged.join(relative);
        let partial = match relative.rsplit_once('/') {
            Some((folder, name)) => self.folder(folder)?.join(format!(".{name}.partial")),
            None => self.staged.join(format!(".{relative}.partial")),
        };
        let unfinished = RemoveOnDrop(&partial);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&partial)
            .map_err(|e| io_error(&partial, "create", e))?;
        let mut hash = Sha256::new();
        let mut length = 0_u64;
        produce(&mut |bytes| {
            hash.update(bytes);
            length += bytes.len() as u64;
            file.write_all(bytes)
                .map_err(|e| io_error(&target, "write", e))
        })?;
        file.sync_all().map_err(|e| io_error(&target, "sync", e))?;
        std::fs::rename(&partial, &target).map_err(|e| io_error(&target, "name", e))?;
        std::mem::forget(unfinished);
        Ok(WrittenFile {
            path: relative.to_owned(),
            bytes: length,
            sha256: Sha256Digest::new(hash.finalize().into()),
        })
    }

    /// Syncs the directory and gives it its name. The target must still not exist.
    pub fn commit(mut self) -> Result<(), CheckpointError> {
        sync_folders(&self.staged)?;
        let renamed = renameat_with(CWD, &self.staged, CWD, &self.target, RenameFlags::NOREPLACE);
        let renamed = match renamed {
            Err(Errno::EXIST) => {
                let path = self.target.clone();
                return Err(CheckpointError::Exists { path });
            }
            // A file system without NOREPLACE: rename replaces no directory that has entries.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(&self.staged, &self.target),
            other => other.map_err(Into::into),
        };
        renamed.map_err(|e| io_error(&self.target, "name", e))?;
        self.done = true;
        let parent = self
            .target
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        sync_folder(parent.unwrap_or(Path::new(".")))
    }
}

impl Drop for StagedDir {
    fn drop(&mut self) {
        if !self.done && !self.keep {
            // Nothing more can be done about a directory that cannot be removed; the next run
            // finds it unlocked and removes it.
            let _ = std::fs::remove_dir_all(&self.staged);
        }
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Bytes free to this user in the file system of `directory`.
pub fn free_space(directory: &Path) -> Result<u64, CheckpointError> {
    let stat = statvfs(directory).map_err(|e| io_error(directory, "look at the file system", e))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl StagedDir {
    /// Fails unless `needed` bytes are free where the output goes.
    pub fn require_space(&self, needed: u64) -> Result<(), CheckpointError> {
        let free = free_space(&self.staged)?;
        if free < needed {
            let path = self.staged.clone();
            return Err(CheckpointError::NoSpace { path, needed, free });
        }
        Ok(())
    }
}

struct RemoveOnDrop<'a>(&'a Path);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

fn sync_folders(folder: &Path) -> Result<(), CheckpointError> {
    for entry in read_folder(folder)? {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            sync_folders(&entry.path())?;
        }
    }
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> Result<(), CheckpointError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| io_error(folder, "sync", e))
}

fn read_folder(folder: &Path) -> Result<Vec<std::fs::DirEntry>, CheckpointError> {
    let entries = std::fs::read_dir(folder).and_then(Iterator::collect);
    entries.map_err(|e| io_error(folder, "list", e))
}

fn io_error(path: &Path, action: &'static str, error: impl Into<io::Error>) -> CheckpointError {
    CheckpointError::io(path.display().to_string(), action, error)
}

const COPY_STEP: u64 = 1 << 20;
