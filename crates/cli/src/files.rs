//! Files that hold keys, and outputs that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use model_key::{KeyFile, ModelKey, Passphrase};
use rustix::fs::{AtFlags, CWD, OFlags, fcntl_getfl, fcntl_setfl, linkat};
use rustix::io::Errno;
use secret::SecretBytes;

use crate::args::{KeyArgs, OptionalKeyArgs, PassphraseArgs};

/// Opens the key of a command.
pub fn open_key(arguments: &KeyArgs) -> Result<ModelKey> {
    open_key_file(&arguments.key, &arguments.passphrase)
}

/// Opens the key of a command, if it was given one.
pub fn open_optional_key(arguments: &OptionalKeyArgs) -> Result<Option<ModelKey>> {
    let key = arguments.key.as_deref();
    key.map(|key| open_key_file(key, &arguments.passphrase))
        .transpose()
}

/// Opens a key file.
pub fn open_key_file(path: &Path, passphrase: &PassphraseArgs) -> Result<ModelKey> {
    let parsed = parse_key_file(path)?;
    let passphrase = passphrase_of(passphrase)?;
    parsed
        .open(passphrase.as_ref())
        .with_context(|| format!("key file {}", path.display()))
}

/// Parses a key file without opening it.
pub fn parse_key_file(path: &Path) -> Result<KeyFile> {
    let bytes = read_start(path, model_key::MAX_KEY_FILE + 1)?;
    KeyFile::parse(bytes.expose()).with_context(|| format!("key file {}", path.display()))
}

/// The passphrase of a file's first line, if a file is given.
pub fn passphrase_of(arguments: &PassphraseArgs) -> Result<Option<Passphrase>> {
    let Some(path) = &arguments.passphrase_file else {
        return Ok(None);
    };
    let bytes = read_start(path, MAX_PASSPHRASE + 1)?;
    let line = bytes.expose().split(|byte| *byte == b'\n').next();
    let line = line.unwrap_or_default();
    if line.len() > MAX_PASSPHRASE {
        bail!(
            "passphrase file {}: its first line has more than {MAX_PASSPHRASE} bytes",
            path.display()
        );
    }
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let passphrase = Passphrase::new(SecretBytes::new(line.to_vec()))
        .with_context(|| format!("passphrase file {}", path.display()))?;
    Ok(Some(passphrase))
}

/// The first bytes of a file or of what a pipe holds, `most` of them if there are so many.
fn read_start(path: &Path, most: usize) -> Result<SecretBytes> {
    // Sized once, so that no copy of a secret stays behind in memory that grew.
    let mut bytes = Vec::with_capacity(most);
    let read = open_readable(path)
        .and_then(|file| file.take(most as u64).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()));
    let bytes = SecretBytes::new(bytes);
    read?;
    Ok(bytes)
}

/// Opens a file to read. A pipe that nobody writes to is empty: it is not waited for.
pub fn open_readable(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)?;
    let flags = fcntl_getfl(&file)?;
    fcntl_setfl(&file, flags - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Writes a file that only its owner reads; one that exists is not replaced.
pub fn write_new_private(path: &Path, content: &[u8]) -> Result<()> {
    let in_path = || format!("cannot write {}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(in_path)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    if written.is_err() {
        // Half a file helps nobody, and what went wrong is said below.
        let _ = fs::remove_file(path);
    }
    written.with_context(in_path)
}

/// Refuses an output that is there already, be it a link that leads nowhere.
pub fn refuse_existing(output: &Path) -> Result<()> {
    if output.is_symlink() || output.exists() {
        bail!("{} exists already", output.display());
    }
    Ok(())
}

/// The folder that a path is in.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// A file that has no name until it is finished: whatever ends the process before, it leaves
/// nothing. Where the file system has no files without names, it has a hidden one meanwhile, which
/// is removed when the file is dropped.
pub struct StagedFile {
    file: BufWriter<File>,
    hidden: Option<Hidden>,
    target: PathBuf,
}

/// The name of a file under way, removed when dropped.
struct Hidden(PathBuf);

impl StagedFile {
    /// Starts a file at `target`, which must not exist.
    pub fn create(target: &Path) -> Result<Self> {
        refuse_existing(target)?;
        let (file, hidden) =
            Self::open(target).with_context(|| format!("cannot write {}", target.display()))?;
        Ok(Self {
            file: BufWriter::with_capacity(1 << 20, file),
            hidden,
            target: target.to_owned(),
        })
    }

    fn open(target: &Path) -> std::io::Result<(File, Option<Hidden>)> {
        let name = target.file_name().ok_or(ErrorKind::InvalidFilename)?;
        let nameless = OpenOptions::new()
            .write(true)
            .read(true)
            .mode(0o666)
            .custom_flags(OFlags::TMPFILE.bits() as i32)
            .open(parent(target));
        match nameless {
            Err(error) if has_no_nameless_files(&error) => {}
            opened => return Ok((opened?, None)),
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let hidden = Hidden(target.with_file_name(hidden));
        let file = OpenOptions::new()
            .write(true)
            .read(true)
            .create_new(true)
            .open(&hidden.0)?;
        Ok((file, Some(hidden)))
    }

    /// Where its bytes go.
    pub fn writer(&mut self) -> &mut BufWriter<File> {
        &mut self.file
    }

    /// Makes it durable and gives it its name, never over a file that appeared meanwhile.
    pub fn finish(mut self) -> Result<()> {
        let mut named = || {
            self.file.flush()?;
            self.file.get_ref().sync_all()?;
            match &self.hidden {
                Some(hidden) => fs::hard_link(&hidden.0, &self.target),
                None => {
                    let file = format!("/proc/self/fd/{}", self.file.get_ref().as_raw_fd());
                    linkat(CWD, file, CWD, &self.target, AtFlags::SYMLINK_FOLLOW)
                        .map_err(Into::into)
                }
            }
        };
        named().with_context(|| format!("cannot write {}", self.target.display()))
    }
}

/// Whether a file system refused a file without a name because it knows none.
fn has_no_nameless_files(error: &std::io::Error) -> bool {
    let is = |errno: Errno| error.raw_os_error() == Some(errno.raw_os_error());
    is(Errno::OPNOTSUPP) || is(Errno::ISDIR) || is(Errno::INVAL)
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Gone already, or in a folder that is gone.
        let _ = fs::remove_file(&self.0);
    }
}

const MAX_PASSPHRASE: usize = 64 * 1024;
