use identifiers::Sha256Digest;

/// Why a repository call had no effect, by whose fault it is.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The caller named a record that does not exist.
    #[error("no such {0}")]
    NotFound(&'static str),
    /// The request contradicts what is stored.
    #[error("{0}")]
    Conflict(Conflict),
    /// The caller's lease or grant was taken over by a later one.
    #[error("a later lease has taken over")]
    FencedOff,
    /// The caller used up what its policy allows for now.
    #[error("{used} of {limit} unlocks in this window are used")]
    QuotaExceeded {
        /// Unlocks in the window.
        used: u64,
        /// The most allowed.
        limit: u64,
    },
    /// Too many writes wait already; try again later.
    #[error("too many writes are waiting")]
    Busy,
    /// The store cannot be reached, or dropped the connection. The call can be repeated.
    #[error("the store is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A stored value is not what this software writes.
    #[error("stored {0} is damaged")]
    Damaged(&'static str),
    /// The store refused a statement for another reason: a defect.
    #[error("the store refused a statement")]
    Internal(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// A contradiction between a request and what is stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// A unique name is in use.
    #[error("the {0} name is taken")]
    NameTaken(&'static str),
    /// A request id was used before, with another body.
    #[error("the request id was used before with another request")]
    RequestReused,
    /// The key already serves another source.
    #[error("the key already serves the source {bound}")]
    KeyServesAnotherSource {
        /// Base-weight aggregate the key is bound to.
        bound: Sha256Digest,
    },
    /// The record's state does not allow the change.
    #[error("the {what} is {state}")]
    State {
        /// What kind of record.
        what: &'static str,
        /// Its present state.
        state: &'static str,
    },
    /// A receipt id is in the log with other bytes.
    #[error("the receipt id is in the log with other bytes")]
    ReceiptReused,
    /// A record with the same id and other content exists.
    #[error("the {0} exists with other content")]
    OtherContent(&'static str),
}

impl From<Conflict> for RepositoryError {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}
