//! The CPU inference engine: graph, KV cache, sampling.
//!
//! [`Model`] resolves a container's tensors; [`Session`] runs tokens through them. Weights are
//! read where they lie, on pages that a [`Weights`] lends for as long as one layer (or expert)
//! computes: the engine copies none, so the memory of a run is the dense region, the lender's
//! budget, and the KV cache.
//!
//! Decoders of the llama, qwen2, qwen3, qwen3moe and olmoe families are computed with f32 sums
//! over f32, f16, bfloat16 and all packed weight types. The logits of a position depend neither
//! on how a prompt is split nor on which pages were resident.

#![expect(
    unsafe_code,
    reason = "vector instructions, behind proofs of the processor's features"
)]

mod error;
mod forward;
mod kernels;
mod kv;
mod model;
mod paged;
mod rope;
mod sampling;
mod session;
mod weights;

pub use error::{ModelError, RunError};
pub use kernels::{Level, Matrix};
pub use kv::{KvPool, KvShape};
pub use model::Model;
pub use paged::Paged;
pub use sampling::Sampling;
pub use session::{Finish, Request, Session};
pub use weights::{InMemory, Page, SourceError, Weights};
