//! Checking a whole sealed file, without or with its keys.

use std::fmt;

use jlm::{ReadSpan, Span, UnitId};
use model_key::SubkeySource;

use crate::error::SealedJlmError;
use crate::header::SealedHeader;
use crate::section::{TRAILER_LEN, Trailer};

/// Something wrong with a sealed file.
#[derive(Debug)]
pub enum Finding {
    /// The structure is refused; nothing further can be checked.
    Structure(SealedJlmError),
    /// A unit does not open.
    Unit {
        /// The unit.
        unit: UnitId,
        /// Why.
        error: SealedJlmError,
    },
    /// A unit's key was not given.
    NoKey(UnitId),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Structure(error) => error.fmt(f),
            Self::Unit { error, .. } => error.fmt(f),
            Self::NoKey(unit) => write!(f, "{unit}: no key was given"),
        }
    }
}

/// Checks what can be checked without a key: trailer, section digest, structure, padding.
pub fn fsck<E>(file_len: u64, read: ReadSpan<'_, E>) -> Result<Result<SealedHeader, Finding>, E> {
    let mut get = |offset, length: u64| {
        let mut bytes = vec![0; length as usize];
        read(Span::new(offset, length), &mut bytes).map(|()| bytes)
    };
    let Some(at) = file_len.checked_sub(TRAILER_LEN) else {
        let short = SealedJlmError::Trailer("the file is shorter than it");
        return Ok(Err(Finding::Structure(short)));
    };
    let trailer = match Trailer::decode(&get(at, TRAILER_LEN)?, file_len) {
        Ok(trailer) => trailer,
        Err(error) => {
            // A plain container has no trailer: say that instead.
            let start = get(0, file_len.min(jlm::HEADER_LEN))?;
            return Ok(Err(Finding::Structure(plain_or(&start, error))));
        }
    };
    let start = get(0, trailer.section().offset.min(jlm::HEADER_LEN))?;
    let meta_len = match SealedHeader::meta_len(&start, &trailer) {
        Ok(length) => length,
        Err(error) => return Ok(Err(Finding::Structure(error))),
    };
    let meta = get(0, meta_len)?;
    let section = get(trailer.section().offset, trailer.section().length)?;
    Ok(SealedHeader::decode(&meta, &trailer, &section).map_err(Finding::Structure))
}

/// Checks everything: [`fsck`], then opens every unit with the keys of `keys`.
///
/// Holds one unit in memory. The list is empty for a sound file.
pub fn verify<E>(
    file_len: u64,
    read: ReadSpan<'_, E>,
    keys: &dyn SubkeySource,
) -> Result<Vec<Finding>, E> {
    let header = match fsck(file_len, read)? {
        Ok(header) => header,
        Err(finding) => return Ok(vec![finding]),
    };
    if let Err(error) = header.require_fingerprint(keys.fingerprint()) {
        return Ok(vec![Finding::Structure(error)]);
    }
    let mut findings = Vec::new();
    let mut buffer = Vec::new();
    for unit in header.container().units() {
        let Ok(key) = keys.subkey(&header.subkey_id(unit)) else {
            findings.push(Finding::NoKey(unit));
            continue;
        };
        let Some(span) = header.container().unit(unit) else {
            continue;
        };
        buffer.resize(span.length as usize, 0);
        read(span, &mut buffer)?;
        if let Err(error) = header.open_unit(unit, &key, &mut buffer) {
            findings.push(Finding::Unit { unit, error });
        }
    }
    Ok(findings)
}

fn plain_or(start: &[u8], error: SealedJlmError) -> SealedJlmError {
    match SealedHeader::refuse_plain(start) {
        Err(plain @ (SealedJlmError::Plain(_) | SealedJlmError::Magic)) => plain,
        _ => error,
    }
}
