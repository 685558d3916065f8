//! Files that hold keys, and outputs that appear whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use model_key::{KeyFile, ModelKey, Passphrase};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
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

/// A file that is written under another name and gets its own when it is finished. Dropped before,
/// it leaves nothing.
pub struct StagedFile {
    file: Option<BufWriter<File>>,
    staged: PathBuf,
    target: PathBuf,
}

impl StagedFile {
    /// Starts a file at `target`, which must not exist.
    pub fn create(target: &Path) -> Result<Self> {
        refuse_existing(target)?;
        let name = target
            .file_name()
            .with_context(|| format!("{} is no file name", target.display()))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let staged = target.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .read(true)
            .create_new(true)
            .open(&staged)
            .with_context(|| format!("cannot write {}", target.display()))?;
        Ok(Self {
            file: Some(BufWriter::with_capacity(1 << 20, file)),
            staged,
            target: target.to_owned(),
        })
    }

    /// Where its bytes go.
    pub fn writer(&mut self) -> &mut BufWriter<File> {
        self.file
            .as_mut()
            .expect("the file is open until it is finished")
    }

    /// Makes it durable and gives it its name.
    pub fn finish(mut self) -> Result<()> {
        let context = || format!("cannot write {}", self.target.display());
        let writer = self.file.take().expect("a file is finished once");
        let file = writer
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error)
            .with_context(context)?;
        file.sync_all().with_context(context)?;
        // Never over a file that appeared meanwhile.
        fs::hard_link(&self.staged, &self.target).with_context(context)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        // Gone already, or in a folder that is gone.
        let _ = fs::remove_file(&self.staged);
    }
}

const MAX_PASSPHRASE: usize = 64 * 1024;
