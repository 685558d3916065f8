use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::SealingError;

/// Work done since the last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// Bytes of tensors written.
    pub bytes: u64,
    /// Tensors written.
    pub tensors: u64,
}

/// Where long work reports to, and is stopped from. Asked between tensors.
pub struct Monitor<'a> {
    /// Told of each tensor.
    pub progress: &'a (dyn Fn(Step) + Sync),
    /// Set to stop.
    pub cancel: &'a AtomicBool,
}

impl Monitor<'static> {
    /// Reports to nobody and never stops.
    #[must_use]
    pub fn none() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Self {
            progress: &|_| {},
            cancel: &NEVER,
        }
    }
}

impl Monitor<'_> {
    pub(crate) fn check(&self) -> Result<(), SealingError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(SealingError::Cancelled);
        }
        Ok(())
    }

    pub(crate) fn tensor(&self, bytes: u64) {
        (self.progress)(Step { bytes, tensors: 1 });
    }
}
