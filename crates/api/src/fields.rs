//! Fields of messages as the types they should be. Every error names the field.

use std::str::FromStr;

use identifiers::{ParseIdError, RequestId, Sha256Digest};

use crate::fault::{Fault, ServiceError};

/// A field of a request that is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidField {
    /// The field, as a path in the message.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl InvalidField {
    /// `field` is wrong because of `reason`.
    pub fn new(field: &'static str, reason: impl Into<String>) -> Self {
        Self {
            field,
            reason: reason.into(),
        }
    }
}

impl ServiceError for InvalidField {
    fn fault(&self) -> Fault {
        Fault::Caller
    }

    fn reason(&self) -> &'static str {
        "INVALID_ARGUMENT"
    }
}

impl From<InvalidField> for tonic::Status {
    fn from(error: InvalidField) -> Self {
        crate::to_status(error)
    }
}

/// An identifier.
pub fn id<T: FromStr<Err = ParseIdError>>(
    field: &'static str,
    text: &str,
) -> Result<T, InvalidField> {
    text.parse()
        .map_err(|error: ParseIdError| InvalidField::new(field, error.to_string()))
}

/// An identifier, or nothing when the text is empty.
pub fn optional_id<T: FromStr<Err = ParseIdError>>(
    field: &'static str,
    text: &str,
) -> Result<Option<T>, InvalidField> {
    match text {
        "" => Ok(None),
        text => id(field, text).map(Some),
    }
}

/// A request id.
pub fn request_id(text: &str) -> Result<RequestId, InvalidField> {
    id("request_id", text)
}

/// A digest `sha256:` and hex.
pub fn digest(field: &'static str, text: &str) -> Result<Sha256Digest, InvalidField> {
    id(field, text)
}

/// A name: 1 to 128 of `A-Z a-z 0-9 . - _`, neither `.` nor `..`.
pub fn name(field: &'static str, text: &str) -> Result<String, InvalidField> {
    let sane = (1..=MAX_NAME).contains(&text.len())
        && !matches!(text, "." | "..")
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
    if sane {
        Ok(text.to_owned())
    } else {
        Err(InvalidField::new(
            field,
            "expected 1 to 128 of A-Z a-z 0-9 . - _",
        ))
    }
}

/// A sentence written by a person: at most 1024 bytes, no control characters.
pub fn sentence(field: &'static str, text: &str) -> Result<String, InvalidField> {
    if text.len() > MAX_SENTENCE {
        return Err(InvalidField::new(field, "longer than 1024 bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidField::new(field, "has a control character"));
    }
    Ok(text.to_owned())
}

/// Exactly `N` bytes.
pub fn bytes<const N: usize>(field: &'static str, value: &[u8]) -> Result<[u8; N], InvalidField> {
    value
        .try_into()
        .map_err(|_| InvalidField::new(field, format!("expected {N} bytes, found {}", value.len())))
}

/// Exactly `N` bytes, or nothing when empty.
pub fn optional_bytes<const N: usize>(
    field: &'static str,
    value: &[u8],
) -> Result<Option<[u8; N]>, InvalidField> {
    if value.is_empty() {
        return Ok(None);
    }
    bytes(field, value).map(Some)
}

/// A message that must be there.
pub fn required<T>(field: &'static str, value: Option<T>) -> Result<T, InvalidField> {
    value.ok_or_else(|| InvalidField::new(field, "required"))
}

/// A known value of an enumeration that is not `UNSPECIFIED`.
pub fn known<E: TryFrom<i32>>(field: &'static str, value: i32) -> Result<E, InvalidField> {
    optional_known(field, value)?.ok_or_else(|| InvalidField::new(field, "required"))
}

/// A known value of an enumeration, or nothing when it is `UNSPECIFIED`.
pub fn optional_known<E: TryFrom<i32>>(
    field: &'static str,
    value: i32,
) -> Result<Option<E>, InvalidField> {
    if value == 0 {
        return Ok(None);
    }
    E::try_from(value)
        .map(Some)
        .map_err(|_| InvalidField::new(field, format!("unknown value {value}")))
}

/// A page size: 0 means 100, at most 1000.
pub fn page_size(size: u32) -> Result<u32, InvalidField> {
    match size {
        0 => Ok(DEFAULT_PAGE),
        1..=MAX_PAGE => Ok(size),
        _ => Err(InvalidField::new("page_size", "expected at most 1000")),
    }
}

/// Longest name.
pub const MAX_NAME: usize = 128;
/// Longest sentence, in bytes.
pub const MAX_SENTENCE: usize = 1024;
/// Largest page.
pub const MAX_PAGE: u32 = 1000;
const DEFAULT_PAGE: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use identifiers::KeyId;
    use proto::v1::{Lock, Transform};

    #[test]
    fn errors_name_the_field() {
        let error = id::<KeyId>("key_id", "nope").unwrap_err();
        assert_eq!(
            error.to_string(),
            "key_id: not a key id: expected a hyphenated lowercase UUID"
        );
        let status = tonic::Status::from(error);
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with("key_id: "));
        assert_eq!(
            bytes::<32>("recipient", &[0; 31]).unwrap_err().to_string(),
            "recipient: expected 32 bytes, found 31"
        );
    }

    #[test]
    fn enumerations_are_known_and_set() {
        assert_eq!(known("transform", 2), Ok(Transform::Orth));
        assert!(known::<Transform>("transform", 0).is_err());
        assert!(known::<Lock>("lock", 99).is_err());
        assert_eq!(optional_known::<Lock>("lock", 0), Ok(None));
    }

    #[test]
    fn names_and_pages_are_bounded() {
        assert!(name("name", "tiny-qwen3_1.0").is_ok());
        for bad in ["", ".", "..", "a/b", "a b", &"x".repeat(129)] {
            assert!(name("name", bad).is_err(), "{bad}");
        }
        assert_eq!(page_size(0), Ok(100));
        assert_eq!(page_size(1000), Ok(1000));
        assert!(page_size(1001).is_err());
        assert!(sentence("reason", "two\nlines").is_err());
    }

    #[test]
    fn optional_fields_are_empty_or_right() {
        assert_eq!(optional_bytes::<16>("blob_salt", &[]), Ok(None));
        assert_eq!(optional_bytes("blob_salt", &[1; 16]), Ok(Some([1; 16])));
        assert!(optional_bytes::<16>("blob_salt", &[1; 15]).is_err());
        assert_eq!(optional_id::<KeyId>("key", ""), Ok(None));
        assert!(required::<u8>("key", None).is_err());
    }
}
