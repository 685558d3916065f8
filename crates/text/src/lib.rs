//! Tokenizer and chat templates from a container's vocabulary.
//!
//! A container stores what a `tokenizer.json` and a `tokenizer_config.json` said in one vocab
//! record (spec: container, B.2 and C.5). [`Tokenizer`] gives the source tokenizer's ids from it,
//! whatever order the ids are in: a sealed model's ids are permuted and its merge ranks are not.
//! [`StreamDecoder`] turns ids into text as they are drawn, never cutting a character.
//! [`ChatTemplate`] writes a conversation as the model was trained to read it.

mod byte_level;
mod chat;
mod error;
mod pre_tokenize;
mod stream;
mod tokenizer;

pub use chat::{ChatTemplate, RenderLimits};
pub use error::{ChatError, TextError};
pub use stream::StreamDecoder;
pub use tokenizer::{Markers, Tokenizer};
