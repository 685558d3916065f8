//! Hugging Face checkpoints and GGUF files to .jlm containers.
//!
//! [`plan`] reads names, shapes and small files and decides everything; [`Plan::meta`] is the
//! container's start and [`Plan::write_unit`] produces one unit at a time into the caller's
//! buffer. So a container is written front to back, or sealed as it is written, and never stands
//! in memory or on disk as a whole. [`Plan::write_piece`] produces one tensor at a time, in any order,
//! for a writer that continues where it was interrupted. Source: spec container, sections C and F.

mod error;
mod files;
mod from_gguf;
mod gguf_vocab;
mod model;
mod names;
mod plan;
mod pretokenizer;
mod produce;
mod vocab;

pub use error::ConvertError;
pub use files::SourceFiles;
pub use from_gguf::plan_gguf;
pub use plan::{Options, Piece, Plan, Warning, plan};
pub use produce::BlockSource;
