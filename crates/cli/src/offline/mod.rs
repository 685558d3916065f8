//! Commands that need no services: keys come from key files only.

pub mod blob;
mod catalog;
pub mod checkpoint;
pub mod convert;
pub mod identity;
pub mod jlm;
pub mod serve_view;
mod spans;
