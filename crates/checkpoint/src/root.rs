//! Files strictly beneath one directory.
//!
//! Every path is resolved by the kernel from the directory's descriptor (`openat2` with
//! `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`), so neither `..` nor a
//! symbolic link swapped in meanwhile leaves it. Kernels without `openat2` get the same by opening
//! one segment at a time without following links. Only regular files are opened: the kind is
//! looked at through a path descriptor first, so that no device or pipe is ever opened.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2};
use rustix::io::Errno;

use crate::error::CheckpointError;

/// The most entries listed below a root.
pub const MAX_ENTRIES: usize = 100_000;
/// The deepest folder listed below a root.
pub const MAX_FOLDERS: usize = 16;
/// The longest relative path accepted, in bytes.
pub const MAX_PATH: usize = 1024;

/// A directory that paths are resolved beneath.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    path: PathBuf,
    prefix: String,
}

/// An open regular file with the length it had when it was opened.
#[derive(Debug)]
pub struct SourceFile {
    file: File,
    name: String,
    length: u64,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path relative to the root, with `/`.
    pub path: String,
    /// What it is. Folders are not listed themselves.
    pub kind: FileKind,
    /// Size in bytes; 0 for what is not a regular file.
    pub bytes: u64,
    /// Hard links to the file; more than one means that it has other names.
    pub links: u64,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A symbolic link; it is never followed.
    Symlink,
    /// A device, pipe or socket; it is never opened.
    Special,
}

impl Root {
    /// Opens a directory. `path` itself may go through symbolic links: it is the caller's.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| {
            CheckpointError::io(path.display().to_string(), "open the directory", e)
        })?;
        Ok(Self {
            directory,
            path: path.to_owned(),
            prefix: String::new(),
        })
    }

    /// A folder of this one as a root of its own: nothing outside the folder is reachable from it.
    pub fn folder(&self, relative: &str) -> Result<Self, CheckpointError> {
        check_relative(relative)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open_beneath(&self.directory, relative, flags).map_err(|e| match e {
            Errno::NOTDIR => CheckpointError::NotRegular {
                file: self.name(relative),
                reason: "it is not a folder, or is a symbolic link",
            },
            _ => self.refusal(relative, "open the folder", e),
        })?;
        Ok(Self {
            directory,
            path: self.path.join(relative),
            prefix: format!("{}{relative}/", self.prefix),
        })
    }

    /// The directory's path, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses an output in this directory or below it, where it would become part of what is read.
    pub fn require_outside(&self, target: &Path) -> Result<(), CheckpointError> {
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let resolve = |path: &Path| {
            path.canonicalize()
                .map_err(|e| CheckpointError::io(path.display().to_string(), "resolve", e))
        };
        if resolve(parent)?.starts_with(resolve(&self.path)?) {
            return Err(CheckpointError::Path {
                path: target.display().to_string(),
                reason: "it lies in the directory that is read",
            });
        }
        Ok(())
    }

    /// Whether a regular file of that path is there. A link or special file is an error.
    pub fn has_file(&self, relative: &str) -> Result<bool, CheckpointError> {
        match self.stat(relative) {
            Ok(_) => Ok(true),
            Err(CheckpointError::Io { source, .. }) if is_absent(&source) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file.
    pub fn open_file(&self, relative: &str) -> Result<SourceFile, CheckpointError> {
        let seen = self.stat(relative)?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = open_beneath(&self.directory, relative, flags)
            .map_err(|e| self.refusal(relative, "open the file", e))?;
        let stat = fstat(&file).map_err(|e| self.refusal(relative, "look at the file", e))?;
        if (stat.st_dev, stat.st_ino) != (seen.st_dev, seen.st_ino) {
            return Err(CheckpointError::NotRegular {
                file: self.name(relative),
                reason: "it was replaced while it was opened",
            });
        }
        Ok(SourceFile {
            file: file.into(),
            name: self.name(relative),
            length: stat.st_size as u64,
        })
    }

    /// Reads a whole small file of at most `maximum` bytes.
    pub fn read_file(&self, relative: &str, maximum: u64) -> Result<Vec<u8>, CheckpointError> {
        self.open_file(relative)?.read_all(maximum)
    }

    /// Every file below the root, sorted by path, folders descended into. Links and special files
    /// are listed and not followed. At most 100,000 entries, 16 folders deep.
    pub fn list(&self) -> Result<Vec<FileEntry>, CheckpointError> {
        let mut entries = Vec::new();
        self.list_into("", Some(0), &mut entries)?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    /// The files directly in the root, as [`Root::list`] gives them.
    pub fn list_top(&self) -> Result<Vec<FileEntry>, CheckpointError> {
        let mut entries = Vec::new();
        self.list_into("", None, &mut entries)?;
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(entries)
    }

    fn list_into(
        &self,
        folder: &str,
        depth: Option<usize>,
        entries: &mut Vec<FileEntry>,
    ) -> Result<(), CheckpointError> {
        if depth.is_some_and(|depth| depth > MAX_FOLDERS) {
            return Err(CheckpointError::TooMany {
                what: "folders inside each other",
                maximum: MAX_FOLDERS,
            });
        }
        let failed = |e: Errno| self.refusal(folder, "list the folder", e);
        let here = if folder.is_empty() { "." } else { folder };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open_beneath(&self.directory, here, flags).map_err(failed)?;
        for entry in Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = match entry.file_name().to_str() {
                Ok("." | "..") => continue,
                Ok(name) => name,
                Err(_) => {
                    return Err(CheckpointError::Path {
                        path: entry.file_name().to_string_lossy().into_owned(),
                        reason: "it is not UTF-8",
                    });
                }
            };
            let path = if folder.is_empty() {
                name.to_owned()
            } else {
                format!("{folder}/{name}")
            };
            let stat = rustix::fs::statat(&directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| self.refusal(&path, "look at the file", e))?;
            let kind = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    if let Some(depth) = depth {
                        self.list_into(&path, Some(depth + 1), entries)?;
                    }
                    continue;
                }
                FileType::RegularFile => FileKind::Regular,
                FileType::Symlink => FileKind::Symlink,
                _ => FileKind::Special,
            };
            if entries.len() == MAX_ENTRIES {
                return Err(CheckpointError::TooMany {
                    what: "files",
                    maximum: MAX_ENTRIES,
                });
            }
            let regular = kind == FileKind::Regular;
            entries.push(FileEntry {
                path,
                kind,
                bytes: if regular { stat.st_size as u64 } else { 0 },
                #[expect(clippy::useless_conversion, reason = "its width differs by target")]
                links: stat.st_nlink.into(),
            });
        }
        Ok(())
    }

    /// Looks at a file without opening it.
    fn stat(&self, relative: &str) -> Result<Stat, CheckpointError> {
        check_relative(relative)?;
        let path = open_beneath(&self.directory, relative, OFlags::PATH | OFlags::CLOEXEC)
            .map_err(|e| self.refusal(relative, "open the file", e))?;
        let stat = fstat(&path).map_err(|e| self.refusal(relative, "look at the file", e))?;
        let reason = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(stat),
            FileType::Directory => "it is a folder",
            FileType::Symlink => SYMLINK,
            _ => "it is a device, pipe or socket",
        };
        Err(CheckpointError::NotRegular {
            file: self.name(relative),
            reason,
        })
    }

    fn name(&self, relative: &str) -> String {
        format!("{}{relative}", self.prefix)
    }

    fn refusal(&self, relative: &str, action: &'static str, error: Errno) -> CheckpointError {
        let file = self.name(relative);
        match error {
            Errno::LOOP | Errno::XDEV => CheckpointError::NotRegular {
                file,
                reason: SYMLINK,
            },
            _ => CheckpointError::io(file, action, error),
        }
    }
}

impl SourceFile {
    /// Path relative to the outermost root.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length when it was opened.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `out` from `offset` on.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        match self.file.read_exact_at(out, offset) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.check_length()?;
                Err(CheckpointError::io(&self.name, "read", error))
            }
            Err(error) => Err(CheckpointError::io(&self.name, "read", error)),
        }
    }

    /// The whole file, of at most `maximum` bytes.
    pub fn read_all(&self, maximum: u64) -> Result<Vec<u8>, CheckpointError> {
        if self.length > maximum {
            return Err(CheckpointError::TooLarge {
                file: self.name.clone(),
                bytes: self.length,
                maximum,
            });
        }
        let mut bytes = vec![0; self.length as usize];
        self.read_at(0, &mut bytes)?;
        self.check_length()?;
        Ok(bytes)
    }

    /// Fails if the file grew or shrank since it was opened.
    pub fn check_length(&self) -> Result<(), CheckpointError> {
        let stat = fstat(self.file.as_fd())
            .map_err(|e| CheckpointError::io(&self.name, "look at the file", e))?;
        let after = stat.st_size as u64;
        if after != self.length {
            return Err(CheckpointError::Changed {
                file: self.name.clone(),
                before: self.length,
                after,
            });
        }
        Ok(())
    }

    /// The open file, for reads that go around the page cache.
    #[must_use]
    pub fn as_file(&self) -> &File {
        &self.file
    }
}

/// Checks a relative path that came from a file or a caller: plain segments separated by `/`, on
/// any system.
pub fn check_relative(path: &str) -> Result<(), CheckpointError> {
    match relative_fault(path) {
        None => Ok(()),
        Some(reason) => Err(CheckpointError::Path {
            path: path.chars().take(MAX_PATH).collect(),
            reason,
        }),
    }
}

/// What is wrong with a relative path, if anything.
pub(crate) fn relative_fault(path: &str) -> Option<&'static str> {
    if path.is_empty() {
        return Some("it is empty");
    }
    if path.len() > MAX_PATH {
        return Some("it is too long");
    }
    if path.starts_with('/') {
        return Some("it is absolute");
    }
    if path.contains('\\') {
        return Some("it holds a backslash");
    }
    if path.chars().any(char::is_control) {
        return Some("it holds a control character");
    }
    if path.as_bytes().get(1) == Some(&b':') {
        return Some("it starts with a drive letter");
    }
    let segment = |segment: &str| match segment {
        "" => Some("it has an empty segment"),
        "." => Some("it has a segment ."),
        ".." => Some("it leaves the directory"),
        _ => None,
    };
    path.split('/').find_map(segment)
}

fn open_beneath(directory: &OwnedFd, relative: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = flags | OFlags::NOFOLLOW;
    // EAGAIN: the kernel saw a rename meanwhile and could not be sure; EINTR: a signal.
    for _ in 0..RETRIES {
        match openat2(directory, relative, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // A sandbox that filters openat2 answers EPERM.
            Err(Errno::NOSYS | Errno::PERM) => return open_by_segments(directory, relative, flags),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

fn open_by_segments(directory: &OwnedFd, relative: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let folder = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut segments = relative.split('/').peekable();
    let mut here: Option<OwnedFd> = None;
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        let from = here.as_ref().unwrap_or(directory);
        let opened = openat(
            from,
            segment,
            if last { flags } else { folder },
            Mode::empty(),
        );
        here = Some(opened.map_err(|e| {
            if !last && e == Errno::NOTDIR {
                Errno::LOOP
            } else {
                e
            }
        })?);
    }
    here.ok_or(Errno::NOENT)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

const SYMLINK: &str = "it is, or lies behind, a symbolic link";
const RETRIES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_could_leave_or_mean_something_else_are_refused() {
        for path in [
            "",
            "/etc/passwd",
            "..",
            "a/../b",
            "a/..",
            "./a",
            "a//b",
            "a/",
            "a\\b",
            "C:a",
            "a\0b",
            "a\nb",
        ] {
            assert!(check_relative(path).is_err(), "{path:?}");
        }
        for path in ["a", "a/b", "..a", "a..", ".gitattributes", "a b"] {
            assert!(check_relative(path).is_ok(), "{path:?}");
        }
    }

    #[test]
    fn without_openat2_links_are_refused_too() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("in")).unwrap();
        std::fs::write(folder.path().join("in/a"), b"a").unwrap();
        std::os::unix::fs::symlink("in", folder.path().join("link")).unwrap();
        std::os::unix::fs::symlink("in/a", folder.path().join("file-link")).unwrap();
        let root = Root::open(folder.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        assert!(open_by_segments(&root.directory, "in/a", flags).is_ok());
        for path in ["link/a", "file-link"] {
            let error = open_by_segments(&root.directory, path, flags).unwrap_err();
            assert_eq!(error, Errno::LOOP, "{path}");
        }
    }
}
