//! Typed access to a `config.json`.

use std::num::NonZeroUsize;

use serde_json::Value;

use crate::error::PlanError;

/// A configuration, or a named part of one.
#[derive(Clone)]
pub(crate) struct Config<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Config<'a> {
    pub(crate) fn new(value: &'a Value) -> Self {
        Self {
            value,
            path: String::new(),
        }
    }

    /// The object under `field`.
    pub(crate) fn part(&self, field: &str) -> Result<Self, PlanError> {
        match self.value.get(field) {
            Some(value) if value.is_object() => Ok(Self {
                value,
                path: self.at(field) + ".",
            }),
            _ => Err(self.error(field, "an object is missing")),
        }
    }

    /// A field that is there and not null.
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.value.get(field).filter(|value| !value.is_null())
    }

    /// A dimension: a positive integer.
    pub(crate) fn size(&self, field: &str) -> Result<usize, PlanError> {
        self.optional_size(field)?
            .ok_or_else(|| self.error(field, "missing"))
    }

    /// A dimension that may be absent or null.
    pub(crate) fn optional_size(&self, field: &str) -> Result<Option<usize>, PlanError> {
        let Some(value) = self.get(field) else {
            return Ok(None);
        };
        value
            .as_u64()
            .filter(|n| (1..=MAX_SIZE).contains(n))
            .map(|n| Some(n as usize))
            .ok_or_else(|| self.error(field, "not an integer from 1 to 2^26"))
    }

    /// A count that may be absent or zero.
    pub(crate) fn count(&self, field: &str) -> Result<usize, PlanError> {
        match self.get(field) {
            None => Ok(0),
            Some(value) => value
                .as_u64()
                .filter(|n| *n <= MAX_SIZE)
                .map(|n| n as usize)
                .ok_or_else(|| self.error(field, "not an integer from 0 to 2^26")),
        }
    }

    /// A flag; absent is false.
    pub(crate) fn flag(&self, field: &str) -> bool {
        self.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// A text field.
    pub(crate) fn text(&self, field: &str) -> Option<&'a str> {
        self.get(field).and_then(Value::as_str)
    }

    /// An error about `field`.
    pub(crate) fn error(&self, field: &str, problem: impl Into<String>) -> PlanError {
        PlanError::Config {
            field: self.at(field),
            problem: problem.into(),
        }
    }

    fn at(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }
}

/// How a checkpoint's weights are quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantization {
    None,
    /// FP8 with square scale blocks of this many elements, or (`None`) scales per tensor or channel.
    Fp8(Option<NonZeroUsize>),
}

impl Quantization {
    /// Reads `quantization_config`; anything but FP8 is refused.
    pub(crate) fn of(config: &Config<'_>) -> Result<Self, PlanError> {
        if config.get("quantization_config").is_none() {
            return Ok(Self::None);
        }
        let part = config.part("quantization_config")?;
        match part.text("quant_method") {
            Some("fp8") => {}
            other => {
                return Err(PlanError::Quantization {
                    method: other.unwrap_or("an unnamed method").to_owned(),
                });
            }
        }
        let Some(block) = part.get("weight_block_size") else {
            return Ok(Self::Fp8(None));
        };
        let sides = block.as_array().map(Vec::as_slice).unwrap_or_default();
        match sides.iter().map(Value::as_u64).collect::<Vec<_>>()[..] {
            [Some(rows), Some(columns)] if rows == columns && rows <= MAX_SIZE => {
                NonZeroUsize::new(rows as usize)
                    .map(|block| Self::Fp8(Some(block)))
                    .ok_or_else(|| part.error("weight_block_size", "zero"))
            }
            _ => Err(part.error("weight_block_size", "not two equal sides of a block")),
        }
    }

    pub(crate) fn is_fp8(self) -> bool {
        matches!(self, Self::Fp8(_))
    }

    /// The scale block's side, 0 where there is none.
    pub(crate) fn block(self) -> usize {
        match self {
            Self::Fp8(Some(block)) => block.get(),
            _ => 0,
        }
    }
}

const MAX_SIZE: u64 = 1 << 26;
