//! Keyed transforms per architecture: tensor name in, recipe out; a recipe applied to one tensor.
//!
//! A [`Plan`] comes from a configuration and a [`Transform`]. It gives every tensor a [`Recipe`]
//! in symbols, from which [`subkeys`] lists all that a key source will be asked for. A [`Basis`]
//! draws recipes from such a source, and [`Prepared::apply`] turns one tensor's bytes into the
//! sealed ones: perm by moving bits, orth by float64 matrix products rounded to float32 and then
//! to the tensor's type (spec: sealed checkpoint, sections 3 and 4).
//!
//! Nothing here does I/O; memory beside the caller's slices is a few hundred rows.

#![cfg_attr(
    target_arch = "x86_64",
    expect(
        unsafe_code,
        reason = "SSE2 intrinsics; each block says why it is sound"
    )
)]

mod architecture;
mod axis;
mod block;
mod config;
mod dense;
mod element;
mod error;
mod gather;
mod lane;
mod pattern;
mod plan;
mod recipe;
mod scale;
mod vector;
mod vocabulary;

pub use architecture::{
    H3Latent, architecture_name, language_model, minimax_h3_text_encoder, minimax_h3_transformer,
    minimax_h3_vae, unchanged, z_image_client_transformer, z_image_split_transformer,
    z_image_text_encoder,
};
pub use element::Element;
pub use error::{ApplyError, PlanError};
pub use plan::{Plan, Transform};
pub use recipe::{Basis, Prepared, Recipe, Tensor, subkeys};
pub use vocabulary::Vocabulary;
