//! A strict GGUF reader.
