//! What a blob holds: a safetensors archive of secret files and trusted tensors.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use codec::{DecodeError, Fault, Reader};
use safetensors::tensor::{TensorView, View};
use safetensors::{Dtype, SafeTensors};
use secret::SecretBytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// A payload, checked: every name is a tensor's or a safe relative path.
pub struct Payload {
    bytes: SecretBytes,
    files: BTreeMap<String, Range<usize>>,
    tensors: BTreeMap<String, TensorEntry>,
}

/// A tensor kept in a blob rather than in a shard.
#[derive(Clone, Copy)]
pub struct TrustedTensor<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost first.
    pub shape: &'a [usize],
    /// Row-major little-endian elements.
    pub data: &'a [u8],
}

/// Why a payload was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Not a safetensors archive.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A secret file whose path leaves the directory or cannot be created in it.
    #[error("secret file {0:?}: its path is not a plain relative path")]
    Path(String),
    /// A secret file that lies below another one.
    #[error("secret file {0:?} is also the folder of another")]
    FileAndFolder(String),
    /// A secret file that is not one row of bytes.
    #[error("secret file {0:?} is not a one-dimensional U8 tensor")]
    NotBytes(String),
    /// The marker of an empty payload beside other entries, or with content.
    #[error("the marker _empty must be alone and empty")]
    Empty,
    /// An entry given twice.
    #[error("entry {0:?} is there twice")]
    Repeated(String),
    /// A tensor whose data is not as long as its type and shape say.
    #[error("tensor {0:?}: its data does not fit its type and shape")]
    Tensor(String),
}

impl Payload {
    /// Checks a decrypted payload.
    pub fn parse(bytes: SecretBytes) -> Result<Self, PayloadError> {
        check_names(bytes.expose())?;
        let archive = SafeTensors::deserialize(bytes.expose())
            .map_err(|_| fault("payload", "is not a safetensors archive"))?;
        let mut files = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        let start = bytes.expose().as_ptr() as usize;
        for (name, view) in archive.iter() {
            let from = view.data().as_ptr() as usize - start;
            let range = from..from + view.data().len();
            if name == EMPTY {
                if archive.len() != 1 || !range.is_empty() {
                    return Err(PayloadError::Empty);
                }
            } else if let Some(path) = name.strip_prefix(FILE) {
                check_path(path)?;
                if view.dtype() != Dtype::U8 || view.shape().len() != 1 {
                    return Err(PayloadError::NotBytes(path.to_owned()));
                }
                files.insert(path.to_owned(), range);
            } else {
                let entry = TensorEntry {
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    range,
                };
                tensors.insert(name.to_owned(), entry);
            }
        }
        drop(archive);
        check_folders(files.keys())?;
        Ok(Self {
            bytes,
            files,
            tensors,
        })
    }

    /// The secret files: relative paths with `/`, in order, and contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let bytes = self.bytes.expose();
        self.files
            .iter()
            .map(|(path, range)| (path.as_str(), &bytes[range.clone()]))
    }

    /// One secret file's content.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        Some(&self.bytes.expose()[self.files.get(path)?.clone()])
    }

    /// The trusted tensors by name, in order.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, TrustedTensor<'_>)> {
        self.tensors.iter().map(|(name, entry)| {
            let tensor = TrustedTensor {
                dtype: entry.dtype,
                shape: &entry.shape,
                data: &self.bytes.expose()[entry.range.clone()],
            };
            (name.as_str(), tensor)
        })
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("files", &self.files.keys())
            .field("tensors", &self.tensors.keys())
            .finish()
    }
}

/// Collects files and tensors and writes the archive as the reference does: widest type first,
/// then by name.
#[derive(Default)]
pub struct PayloadWriter<'a> {
    entries: BTreeMap<String, TensorRef<'a>>,
}

impl<'a> PayloadWriter<'a> {
    /// An empty payload.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a secret file under a relative path with `/`.
    pub fn file(&mut self, path: &str, content: &'a [u8]) -> Result<(), PayloadError> {
        check_path(path)?;
        let shape = vec![content.len()];
        self.insert(format!("{FILE}{path}"), Dtype::U8, shape, content)
    }

    /// Adds a trusted tensor under its own name.
    pub fn tensor(&mut self, name: &str, tensor: TrustedTensor<'a>) -> Result<(), PayloadError> {
        if name == EMPTY || name.starts_with(FILE) || name == METADATA {
            return Err(PayloadError::Tensor(name.to_owned()));
        }
        let shape = tensor.shape.to_vec();
        self.insert(name.to_owned(), tensor.dtype, shape, tensor.data)
    }

    /// The payload's bytes.
    pub fn finish(mut self) -> Result<SecretBytes, PayloadError> {
        check_folders(
            self.entries
                .keys()
                .filter_map(|name| name.strip_prefix(FILE)),
        )?;
        if self.entries.is_empty() {
            self.insert(EMPTY.to_owned(), Dtype::F32, vec![0], &[])?;
        }
        let bytes = safetensors::serialize(self.entries, None)
            .map_err(|_| fault("payload", "is too large for a safetensors header"))?;
        Ok(SecretBytes::new(bytes))
    }

    fn insert(
        &mut self,
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        data: &'a [u8],
    ) -> Result<(), PayloadError> {
        if self.entries.contains_key(&name) {
            return Err(PayloadError::Repeated(name));
        }
        if TensorView::new(dtype, shape.clone(), data).is_err() {
            return Err(PayloadError::Tensor(name));
        }
        self.entries.insert(name, TensorRef { dtype, shape, data });
        Ok(())
    }
}

struct TensorEntry {
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

struct TensorRef<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    data: &'a [u8],
}

impl View for TensorRef<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.data.into()
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

/// The parser of the archive takes the last of two entries of one name; this refuses them.
fn check_names(bytes: &[u8]) -> Result<(), PayloadError> {
    let mut reader = Reader::new(bytes);
    let length = reader.u64("payload header length")?;
    let most = reader.left() as u64;
    if length > most {
        return Err(DecodeError {
            field: "payload header",
            offset: reader.offset(),
            fault: Fault::Truncated {
                needed: length,
                left: most,
            },
        }
        .into());
    }
    let text = reader.text("payload header", length as usize, MAX_HEADER)?;
    serde_json::from_str::<DistinctNames>(text)
        .map_err(|_| fault("payload header", "is not a JSON object of distinct names"))?;
    Ok(())
}

struct DistinctNames;

impl<'de> Deserialize<'de> for DistinctNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl<'de> Visitor<'de> for Names {
            type Value = DistinctNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of distinct names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctNames, A::Error> {
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    map.next_value::<IgnoredAny>()?;
                    if !seen.insert(name) {
                        return Err(A::Error::custom("a name is there twice"));
                    }
                }
                Ok(DistinctNames)
            }
        }

        deserializer.deserialize_map(Names)
    }
}

/// Relative, no `.`, `..` or empty segment, nothing that another system reads as a root, a
/// separator or a device.
fn check_path(path: &str) -> Result<(), PayloadError> {
    let sane = (1..=MAX_PATH).contains(&path.len())
        && !path
            .chars()
            .any(|c| c.is_control() || matches!(c, '\\' | ':'))
        && path
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | ".."));
    if sane {
        return Ok(());
    }
    Err(PayloadError::Path(path.chars().take(MAX_SHOWN).collect()))
}

fn check_folders(paths: impl Iterator<Item = impl AsRef<str>>) -> Result<(), PayloadError> {
    let paths: Vec<_> = paths.collect();
    let files: HashSet<&str> = paths.iter().map(AsRef::as_ref).collect();
    for path in &files {
        let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
        for folder in folders {
            if files.contains(folder) {
                return Err(PayloadError::FileAndFolder(folder.to_owned()));
            }
        }
    }
    Ok(())
}

fn fault(field: &'static str, reason: &str) -> DecodeError {
    DecodeError {
        field,
        offset: 0,
        fault: Fault::Invalid(reason.to_owned()),
    }
}

const FILE: &str = "file/";
const EMPTY: &str = "_empty";
const METADATA: &str = "__metadata__";
const MAX_PATH: usize = 1024;
const MAX_SHOWN: usize = 128;
/// What the safetensors library accepts.
const MAX_HEADER: usize = 100_000_000;
