use codec::DecodeError;
use identifiers::Fingerprint;
use model_key::SubkeyError;

/// Why a blob was not opened or sealed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// The bytes before the chunks are not a blob's.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Sealed under another key.
    #[error("the blob is sealed under the key {recorded}, not {given}")]
    Fingerprint {
        /// The header's.
        recorded: Fingerprint,
        /// The key's at hand.
        given: Fingerprint,
    },
    /// The file's length is not that of the header's chunks: cut off, or followed by more.
    #[error("the blob has {actual} bytes, its header makes it {fewest} to {most}")]
    Length {
        /// The file's length.
        actual: u64,
        /// The shortest blob with this header.
        fewest: u64,
        /// The longest.
        most: u64,
    },
    /// A chunk's authentication failed: it, its place or the header was altered.
    #[error("chunk {index} of {chunks} does not authenticate")]
    Altered {
        /// The chunk, from 0.
        index: u64,
        /// How many there are.
        chunks: u64,
    },
    /// A chunk that is not there, or is not the next one.
    #[error("there is no chunk {index} of {length} bytes here: the next is {next} of {chunks}")]
    Chunk {
        /// The chunk given.
        index: u64,
        /// Its length.
        length: u64,
        /// The chunk that was expected.
        next: u64,
        /// How many there are.
        chunks: u64,
    },
    /// A chunk size that is not written.
    #[error("a chunk has 1 to {most} bytes, not {0}", most = crate::MAX_CHUNK)]
    ChunkSize(u64),
    /// No subkey for the blob.
    #[error(transparent)]
    Subkey(#[from] SubkeyError),
}
