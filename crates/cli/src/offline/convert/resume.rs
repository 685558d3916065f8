//! An output file that a later run continues when one was interrupted.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use jlm::Span;
use sha2::{Digest, Sha256};

use crate::files::refuse_existing;

/// A file that is written in pieces beside its target, and a journal with each piece's SHA-256. It
/// gets its name when it is finished. Dropped before, it leaves nothing; a process that is killed
/// leaves both, and the next one with the same identity keeps every piece that is intact.
pub struct Resumable {
    file: File,
    journal: File,
    /// Digests of pieces that an interrupted run recorded, in hexadecimal.
    recorded: HashMap<usize, String>,
    target: PathBuf,
    staged: PathBuf,
    journal_path: PathBuf,
}

impl Resumable {
    /// Starts or continues the file that becomes `target`, which must not exist. `identity` is one
    /// line that says what is written.
    pub fn open(target: &Path, identity: &str) -> Result<Self> {
        refuse_existing(target)?;
        let name = target
            .file_name()
            .with_context(|| format!("{} is no file name", target.display()))?;
        let beside = |suffix: &str| {
            let mut hidden = OsString::from(".");
            hidden.push(name);
            hidden.push(suffix);
            target.with_file_name(hidden)
        };
        let (staged, journal_path) = (beside(".converting"), beside(".journal"));
        let context = || format!("cannot write {}", target.display());
        let file = open(&staged).with_context(context)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!("another process is writing {}", target.display())
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(context);
            }
        }
        let journal = open(&journal_path).with_context(context)?;
        let mut output = Self {
            file,
            journal,
            recorded: HashMap::new(),
            target: target.to_owned(),
            staged,
            journal_path,
        };
        output.read_journal(identity).with_context(context)?;
        Ok(output)
    }

    /// Whether an interrupted run wrote a piece and its bytes are still the ones it recorded. Its
    /// planes' bytes go to `buffer`, which has their length.
    pub fn has(&self, index: usize, planes: &[Span], buffer: &mut [u8]) -> bool {
        let Some(recorded) = self.recorded.get(&index) else {
            return false;
        };
        let mut rest = &mut *buffer;
        for plane in planes {
            let (part, after) = rest.split_at_mut(plane.length as usize);
            if self.file.read_exact_at(part, plane.offset).is_err() {
                return false;
            }
            rest = after;
        }
        digest(buffer) == *recorded
    }

    /// Writes a piece: its planes' bytes, back to back, each to its place. Then records it.
    pub fn put(&mut self, index: usize, planes: &[Span], bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        for plane in planes {
            let (part, after) = rest.split_at(plane.length as usize);
            self.write(*plane, part)?;
            rest = after;
        }
        let line = format!("{index} {}\n", digest(bytes));
        self.journal
            .write_all(line.as_bytes())
            .with_context(|| format!("cannot write {}", self.journal_path.display()))
    }

    /// Writes the bytes of a span, unrecorded.
    pub fn write(&self, span: Span, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, span.offset)
            .with_context(|| format!("cannot write {}", self.target.display()))
    }

    /// Makes it durable at its full length and gives it its name.
    pub fn finish(self, length: u64) -> Result<()> {
        let finish = || -> io::Result<()> {
            self.file.set_len(length)?;
            self.file.sync_all()?;
            // Never over a file that appeared meanwhile.
            fs::hard_link(&self.staged, &self.target)
        };
        finish().with_context(|| format!("cannot write {}", self.target.display()))
    }

    /// Reads what an interrupted run recorded; anything else starts from nothing.
    fn read_journal(&mut self, identity: &str) -> io::Result<()> {
        let mut text = Vec::new();
        (&self.journal).take(MAX_JOURNAL).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        // A line that was cut short is none.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut lines = whole.lines();
        let first = format!("{JOURNAL_FORMAT} {identity}");
        if lines.next() == Some(&first) {
            self.recorded = lines
                .filter_map(|line| {
                    let (index, digest) = line.split_once(' ')?;
                    Some((index.parse().ok()?, digest.to_owned()))
                })
                .collect();
            self.journal.seek(SeekFrom::End(0))?;
            return self.journal.write_all(b"\n");
        }
        self.file.set_len(0)?;
        self.journal.set_len(0)?;
        self.journal.rewind()?;
        self.journal.write_all(format!("{first}\n").as_bytes())
    }
}

impl Drop for Resumable {
    fn drop(&mut self) {
        // Gone already, or in a folder that is gone.
        let _ = fs::remove_file(&self.journal_path);
        let _ = fs::remove_file(&self.staged);
    }
}

/// Opens a file to read and write, and makes it when there is none.
fn open(path: &Path) -> io::Result<File> {
    if path.is_symlink() {
        return Err(io::Error::other("a link stands where its parts go"));
    }
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

const JOURNAL_FORMAT: &str = "chancery-convert-1";
/// A line has at most 90 bytes: more than two million pieces.
const MAX_JOURNAL: u64 = 256 << 20;
