//! A checkpoint directory.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use identifiers::Sha256Digest;
use sha2::{Digest, Sha256};

use crate::error::CheckpointError;
use crate::header::{Header, HeaderError, LENGTH_FIELD, TensorInfo};
use crate::index::{Index, MAX_INDEX, MAX_SHARDS};
use crate::json::{self, Value};
use crate::root::{FileKind, Root, SourceFile};
use crate::source::{TensorSource, range_of};

/// The largest JSON file read into memory: tokenizers reach tens of megabytes.
pub const MAX_JSON: u64 = 256 << 20;

/// A checkpoint directory, or a component's folder of a pipeline: its shards are open, their
/// headers checked against each other and against the index.
///
/// Which files count: those that the index names (`*.safetensors.index.json`), else a lone
/// `model.safetensors` (or `diffusion_pytorch_model.safetensors`), else every `*.safetensors` of the
/// directory. Other safetensors files are never read; [`Checkpoint::strays`] lists them.
#[derive(Debug)]
pub struct Checkpoint {
    root: Root,
    index: Option<String>,
    shards: Vec<Shard>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    strays: Vec<String>,
}

/// One safetensors file of a checkpoint.
#[derive(Debug)]
pub struct Shard {
    file: SourceFile,
    name: String,
    header: Header,
}

/// A shard's identity, taken from the same open file that its tensors are read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardDigest {
    /// File name.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the whole file.
    pub sha256: Sha256Digest,
}

impl Checkpoint {
    /// Opens a directory.
    pub fn open(directory: &Path) -> Result<Self, CheckpointError> {
        Self::from_root(Root::open(directory)?)
    }

    /// Opens a component's folder of a pipeline, for example `transformer`.
    pub fn open_component(directory: &Path, component: &str) -> Result<Self, CheckpointError> {
        Self::from_root(Root::open(directory)?.folder(component)?)
    }

    /// Opens what lies beneath `root`.
    pub fn from_root(root: Root) -> Result<Self, CheckpointError> {
        let listed = safetensors_files(&root)?;
        let (index_name, index) = match find_index(&root)? {
            Some(name) => {
                let text = root.read_file(&name, MAX_INDEX)?;
                let index = Index::parse(&text).map_err(|source| CheckpointError::Index {
                    file: name.clone(),
                    source,
                })?;
                (Some(name), Some(index))
            }
            None => (None, None),
        };
        let names = match (&index, &index_name) {
            (Some(index), Some(index_name)) => shards_of_index(&root, index, index_name)?,
            _ => shards_without_index(&root, &listed)?,
        };
        let strays = listed.into_iter().filter(|name| !names.contains(name));
        let strays = strays.collect();
        let shards = names
            .iter()
            .map(|name| Shard::open(&root, name))
            .collect::<Result<Vec<_>, _>>()?;
        let tensors = source_order(&shards);
        let by_name = map_names(&shards, &tensors)?;
        if let Some(index) = &index {
            compare_with_index(index, &shards, &tensors, &by_name)?;
        }
        Ok(Self {
            root,
            index: index_name,
            shards,
            tensors,
            by_name,
            strays,
        })
    }

    /// The shards, sorted by name. [`TensorInfo::shard`] indexes into them.
    #[must_use]
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// Name of the index file that decided which shards count.
    #[must_use]
    pub fn index_file(&self) -> Option<&str> {
        self.index.as_deref()
    }

    /// Safetensors files of the directory that the checkpoint does not count and that were not
    /// opened.
    #[must_use]
    pub fn strays(&self) -> &[String] {
        &self.strays
    }

    /// The directory, for its other files.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|info| info.bytes).sum()
    }

    /// `config.json`.
    pub fn config(&self) -> Result<Value, CheckpointError> {
        self.root.read_json("config.json")
    }
}

impl TensorSource for Checkpoint {
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&at| &self.tensors[at])
    }

    fn read(&self, name: &str, out: &mut [u8]) -> Result<(), CheckpointError> {
        let info = self.require(name)?;
        if out.len() as u64 != info.bytes {
            return Err(CheckpointError::Range {
                tensor: name.to_owned(),
                start: 0,
                end: out.len() as u64,
                bytes: info.bytes,
            });
        }
        self.shards[info.shard].file.read_at(info.offset, out)
    }

    fn read_at(&self, name: &str, offset: u64, out: &mut [u8]) -> Result<(), CheckpointError> {
        let info = self.require(name)?;
        range_of(info, offset, out.len())?;
        let file = &self.shards[info.shard].file;
        file.read_at(info.offset + offset, out)
    }
}

impl Shard {
    /// Opens a safetensors file beneath `root` and checks its header.
    pub fn open(root: &Root, relative: &str) -> Result<Self, CheckpointError> {
        let file = root.open_file(relative)?;
        let refused = |source: HeaderError| CheckpointError::Header {
            file: file.name().to_owned(),
            source,
        };
        let length = file.length();
        if length < LENGTH_FIELD {
            return Err(refused(HeaderError::NoLength { length }));
        }
        let mut field = [0; LENGTH_FIELD as usize];
        file.read_at(0, &mut field)?;
        let header_length = Header::length(field, length).map_err(refused)?;
        let mut json = vec![0; header_length as usize];
        file.read_at(LENGTH_FIELD, &mut json)?;
        let header = Header::parse(&json, length).map_err(refused)?;
        Ok(Self {
            name: relative.to_owned(),
            file,
            header,
        })
    }

    /// File name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The checked header; its tensors are in the order of their data.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The open file.
    #[must_use]
    pub fn file(&self) -> &SourceFile {
        &self.file
    }

    /// SHA-256 of the file, through the descriptor that tensors are read from; fails if the file
    /// grew or shrank since it was opened. `progress` is told the bytes of each step.
    pub fn digest(&self, mut progress: impl FnMut(u64)) -> Result<ShardDigest, CheckpointError> {
        let mut hash = Sha256::new();
        let mut buffer = vec![0; HASH_STEP.min(self.file.length()) as usize];
        let mut at = 0;
        while at < self.file.length() {
            let step = HASH_STEP.min(self.file.length() - at);
            let part = &mut buffer[..step as usize];
            self.file.read_at(at, part)?;
            hash.update(part);
            at += step;
            progress(step);
        }
        self.file.check_length()?;
        Ok(ShardDigest {
            name: self.name.clone(),
            bytes: at,
            sha256: Sha256Digest::new(hash.finalize().into()),
        })
    }
}

impl Root {
    /// Reads a JSON file, keeping what Python keeps.
    pub fn read_json(&self, relative: &str) -> Result<Value, CheckpointError> {
        let file = self.open_file(relative)?;
        let text = file.read_all(MAX_JSON)?;
        json::parse(&text).map_err(|source| CheckpointError::Json {
            file: file.name().to_owned(),
            source,
        })
    }
}

/// Safetensors files directly in the directory, sorted. Links are among them, so that opening one
/// that counts refuses it by name.
fn safetensors_files(root: &Root) -> Result<Vec<String>, CheckpointError> {
    let entries = root.list_top()?.into_iter();
    let names = entries.filter(|entry| entry.path.ends_with(".safetensors"));
    Ok(names.map(|entry| entry.path).collect())
}

fn find_index(root: &Root) -> Result<Option<String>, CheckpointError> {
    for name in USUAL_INDEXES {
        if root.has_file(name)? {
            return Ok(Some(name.to_owned()));
        }
    }
    let entries = root.list_top()?.into_iter();
    let mut others = entries.filter(|entry| {
        entry.kind == FileKind::Regular && entry.path.ends_with(".safetensors.index.json")
    });
    match (others.next(), others.next()) {
        (Some(first), Some(second)) => Err(CheckpointError::SeveralIndexes {
            first: first.path,
            second: second.path,
        }),
        (first, _) => Ok(first.map(|entry| entry.path)),
    }
}

fn shards_of_index(
    root: &Root,
    index: &Index,
    index_name: &str,
) -> Result<Vec<String>, CheckpointError> {
    let names: BTreeSet<&str> = index.weight_map().iter().map(|(_, s)| s.as_str()).collect();
    for name in &names {
        if !root.has_file(name)? {
            return Err(CheckpointError::MissingShard {
                shard: (*name).to_owned(),
                named_by: index_name.to_owned(),
            });
        }
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

fn shards_without_index(root: &Root, listed: &[String]) -> Result<Vec<String>, CheckpointError> {
    let lone = LONE_FILES
        .iter()
        .find(|name| listed.iter().any(|l| l == *name));
    if let Some(lone) = lone {
        return Ok(vec![(*lone).to_owned()]);
    }
    if listed.is_empty() {
        return Err(CheckpointError::NoWeights {
            directory: root.path().to_owned(),
        });
    }
    if listed.len() > MAX_SHARDS {
        return Err(CheckpointError::TooMany {
            what: "shards",
            maximum: MAX_SHARDS,
        });
    }
    for name in listed {
        for sibling in numbered_siblings(name) {
            if listed.binary_search(&sibling).is_err() {
                return Err(CheckpointError::MissingShard {
                    shard: sibling,
                    named_by: name.clone(),
                });
            }
        }
    }
    Ok(listed.to_vec())
}

/// The names of all shards of the set that `model-00001-of-00003.safetensors` belongs to.
fn numbered_siblings(name: &str) -> Vec<String> {
    let parts = || {
        let stem = name.strip_suffix(".safetensors")?;
        let (stem, count) = stem.rsplit_once("-of-")?;
        let (stem, number) = stem.rsplit_once('-')?;
        let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let count = (digits(count) && digits(number)).then(|| count.parse().ok())??;
        (1..=MAX_SHARDS).contains(&count).then_some((stem, count))
    };
    let Some((stem, count)) = parts() else {
        return Vec::new();
    };
    (1..=count)
        .map(|number| format!("{stem}-{number:05}-of-{count:05}.safetensors"))
        .collect()
}

/// Shards by name, then tensors by name.
fn source_order(shards: &[Shard]) -> Vec<TensorInfo> {
    let mut tensors = Vec::new();
    for (number, shard) in shards.iter().enumerate() {
        let start = tensors.len();
        tensors.extend(shard.header.tensors().iter().map(|info| TensorInfo {
            shard: number,
            ..info.clone()
        }));
        tensors[start..].sort_by(|a, b| a.name.cmp(&b.name));
    }
    tensors
}

fn map_names(
    shards: &[Shard],
    tensors: &[TensorInfo],
) -> Result<HashMap<String, usize>, CheckpointError> {
    let mut by_name = HashMap::with_capacity(tensors.len());
    for (at, info) in tensors.iter().enumerate() {
        if let Some(first) = by_name.insert(info.name.clone(), at) {
            return Err(CheckpointError::TwoShards {
                tensor: info.name.clone(),
                first: shards[tensors[first].shard].name.clone(),
                second: shards[info.shard].name.clone(),
            });
        }
    }
    Ok(by_name)
}

fn compare_with_index(
    index: &Index,
    shards: &[Shard],
    tensors: &[TensorInfo],
    by_name: &HashMap<String, usize>,
) -> Result<(), CheckpointError> {
    for (tensor, shard) in index.weight_map() {
        let held = by_name
            .get(tensor)
            .map(|&at| &shards[tensors[at].shard].name);
        if held != Some(shard) {
            return Err(CheckpointError::NotInShard {
                shard: shard.clone(),
                tensor: tensor.clone(),
            });
        }
    }
    if index.weight_map().len() == tensors.len() {
        return Ok(());
    }
    let named: BTreeSet<&str> = index.weight_map().iter().map(|(t, _)| t.as_str()).collect();
    match tensors
        .iter()
        .find(|info| !named.contains(info.name.as_str()))
    {
        None => Ok(()),
        Some(info) => Err(CheckpointError::NotInIndex {
            shard: shards[info.shard].name.clone(),
            tensor: info.name.clone(),
        }),
    }
}

const USUAL_INDEXES: [&str; 2] = [
    "model.safetensors.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
];
const LONE_FILES: [&str; 2] = ["model.safetensors", "diffusion_pytorch_model.safetensors"];
/// Small enough that what was read is still in the caches when it is hashed.
const HASH_STEP: u64 = 256 << 10;
