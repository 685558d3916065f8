//! The header of a safetensors file, read strictly.
//!
//! A file is a `u64` header length, the header as JSON, and the data. Everything is bounded before
//! it is allocated; names are unique; the tensors cover the data exactly, without holes, overlaps
//! or bytes that belong to none. Sources: the safetensors format page, and its reference reader,
//! which accepts no less than this does for files that it writes.

use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::dtype::Dtype;

/// The longest header accepted, in bytes: the reference reader's bound.
pub const MAX_HEADER: u64 = 100_000_000;
/// The most tensors accepted in one file.
pub const MAX_TENSORS: usize = 1_000_000;
/// The longest tensor name accepted, in bytes.
pub const MAX_NAME: usize = 1024;
/// The most dimensions accepted.
pub const MAX_RANK: usize = 32;
/// The most entries accepted in `__metadata__`.
pub const MAX_METADATA: usize = 10_000;

/// The longest reason kept of what was wrong with the JSON.
const MAX_REASON: usize = 400;
/// Bytes of the length field before the header.
pub const LENGTH_FIELD: u64 = 8;

/// One tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<u64>,
    /// Length of the data in bytes: `dtype` times `shape`.
    pub bytes: u64,
    /// Offset of the data, in bytes from the start of the file.
    pub offset: u64,
    /// Which of the checkpoint's shards holds it; 0 in a lone file.
    pub shard: usize,
}

/// A file's header: its metadata and its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    metadata: Vec<(String, String)>,
    tensors: Vec<TensorInfo>,
    data_start: u64,
    data_length: u64,
}

/// Why a safetensors header was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file ends inside the length field.
    #[error("the file has {length} bytes, too few for the header length field")]
    NoLength {
        /// The file's length.
        length: u64,
    },
    /// The header is longer than this reader takes.
    #[error("header length {length} is above the maximum {MAX_HEADER}")]
    TooLong {
        /// The claimed length.
        length: u64,
    },
    /// The header is longer than the file.
    #[error("header length {length} reaches past the end of the file ({left} bytes are left)")]
    PastEnd {
        /// The claimed length.
        length: u64,
        /// Bytes after the length field.
        left: u64,
    },
    /// The header is not UTF-8.
    #[error("the header is not UTF-8 (byte {at})")]
    NotUtf8 {
        /// Offset of the first bad byte within the header.
        at: usize,
    },
    /// The header is not the JSON that the format asks for; the text names the field.
    #[error("header: {reason}")]
    Json {
        /// What was wrong, with the tensor's name where there is one.
        reason: String,
    },
    /// A tensor's shape does not fit its bytes.
    #[error("tensor {name:?}: {dtype} of shape {shape:?} does not fit its {bytes} bytes")]
    Shape {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<u64>,
        /// What data_offsets gives it.
        bytes: u64,
    },
    /// A tensor's data_offsets run backwards.
    #[error("tensor {name:?}: data_offsets end before they start")]
    Backwards {
        /// The tensor.
        name: String,
    },
    /// Two tensors share bytes.
    #[error("tensor {name:?} overlaps tensor {other:?}")]
    Overlap {
        /// The later tensor.
        name: String,
        /// The earlier one.
        other: String,
    },
    /// Bytes before a tensor belong to none.
    #[error("a hole of {bytes} bytes before tensor {name:?}")]
    Hole {
        /// The tensor after the hole.
        name: String,
        /// The hole's size.
        bytes: u64,
    },
    /// A tensor ends past the file.
    #[error("tensor {name:?} ends at data byte {end}, past the file's {data_length}")]
    TensorPastEnd {
        /// The tensor.
        name: String,
        /// Its end.
        end: u64,
        /// Bytes of data in the file.
        data_length: u64,
    },
    /// Data after the last tensor.
    #[error("{bytes} bytes follow the last tensor")]
    Trailing {
        /// How many.
        bytes: u64,
    },
}

impl Header {
    /// The header's own length, from a file's first 8 bytes, checked against the bound and against
    /// the file's length. To be called before anything is allocated for it.
    pub fn length(field: [u8; 8], file_length: u64) -> Result<u64, HeaderError> {
        let length = u64::from_le_bytes(field);
        let left = file_length.saturating_sub(LENGTH_FIELD);
        if length > left {
            return Err(HeaderError::PastEnd { length, left });
        }
        if length > MAX_HEADER {
            return Err(HeaderError::TooLong { length });
        }
        Ok(length)
    }

    /// Reads a whole file held in memory; tensors' offsets index into `file`.
    pub fn parse_file(file: &[u8]) -> Result<Self, HeaderError> {
        let file_length = file.len() as u64;
        let Some((field, rest)) = file.split_first_chunk::<8>() else {
            return Err(HeaderError::NoLength {
                length: file_length,
            });
        };
        let length = Self::length(*field, file_length)?;
        Self::parse(&rest[..length as usize], file_length)
    }

    /// Reads the header's JSON, `json`, of a file of `file_length` bytes.
    pub fn parse(json: &[u8], file_length: u64) -> Result<Self, HeaderError> {
        let text = std::str::from_utf8(json).map_err(|error| HeaderError::NotUtf8 {
            at: error.valid_up_to(),
        })?;
        if !text.starts_with('{') {
            let reason = "does not start with an object".to_owned();
            return Err(HeaderError::Json { reason });
        }
        let raw: RawHeader = serde_json::from_str(text).map_err(|error| {
            let mut reason = error.to_string();
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
            HeaderError::Json { reason }
        })?;
        let data_start = LENGTH_FIELD + json.len() as u64;
        let data_length = file_length.saturating_sub(data_start);
        let tensors = place(raw.tensors, data_start, data_length)?;
        Ok(Self {
            metadata: raw.metadata,
            tensors,
            data_start,
            data_length,
        })
    }

    /// The tensors in the order of their data.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// `__metadata__`, in the file's order.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// One metadata value.
    #[must_use]
    pub fn metadata_value(&self, key: &str) -> Option<&str> {
        let found = self.metadata.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Offset of the first data byte in the file.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// Bytes of data.
    #[must_use]
    pub fn data_length(&self) -> u64 {
        self.data_length
    }

    /// Takes the header apart: metadata, and tensors in the order of their data.
    #[must_use]
    pub fn into_parts(self) -> (Vec<(String, String)>, Vec<TensorInfo>) {
        (self.metadata, self.tensors)
    }
}

/// Writes a header: the length field, the JSON as the safetensors library writes it, and spaces up
/// to a multiple of 8 and at least up to `room` bytes of JSON. `tensors` come in the order of their
/// data, which starts at offset 0.
#[must_use]
pub fn encode<'a>(
    metadata: &[(String, String)],
    tensors: impl Iterator<Item = (&'a str, Dtype, &'a [u64], u64)>,
    room: usize,
) -> Vec<u8> {
    let mut json = String::from("{");
    if !metadata.is_empty() {
        json.push_str("\"__metadata__\":{");
        for (position, (key, value)) in metadata.iter().enumerate() {
            if position > 0 {
                json.push(',');
            }
            push_string(&mut json, key);
            json.push(':');
            push_string(&mut json, value);
        }
        json.push('}');
    }
    let mut start = 0;
    for (name, dtype, shape, bytes) in tensors {
        if json.len() > 1 {
            json.push(',');
        }
        push_string(&mut json, name);
        json.push_str(&format!(":{{\"dtype\":\"{dtype}\",\"shape\":["));
        for (position, dimension) in shape.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            json.push_str(&format!("{comma}{dimension}"));
        }
        json.push_str(&format!("],\"data_offsets\":[{start},{}]}}", start + bytes));
        start += bytes;
    }
    json.push('}');
    let length = json.len().max(room).next_multiple_of(8);
    let mut out = Vec::with_capacity(8 + length);
    out.extend_from_slice(&(length as u64).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    out.resize(8 + length, b' ');
    out
}

fn push_string(json: &mut String, text: &str) {
    json.push_str(&serde_json::Value::from(text).to_string());
}

/// Checks that the tensors cover the data exactly, and gives them in the order of their data.
fn place(
    mut raw: Vec<(String, RawTensor)>,
    data_start: u64,
    data_length: u64,
) -> Result<Vec<TensorInfo>, HeaderError> {
    raw.sort_by(|a, b| (a.1.data_offsets, &a.0).cmp(&(b.1.data_offsets, &b.0)));
    let mut tensors: Vec<TensorInfo> = Vec::with_capacity(raw.len());
    let mut reached = 0;
    for (name, tensor) in raw {
        let (start, end) = tensor.data_offsets;
        if end < start {
            return Err(HeaderError::Backwards { name });
        }
        if start < reached {
            let other = tensors.last().map(|last| last.name.clone());
            return Err(HeaderError::Overlap {
                name,
                other: other.unwrap_or_default(),
            });
        }
        if start > reached {
            let bytes = start - reached;
            return Err(HeaderError::Hole { name, bytes });
        }
        if end > data_length {
            return Err(HeaderError::TensorPastEnd {
                name,
                end,
                data_length,
            });
        }
        let (dtype, shape, bytes) = (tensor.dtype, tensor.shape.0, end - start);
        if dtype.byte_length(&shape) != Some(bytes) {
            return Err(HeaderError::Shape {
                name,
                dtype,
                shape,
                bytes,
            });
        }
        reached = end;
        tensors.push(TensorInfo {
            name,
            dtype,
            shape,
            bytes,
            offset: data_start + start,
            shard: 0,
        });
    }
    if reached < data_length {
        let bytes = data_length - reached;
        return Err(HeaderError::Trailing { bytes });
    }
    Ok(tensors)
}

struct RawHeader {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTensor {
    dtype: Dtype,
    shape: Shape,
    data_offsets: (u64, u64),
}

struct Shape(Vec<u64>);

/// A structure written as an object; serde's own form would also take a list of its fields.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut metadata = None;
                let mut tensors = Vec::new();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        let Metadata(entries) = map.next_value().map_err(|error| {
                            A::Error::custom(format_args!("__metadata__: {error}"))
                        })?;
                        if metadata.replace(entries).is_some() {
                            return Err(A::Error::custom("__metadata__ appears twice"));
                        }
                        continue;
                    }
                    if name.is_empty() || name.chars().any(char::is_control) {
                        return Err(A::Error::custom(format_args!(
                            "tensor name {:?} is empty or holds a control character",
                            name.get(..MAX_NAME).unwrap_or_default()
                        )));
                    }
                    if name.len() > MAX_NAME {
                        return Err(A::Error::custom(format_args!(
                            "a tensor name of {} bytes is above the maximum {MAX_NAME}",
                            name.len()
                        )));
                    }
                    if tensors.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format_args!(
                            "more than {MAX_TENSORS} tensors"
                        )));
                    }
                    let tensor = map
                        .next_value::<Object<RawTensor>>()
                        .map_err(|e| A::Error::custom(format_args!("tensor {name:?}: {e}")))?;
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!(
                            "tensor {name:?} appears twice"
                        )));
                    }
                    tensors.push((name, tensor.0));
                }
                Ok(RawHeader {
                    metadata: metadata.unwrap_or_default(),
                    tensors,
                })
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

struct Metadata(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut entries: Vec<(String, String)> = Vec::new();
                let mut seen = HashSet::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if entries.len() == MAX_METADATA {
                        return Err(A::Error::custom(format_args!(
                            "more than {MAX_METADATA} entries"
                        )));
                    }
                    if !seen.insert(key.clone()) {
                        return Err(A::Error::custom(format_args!("{key:?} appears twice")));
                    }
                    entries.push((key, value));
                }
                Ok(Metadata(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Dimensions;
        impl<'de> Visitor<'de> for Dimensions {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element::<u64>()? {
                    if shape.len() == MAX_RANK {
                        return Err(A::Error::custom(format_args!(
                            "more than {MAX_RANK} dimensions"
                        )));
                    }
                    shape.push(dimension);
                }
                Ok(Shape(shape))
            }
        }
        deserializer.deserialize_seq(Dimensions)
    }
}
