/// One page of a list that is sorted by id, newest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page<Id> {
    /// At most this many records.
    pub size: u32,
    /// Only records with an id below this one: the last id of the page before.
    pub before: Option<Id>,
}

/// The outcome of an idempotent write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inserted<T> {
    /// This call wrote the record.
    New(T),
    /// An earlier call with the same idempotency id wrote it.
    Existing(T),
}

impl<T> Inserted<T> {
    /// The record, whoever wrote it.
    #[must_use]
    pub fn into_inner(self) -> T {
        match self {
            Self::New(record) | Self::Existing(record) => record,
        }
    }

    /// Whether this call wrote it.
    #[must_use]
    pub const fn is_new(&self) -> bool {
        matches!(self, Self::New(_))
    }
}
