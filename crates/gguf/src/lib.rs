//! A strict GGUF reader: metadata, tensor names, types, shapes and where their bytes are.
//!
//! No I/O: [`Gguf::decode`] takes the start of the file (all of it, when it is mapped). Every
//! count is compared with what is left before it is used (spec: container, D.1).

mod value;

use std::collections::{HashMap, HashSet};

use codec::{DecodeError, Fault, Reader};
use jlm::DType;

pub use value::{Array, Value};

/// Why a file is not a GGUF file that is read here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file does not start with the GGUF magic.
    #[error("not a GGUF file: the magic is missing")]
    Magic,
    /// A version that is not read here.
    #[error("GGUF version {0} is not read here (2 and 3 are)")]
    Version(u32),
    /// The metadata does not decode.
    #[error("the GGUF metadata is malformed")]
    Malformed(#[from] DecodeError),
    /// A metadata key stands twice, or has a value of another kind than it must.
    #[error("key {key:?}: {reason}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A tensor breaks a rule.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// Its name.
        name: String,
        /// The rule.
        reason: String,
    },
}

impl GgufError {
    /// How many bytes more of the file's start the metadata has at least, when only they can tell
    /// whether it is sound.
    #[must_use]
    pub fn missing(&self) -> Option<u64> {
        match self {
            Self::Malformed(DecodeError {
                fault: Fault::Truncated { needed, left },
                ..
            }) => Some(needed.saturating_sub(*left)),
            _ => None,
        }
    }
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: DType,
    /// One to four dims, fastest first.
    pub dims: Vec<u64>,
    /// Absolute offset of its data.
    pub offset: u64,
    /// Length of its data in bytes.
    pub bytes: u64,
}

/// A GGUF file's metadata and tensor list.
#[derive(Debug, Clone, PartialEq)]
pub struct Gguf {
    values: HashMap<String, Value>,
    keys: Vec<String>,
    tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Decodes the start of a file of `file_len` bytes.
    pub fn decode(bytes: &[u8], file_len: u64) -> Result<Self, GgufError> {
        let mut reader = Reader::new(bytes);
        if reader.bytes("magic", 4).map_err(|_| GgufError::Magic)? != b"GGUF" {
            return Err(GgufError::Magic);
        }
        let version = reader.u32("version")?;
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version(version));
        }
        let n_tensors = count(&mut reader, "tensor count", MIN_TENSOR)?;
        let n_values = count(&mut reader, "key count", MIN_VALUE)?;
        let mut keys = Vec::with_capacity(n_values);
        let mut values = HashMap::with_capacity(n_values);
        for _ in 0..n_values {
            let key = text(&mut reader, "key")?;
            let value = Value::read(&mut reader)?;
            if values.insert(key.clone(), value).is_some() {
                let reason = "stands twice";
                return Err(GgufError::Key { key, reason });
            }
            keys.push(key);
        }
        let mut gguf = Self {
            values,
            keys,
            tensors: Vec::with_capacity(n_tensors),
        };
        let alignment = gguf.alignment()?;
        for _ in 0..n_tensors {
            gguf.tensors.push(read_tensor(&mut reader)?);
        }
        let data = reader.offset().next_multiple_of(alignment);
        gguf.place(data, alignment, file_len)?;
        Ok(gguf)
    }

    /// The tensors, in file order.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The metadata keys, in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(String::as_str)
    }

    /// The value of a key.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// A text value; `None` when the key is absent, an error when it is something else.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "is not text", Value::as_text)
    }

    /// An integer that fits an `i64`.
    pub fn int(&self, key: &str) -> Result<Option<i64>, GgufError> {
        self.typed(key, "is not an integer", Value::as_int)
    }

    /// A float.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "is not a float", Value::as_float)
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "is not a boolean", Value::as_bool)
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "is not a list of texts", |value| match value {
            Value::Array(Array::Texts(texts)) => Some(&texts[..]),
            _ => None,
        })
    }

    /// A list of integers.
    pub fn ints(&self, key: &str) -> Result<Option<&[i64]>, GgufError> {
        self.typed(key, "is not a list of integers", |value| match value {
            Value::Array(Array::Ints(ints)) => Some(&ints[..]),
            _ => None,
        })
    }

    /// A list of floats.
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>, GgufError> {
        self.typed(key, "is not a list of floats", |value| match value {
            Value::Array(Array::Floats(floats)) => Some(&floats[..]),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        reason: &'static str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        self.value(key)
            .map(|value| {
                read(value).ok_or_else(|| GgufError::Key {
                    key: key.to_owned(),
                    reason,
                })
            })
            .transpose()
    }

    fn alignment(&self) -> Result<u64, GgufError> {
        let alignment = self.int(ALIGNMENT)?.unwrap_or(32);
        match u64::try_from(alignment) {
            Ok(value) if value.is_power_of_two() && (8..=1 << 20).contains(&value) => Ok(value),
            _ => Err(GgufError::Key {
                key: ALIGNMENT.to_owned(),
                reason: "is not a power of two from 8 to 1048576",
            }),
        }
    }

    /// Makes offsets absolute: the tensors follow one another from `data` on, with gaps smaller
    /// than the alignment, inside the file, under names of their own.
    fn place(&mut self, data: u64, alignment: u64, file_len: u64) -> Result<(), GgufError> {
        let mut names = HashSet::with_capacity(self.tensors.len());
        let mut end = 0u64;
        for tensor in &mut self.tensors {
            let refuse = |reason: &str| GgufError::Tensor {
                name: tensor.name.clone(),
                reason: reason.to_owned(),
            };
            if !names.insert(&tensor.name) {
                return Err(refuse("stands twice"));
            }
            if tensor.offset < end || tensor.offset - end >= alignment {
                return Err(refuse("does not follow the tensor before it"));
            }
            if !tensor.offset.is_multiple_of(alignment) {
                return Err(refuse("is not aligned"));
            }
            end = tensor
                .offset
                .checked_add(tensor.bytes)
                .ok_or_else(|| refuse("ends past 2^64"))?;
            let absolute = data.checked_add(tensor.offset);
            let inside = data.checked_add(end).is_some_and(|end| end <= file_len);
            match absolute {
                Some(absolute) if inside => tensor.offset = absolute,
                _ => return Err(refuse("ends past the end of the file")),
            }
        }
        Ok(())
    }
}

fn read_tensor(reader: &mut Reader<'_>) -> Result<TensorInfo, GgufError> {
    let name = text(reader, "tensor name")?;
    let refuse = |reason: String| GgufError::Tensor {
        name: name.clone(),
        reason,
    };
    let ndim = reader.u32("tensor dims")?;
    if !(1..=4).contains(&ndim) {
        return Err(refuse(format!("has {ndim} dims")));
    }
    let dims = (0..ndim)
        .map(|_| reader.u64("tensor dims"))
        .collect::<Result<Vec<_>, _>>()?;
    let code = reader.u32("tensor type")?;
    let offset = reader.u64("tensor offset")?;
    let dtype = DType::from_ggml(code).ok_or_else(|| {
        refuse(format!(
            "has type {code}, which a container has no form for"
        ))
    })?;
    let rows = dims[1..]
        .iter()
        .try_fold(1u64, |rows, dim| rows.checked_mul(*dim));
    let bytes = rows
        .filter(|rows| *rows > 0 && dims[0] > 0)
        .and_then(|rows| dtype.source_bytes(dims[0], rows))
        .ok_or_else(|| {
            refuse("has rows that are not whole blocks, or no or too many".to_owned())
        })?;
    Ok(TensorInfo {
        name,
        dtype,
        dims,
        offset,
        bytes,
    })
}

/// A `u64` count of elements of at least `element` bytes each.
fn count(reader: &mut Reader<'_>, field: &'static str, element: u64) -> Result<usize, DecodeError> {
    let before = reader.clone();
    let count = reader.u64(field)?;
    let (needed, left) = (count.saturating_mul(element), reader.left() as u64);
    if needed > left {
        return Err(before.error(field, Fault::Truncated { needed, left }));
    }
    Ok(count as usize)
}

fn text(reader: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
    let length = count(reader, field, 1)?;
    reader.text(field, length, MAX_TEXT).map(str::to_owned)
}

const ALIGNMENT: &str = "general.alignment";
/// Name length, dim count, one dim, type, offset.
const MIN_TENSOR: u64 = 8 + 4 + 8 + 4 + 8;
/// Key length, type, one byte.
const MIN_VALUE: u64 = 8 + 4 + 1;
const MAX_TEXT: usize = 1 << 24;
