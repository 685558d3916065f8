//! The RFC 6962 log without any I/O: tree, proofs, tiles (C2SP tlog-tiles), signed notes and
//! checkpoints (C2SP signed-note, tlog-checkpoint, tlog-cosignature), offline proofs (C2SP
//! tlog-proof), the chunk root of a file, and a check of a whole stored log.

mod checkpoint;
mod chunk;
mod fsck;
mod hash;
mod note;
mod offline;
mod proof;
mod tile;
mod tree;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use chunk::{CHUNK_BYTES, ChunkHasher, ChunkTree, chunk_leaf, chunk_root, verify_chunks};
pub use fsck::{Fault, MAX_FAULTS, Report, TileReader, fsck};
pub use hash::{Hash, empty_root, leaf_hash, node_hash};
pub use note::{
    MAX_NOTE_BYTES, MAX_SIGNATURES, Note, NoteError, NoteSignature, NoteSigner, NoteVerifier,
    SignatureKind,
};
pub use offline::{MAX_PROOF_BYTES, OfflineProof, OfflineProofError};
pub use proof::{
    ProofError, ProofPlan, consistency_plan, inclusion_plan, verify_consistency, verify_inclusion,
};
pub use tile::{
    MAX_ENTRY_BYTES, TILE_WIDTH, TileError, TileKind, TilePath, decode_entries, decode_hashes,
    encode_entries, encode_hashes,
};
pub use tree::{Frontier, NodeId};
