//! JSON as Python reads and writes it.
//!
//! The format's JSON files were written by Python's `json.dumps`, and sealing rewrites some of
//! them, so the values here keep what Python keeps: the order of objects (of a repeated name, the
//! last value at the first place), integers of any size as their digits, and floats as `f64`,
//! written in Python's `repr` (`1e-06`, `1e+16`, `1000000000000000.0`). `NaN`, `Infinity` and
//! `-Infinity` are read and written, as Python does. A lone surrogate, which Python keeps and
//! UTF-8 has no form for, is refused.

mod parse;
mod write;

pub use parse::{JsonError, MAX_DEPTH, parse};
pub use write::{Style, write};

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number without fraction and exponent, as Python prints it: its digits.
    Integer(String),
    /// Any other number.
    Float(f64),
    /// A text.
    String(String),
    /// A list.
    Array(Vec<Self>),
    /// An object, in order; names are unique.
    Object(Vec<(String, Self)>),
}

impl Value {
    /// The entry `name` of an object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Self> {
        let found = self.as_object()?.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value)
    }

    /// The entry `name` of an object, to change.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Self> {
        let Self::Object(entries) = self else {
            return None;
        };
        let found = entries.iter_mut().find(|(key, _)| key == name);
        found.map(|(_, value)| value)
    }

    /// Sets an object's entry: in place where it exists, else at the end. Does nothing to a value
    /// that is no object.
    pub fn set(&mut self, name: &str, value: Self) {
        if let Some(slot) = self.get_mut(name) {
            *slot = value;
        } else if let Self::Object(entries) = self {
            entries.push((name.to_owned(), value));
        }
    }

    /// Takes an entry out of an object.
    pub fn remove(&mut self, name: &str) -> Option<Self> {
        let Self::Object(entries) = self else {
            return None;
        };
        let at = entries.iter().position(|(key, _)| key == name)?;
        Some(entries.remove(at).1)
    }

    /// The entries of an object.
    #[must_use]
    pub fn as_object(&self) -> Option<&[(String, Self)]> {
        match self {
            Self::Object(entries) => Some(entries),
            _ => None,
        }
    }

    /// The items of a list.
    #[must_use]
    pub fn as_array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// The boolean.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The integer, where it fits.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// The integer, where it fits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(digits) => digits.parse().ok(),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Integer(digits) => digits.parse().ok(),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether this is `null`.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// The value in the terms of `serde_json`, for reading into typed structures. Integers beyond
    /// 64 bits become floats, and floats that are not finite `null`.
    #[must_use]
    pub fn to_serde(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Integer(digits) => {
                let signed = digits.parse::<i64>().map(Into::into);
                signed
                    .or_else(|_| digits.parse::<u64>().map(Into::into))
                    .or_else(|_| digits.parse::<f64>().map(Into::into))
                    .unwrap_or_default()
            }
            Self::Float(value) => (*value).into(),
            Self::String(text) => text.as_str().into(),
            Self::Array(items) => items.iter().map(Self::to_serde).collect(),
            Self::Object(entries) => entries
                .iter()
                .map(|(name, value)| (name.clone(), value.to_serde()))
                .collect(),
        }
    }
}

impl From<&serde_json::Value> for Value {
    fn from(value: &serde_json::Value) -> Self {
        match value {
            serde_json::Value::Null => Self::Null,
            serde_json::Value::Bool(value) => Self::Bool(*value),
            serde_json::Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => Self::Float(float),
                _ => Self::Integer(number.to_string()),
            },
            serde_json::Value::String(text) => Self::String(text.clone()),
            serde_json::Value::Array(items) => Self::Array(items.iter().map(Self::from).collect()),
            serde_json::Value::Object(entries) => Self::Object(
                entries
                    .iter()
                    .map(|(name, value)| (name.clone(), Self::from(value)))
                    .collect(),
            ),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::String(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::String(text)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Integer(value.to_string())
    }
}
