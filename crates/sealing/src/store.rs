//! Store records and catalog manifests: digests of every file of a directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use checkpoint::json::{Style, Value, write};
use checkpoint::{Root, SourceFile};
use identifiers::Sha256Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::SealingError;
use crate::files::require_regular;
use crate::metadata::SealMetadata;

/// What `show` tells of a sealed directory.
#[derive(Debug, Clone, Serialize)]
pub struct Shown {
    /// The scheme's name.
    pub scheme: &'static str,
    /// The transform's name.
    pub transform: Option<&'static str>,
    /// The key's fingerprint.
    pub fingerprint: String,
    /// The sealed architecture.
    pub architecture: String,
    /// The lock's version.
    pub lock: Option<String>,
    /// Files and their sizes.
    pub files: BTreeMap<String, u64>,
    /// The store record's path, where there is one.
    pub record: Option<PathBuf>,
}

/// A store record: the state of a directory when it was recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreRecord {
    /// `kllm-store`.
    pub format: String,
    /// 1.
    pub version: u32,
    /// The public seal metadata object.
    pub kllm: serde_json::Value,
    /// Digest and size of every file.
    pub files: BTreeMap<String, RecordedFile>,
}

/// One file of a store record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedFile {
    /// 64 hex digits.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// Paths in which a directory differs from its record or manifest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct CheckReport {
    /// Recorded and not there.
    pub missing: Vec<String>,
    /// There and not recorded.
    pub extra: Vec<String>,
    /// With other bytes than recorded.
    pub differing: Vec<String>,
}

impl CheckReport {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.differing.is_empty()
    }
}

/// Looks at a sealed directory.
pub fn show(directory: &Path) -> Result<Shown, SealingError> {
    let root = Root::open(directory)?;
    let metadata = SealMetadata::require(&root)?;
    let record = record_path(directory).filter(|path| path.is_file());
    let files = root
        .list()?
        .into_iter()
        .map(|entry| (entry.path, entry.bytes));
    Ok(Shown {
        scheme: metadata.scheme.name(),
        transform: metadata.transform.map(weight_transform::Transform::name),
        fingerprint: metadata.fingerprint.to_string(),
        architecture: metadata.architecture,
        lock: metadata.lock.map(|version| version.to_string()),
        files: files.collect(),
        record,
    })
}

/// Where a directory's store record is: `.<directory>.kllm-store.json` beside it.
#[must_use]
pub fn record_path(directory: &Path) -> Option<PathBuf> {
    let name = directory.file_name()?.to_str()?;
    Some(directory.with_file_name(format!(".{name}.kllm-store.json")))
}

impl StoreRecord {
    /// Records a sealed directory as it is now.
    pub fn of(directory: &Path) -> Result<Self, SealingError> {
        let root = Root::open(directory)?;
        let metadata = SealMetadata::require(&root)?;
        Ok(Self {
            format: "kllm-store".to_owned(),
            version: 1,
            kllm: metadata.object.to_serde(),
            files: digests(&root)?,
        })
    }

    /// The record's text.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a record has text keys only")
    }

    /// Reads a record; unknown fields, formats and versions are refused.
    pub fn from_json(file: &str, text: &[u8]) -> Result<Self, SealingError> {
        let fault = |problem: String| SealingError::File {
            file: file.to_owned(),
            problem,
        };
        let record: Self =
            serde_json::from_slice(text).map_err(|error| fault(error.to_string()))?;
        if record.format != "kllm-store" || record.version != 1 {
            return Err(fault(
                "format or version is not that of a store record".to_owned(),
            ));
        }
        Ok(record)
    }

    /// Compares a directory with the record.
    pub fn check(&self, directory: &Path) -> Result<CheckReport, SealingError> {
        let expected = self.files.iter();
        let expected = expected.map(|(path, file)| (path.as_str(), file.sha256.as_str()));
        compare(&digests(&Root::open(directory)?)?, expected, &[])
    }
}

/// The catalog's description of a published model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogEntry {
    /// The model's name.
    pub name: String,
    /// Repository of the base.
    pub repo_id: String,
    /// Revision of the base.
    pub revision: String,
    /// Licence of the base.
    pub license: String,
    /// For example `text`.
    pub modality: String,
    /// Whether it is published for client-keyed serving.
    pub client: bool,
    /// Version of the catalog key.
    pub key_version: u32,
    /// Version of the tool that sealed it.
    pub kllm: String,
    /// Days until the model is published.
    pub embargo_days: u32,
    /// Whether access to the base is gated.
    pub gated: bool,
}

/// The text of `kllm-manifest.json` for a sealed directory, with the newline at its end.
pub fn catalog_manifest(directory: &Path, entry: &CatalogEntry) -> Result<String, SealingError> {
    let root = Root::open(directory)?;
    let metadata = SealMetadata::require(&root)?;
    let files = digests(&root)?;
    let files = files
        .iter()
        .map(|(path, file)| (path.as_str(), file.sha256.as_str()));
    Ok(catalog_text(&metadata, entry, files))
}

/// As [`catalog_manifest`], from every file's path, in order, and SHA-256 in hex.
#[must_use]
pub fn catalog_text<'a>(
    metadata: &SealMetadata,
    entry: &CatalogEntry,
    files: impl Iterator<Item = (&'a str, &'a str)>,
) -> String {
    let number = |n: u32| Value::from(u64::from(n));
    let object = |entries: Vec<(&str, Value)>| {
        Value::Object(
            entries
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect(),
        )
    };
    let files = files.filter(|(path, _)| ![CATALOG_MANIFEST, MODEL_SIGNATURE].contains(path));
    let files = files.map(|(path, sha256)| (path.to_owned(), sha256.into()));
    let transform = metadata.transform.map_or(Value::Null, |t| t.name().into());
    let manifest = object(vec![
        ("format", "kllm-catalog".into()),
        ("version", number(1)),
        ("name", entry.name.as_str().into()),
        (
            "base",
            object(vec![
                ("repo_id", entry.repo_id.as_str().into()),
                ("revision", entry.revision.as_str().into()),
                ("license", entry.license.as_str().into()),
            ]),
        ),
        ("modality", entry.modality.as_str().into()),
        ("transform", transform),
        ("client", entry.client.into()),
        (
            "key",
            object(vec![
                ("fingerprint", metadata.fingerprint.to_string().into()),
                ("key_version", number(entry.key_version)),
            ]),
        ),
        ("kllm", entry.kllm.as_str().into()),
        ("embargo_days", number(entry.embargo_days)),
        ("gated", entry.gated.into()),
        ("files", Value::Object(files.collect())),
    ]);
    write(&manifest, Style::Indented) + "\n"
}

/// Compares a published directory with its `kllm-manifest.json`.
pub fn check_catalog(directory: &Path) -> Result<CheckReport, SealingError> {
    let root = Root::open(directory)?;
    let fault = |problem: &str| SealingError::File {
        file: CATALOG_MANIFEST.to_owned(),
        problem: problem.to_owned(),
    };
    let manifest = root.read_json(CATALOG_MANIFEST)?;
    let text = |field: &str| manifest.get(field).and_then(Value::as_str);
    if text("format") != Some("kllm-catalog")
        || manifest.get("version").and_then(Value::as_u64) != Some(1)
    {
        return Err(fault("format: not kllm-catalog, version 1"));
    }
    let files = manifest.get("files").and_then(Value::as_object);
    let files = files.ok_or_else(|| fault("files: not an object"))?;
    let mut expected = Vec::with_capacity(files.len());
    for (path, digest) in files {
        let digest = digest
            .as_str()
            .filter(|text| Sha256Digest::from_hex(text).is_ok());
        expected.push((
            path.as_str(),
            digest.ok_or_else(|| fault("files: a digest is not 64 hex digits"))?,
        ));
    }
    let unlisted = [CATALOG_MANIFEST, MODEL_SIGNATURE];
    compare(&digests(&root)?, expected.into_iter(), &unlisted)
}

fn compare<'a>(
    found: &BTreeMap<String, RecordedFile>,
    expected: impl Iterator<Item = (&'a str, &'a str)>,
    unlisted: &[&str],
) -> Result<CheckReport, SealingError> {
    let expected: BTreeMap<&str, &str> = expected.collect();
    let mut report = CheckReport::default();
    for (path, digest) in &expected {
        match found.get(*path) {
            None => report.missing.push((*path).to_owned()),
            Some(file) if file.sha256 != *digest => report.differing.push((*path).to_owned()),
            Some(_) => {}
        }
    }
    for path in found.keys() {
        if !expected.contains_key(path.as_str()) && !unlisted.contains(&path.as_str()) {
            report.extra.push(path.clone());
        }
    }
    Ok(report)
}

fn digests(root: &Root) -> Result<BTreeMap<String, RecordedFile>, SealingError> {
    let mut out = BTreeMap::new();
    for entry in root.list()? {
        require_regular(&entry)?;
        let file = root.open_file(&entry.path)?;
        let recorded = RecordedFile {
            sha256: digest(&file)?.to_hex(),
            size: file.length(),
        };
        out.insert(entry.path, recorded);
    }
    Ok(out)
}

/// SHA-256 of a whole file, read in bounded steps.
pub(crate) fn digest(file: &SourceFile) -> Result<Sha256Digest, SealingError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; file.length().min(STEP) as usize];
    let mut at = 0;
    while at < file.length() {
        let step = (file.length() - at).min(STEP);
        let part = &mut buffer[..step as usize];
        file.read_at(at, part)?;
        hash.update(part);
        at += step;
    }
    file.check_length()?;
    Ok(Sha256Digest::new(hash.finalize().into()))
}

/// Where a published directory has its catalog manifest.
pub const CATALOG_MANIFEST: &str = "kllm-manifest.json";
/// A signature over all other files, which is made last and so is listed nowhere.
pub(crate) const MODEL_SIGNATURE: &str = "model.sig";
const STEP: u64 = 1 << 20;
