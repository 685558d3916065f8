//! Tokenizer and chat templates from a container's vocabulary.
