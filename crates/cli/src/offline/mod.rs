//! Commands that need no services: keys come from key files only.

pub mod blob;
pub mod checkpoint;
pub mod convert;
pub mod identity;
pub mod jlm;
mod spans;
