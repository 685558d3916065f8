//! Reading spans of a container file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context as _, Result};
use jlm::Span;

use crate::files::open_readable;

/// A container or blob file and its length when it was opened.
pub struct ContainerFile {
    file: File,
    name: String,
    length: u64,
}

impl ContainerFile {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let open = || -> io::Result<(File, u64)> {
            let file = open_readable(path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            Ok((file, metadata.len()))
        };
        let (file, length) = open().with_context(|| format!("cannot read {name}"))?;
        Ok(Self { file, name, length })
    }

    /// The path as given, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the file.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// Fills `out` with the bytes of a span of its length.
    pub fn read(&self, span: Span, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, span.offset)
    }

    /// The bytes of a span, which must be within the file.
    pub fn bytes(&self, span: Span) -> Result<Vec<u8>> {
        let end = span.offset.checked_add(span.length);
        anyhow::ensure!(
            end.is_some_and(|end| end <= self.length),
            "{}: the file ends at {}",
            self.name,
            self.length
        );
        let mut bytes = vec![0; span.length as usize];
        self.read(span, &mut bytes)
            .with_context(|| format!("cannot read {}", self.name))?;
        Ok(bytes)
    }

    /// The first bytes, as many as there are of `most`.
    pub fn start(&self, most: u64) -> Result<Vec<u8>> {
        self.bytes(Span::new(0, most.min(self.length)))
    }
}

impl convert::BlockSource for ContainerFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }
}
