//! Checkpoints and GGUF files into .jlm containers, one tensor in memory at a time.
