//! Wrapping keys: model keys under the root key, subkeys to a caller by HPKE.
//!
//! A model key at rest is an [envelope](wrap_model_key) under the key service's [`RootKey`].
//! Subkeys leave the service only encrypted to a caller's ephemeral [`RecipientKey`], bound to
//! the grant or capability that allows them and to the ids they were asked for.

mod envelope;
mod recipient;

pub use envelope::{
    EnvelopeError, RootKey, WRAPPED_MODEL_KEY, unwrap_model_key, wrap_model_key, wrapped_under,
};
pub use recipient::{
    MAX_SUBKEYS, Purpose, RecipientKey, Sealed, WrapError, open_model_key, open_subkeys,
    seal_model_key, seal_subkeys,
};
