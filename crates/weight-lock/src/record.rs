//! The record of a locked shard: the header metadata entry `kllm.lock`.
//!
//! Version 1 is `{name: domain}`; version 2 `{"tensors": {name: [domain, format]}, "version":
//! "v2"}`. Both are JSON as Python's `json.dumps` writes it; version 2 with sorted keys.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};

use crate::element::{Domain, Element, Format, Version};
use crate::error::{DomainError, UnknownVersion};

/// The metadata key of the record in a shard's header.
pub const HEADER_KEY: &str = "kllm.lock";
/// The most tensors of one record.
pub const MAX_ENTRIES: usize = 1_000_000;

/// What a record says of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The domain's size.
    pub domain: u64,
    /// The format; always [`Format::Float`] in version 1.
    pub format: Format,
}

/// The record of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockTable {
    version: Version,
    entries: Vec<(String, Entry)>,
    by_name: HashMap<String, usize>,
}

/// Why a record was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Not the JSON that a record is; the text names the tensor or field.
    #[error("kllm.lock: {reason}")]
    Json {
        /// What was wrong.
        reason: String,
    },
    /// A version that is not read here.
    #[error("kllm.lock")]
    Version(#[from] UnknownVersion),
    /// The record's version is not the one that the seal metadata says.
    #[error("kllm.lock is of version {found}, the seal metadata says {expected}")]
    OtherVersion {
        /// The record's.
        found: Version,
        /// The metadata's.
        expected: Version,
    },
    /// A tensor of the record that the shard does not hold.
    #[error("kllm.lock names tensor {tensor:?}, which the shard does not hold")]
    AbsentTensor {
        /// The tensor.
        tensor: String,
    },
    /// A format that does not fit the tensor's dtype.
    #[error("kllm.lock: tensor {tensor:?}: format {format} does not fit dtype {dtype}")]
    Format {
        /// The tensor.
        tensor: String,
        /// The record's format.
        format: Format,
        /// The tensor's dtype.
        dtype: String,
    },
    /// A domain that the lock does not write.
    #[error("kllm.lock: tensor {tensor:?}")]
    Domain {
        /// The tensor.
        tensor: String,
        /// Why.
        #[source]
        source: DomainError,
    },
    /// A tensor is recorded twice.
    #[error("kllm.lock: tensor {tensor:?} appears twice")]
    Twice {
        /// The tensor.
        tensor: String,
    },
}

impl LockTable {
    /// A record without entries.
    #[must_use]
    pub fn new(version: Version) -> Self {
        Self {
            version,
            entries: Vec::new(),
            by_name: HashMap::new(),
        }
    }

    /// Adds a locked tensor. The reference adds them in the order of their data.
    pub fn insert(&mut self, tensor: &str, domain: Domain) -> Result<(), RecordError> {
        self.add(
            tensor.to_owned(),
            Entry {
                domain: domain.size(),
                format: domain.element().format(),
            },
        )
    }

    /// Reads a record, which must be of the version that the directory's seal metadata says.
    pub fn parse(text: &str, expected: Version) -> Result<Self, RecordError> {
        let raw: Raw = serde_json::from_str(text).map_err(|error| {
            let mut reason = error.to_string();
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
            RecordError::Json { reason }
        })?;
        let found = match &raw.version {
            None => Version::V1,
            Some(name) => name.parse()?,
        };
        if found != expected {
            return Err(RecordError::OtherVersion { found, expected });
        }
        let mut table = Self::new(found);
        for (tensor, entry) in raw.entries {
            table.add(tensor, entry)?;
        }
        Ok(table)
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The entries, in the record's order.
    #[must_use]
    pub fn entries(&self) -> &[(String, Entry)] {
        &self.entries
    }

    /// The domain of a tensor of this dtype; `None` where the tensor is not locked.
    pub fn domain(&self, tensor: &str, dtype: &str) -> Result<Option<Domain>, RecordError> {
        let Some(&at) = self.by_name.get(tensor) else {
            return Ok(None);
        };
        let Entry { domain, format } = self.entries[at].1;
        let element = Element::of_locked(dtype, format)
            .filter(|element| element.is_coded_by(self.version))
            .ok_or_else(|| RecordError::Format {
                tensor: tensor.to_owned(),
                format,
                dtype: dtype.to_owned(),
            })?;
        let domain = Domain::new(element, domain).map_err(|source| RecordError::Domain {
            tensor: tensor.to_owned(),
            source,
        })?;
        Ok(Some(domain))
    }

    /// Checks the whole record against the shard's tensors, given as name and dtype: each entry
    /// names one of them, with a format and domain that fit.
    pub fn check<'a>(
        &self,
        tensors: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), RecordError> {
        let dtypes: HashMap<&str, &str> = tensors.collect();
        for (tensor, _) in &self.entries {
            let dtype = dtypes.get(tensor.as_str());
            let dtype = dtype.ok_or_else(|| RecordError::AbsentTensor {
                tensor: tensor.clone(),
            })?;
            self.domain(tensor, dtype)?;
        }
        Ok(())
    }

    /// The record's text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        match self.version {
            Version::V1 => {
                out.push('{');
                for (at, (tensor, entry)) in self.entries.iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    out.push_str(comma);
                    push_ascii(&mut out, tensor);
                    out.push_str(&format!(": {}", entry.domain));
                }
                out.push('}');
            }
            Version::V2 => {
                let mut sorted: Vec<_> = self.entries.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                out.push_str("{\"tensors\": {");
                for (at, (tensor, entry)) in sorted.into_iter().enumerate() {
                    let comma = if at > 0 { ", " } else { "" };
                    out.push_str(comma);
                    push_ascii(&mut out, tensor);
                    out.push_str(&format!(": [{}, \"{}\"]", entry.domain, entry.format));
                }
                out.push_str("}, \"version\": \"v2\"}");
            }
        }
        out
    }

    fn add(&mut self, tensor: String, entry: Entry) -> Result<(), RecordError> {
        if self.by_name.contains_key(&tensor) {
            return Err(RecordError::Twice { tensor });
        }
        self.by_name.insert(tensor.clone(), self.entries.len());
        self.entries.push((tensor, entry));
        Ok(())
    }
}

/// The digest of a whole artifact's lock: SHA-256 over `chancery.lock-table.v1`, a NUL, the
/// version's name, a NUL, and for every locked tensor, sorted by id: the id's length as u32 LE,
/// the id (`<component folder>/<name>` or the name), the domain as u64 LE, the format's name and a
/// NUL. It depends neither on the shards nor on how a record was spaced.
#[must_use]
pub fn table_digest<'a>(
    version: Version,
    entries: impl Iterator<Item = (&'a str, Entry)>,
) -> [u8; 32] {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_by(|a, b| a.0.cmp(b.0));
    let mut hash = Sha256::new();
    hash.update(b"chancery.lock-table.v1\0");
    hash.update(format!("{version}\0"));
    for (id, entry) in entries {
        hash.update((id.len() as u32).to_le_bytes());
        hash.update(id);
        hash.update(entry.domain.to_le_bytes());
        hash.update(format!("{}\0", entry.format));
    }
    hash.finalize().into()
}

/// A JSON text escaped to ASCII, as Python writes it.
fn push_ascii(out: &mut String, text: &str) {
    let escaped = serde_json::Value::from(text).to_string();
    for c in escaped.chars() {
        if c.is_ascii() && c != '\u{7f}' {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
}

struct Raw {
    version: Option<String>,
    entries: Vec<(String, Entry)>,
}

/// A value at the top of a record: version 1's domain, or version 2's fields.
enum Top {
    Domain(u64),
    Version(String),
    Tensors(Vec<(String, Entry)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a lock record")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let (mut version, mut tensors, mut domains) = (None, None, Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    let top = map
                        .next_value::<Top>()
                        .map_err(|error| A::Error::custom(format_args!("{name:?}: {error}")))?;
                    let repeated = match top {
                        Top::Domain(domain) => {
                            let format = Format::Float;
                            domains.push((name.clone(), Entry { domain, format }));
                            domains.len() > MAX_ENTRIES
                        }
                        Top::Version(text) if name == "version" => version.replace(text).is_some(),
                        Top::Tensors(list) if name == "tensors" => tensors.replace(list).is_some(),
                        Top::Version(_) | Top::Tensors(_) => {
                            return Err(A::Error::custom(format_args!(
                                "{name:?} is not a field of a lock record"
                            )));
                        }
                    };
                    if repeated {
                        let reason = format_args!("{name:?} appears twice, or too many tensors");
                        return Err(A::Error::custom(reason));
                    }
                }
                match (version, tensors) {
                    (None, None) => Ok(Raw {
                        version: None,
                        entries: domains,
                    }),
                    (Some(version), Some(entries)) if domains.is_empty() => Ok(Raw {
                        version: Some(version),
                        entries,
                    }),
                    (None, Some(_)) => Err(A::Error::missing_field("version")),
                    (Some(_), None) => Err(A::Error::missing_field("tensors")),
                    _ => Err(A::Error::custom("a mixture of version 1 and version 2")),
                }
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Top {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Top;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a domain, a version or an object of tensors")
            }

            fn visit_u64<E>(self, domain: u64) -> Result<Top, E> {
                Ok(Top::Domain(domain))
            }

            fn visit_str<E>(self, text: &str) -> Result<Top, E> {
                Ok(Top::Version(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Top, A::Error> {
                let mut entries = Vec::new();
                while let Some(tensor) = map.next_key::<String>()? {
                    if entries.len() == MAX_ENTRIES {
                        return Err(A::Error::custom("too many tensors"));
                    }
                    let Pair(entry) = map.next_value().map_err(|error| {
                        A::Error::custom(format_args!("tensor {tensor:?}: {error}"))
                    })?;
                    entries.push((tensor, entry));
                }
                Ok(Top::Tensors(entries))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

struct Pair(Entry);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Pair;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[domain, format]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pair, A::Error> {
                let missing = |at| A::Error::invalid_length(at, &self);
                let domain = list.next_element()?.ok_or_else(|| missing(0))?;
                let name: String = list.next_element()?.ok_or_else(|| missing(1))?;
                if list.next_element::<IgnoredAny>()?.is_some() {
                    return Err(missing(3));
                }
                let format = Format::from_name(&name).ok_or_else(|| {
                    A::Error::custom(format_args!("{name:?} is not a format this reads"))
                })?;
                Ok(Pair(Entry { domain, format }))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

const MAX_REASON: usize = 400;
