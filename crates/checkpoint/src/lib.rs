//! Hugging Face checkpoints: strict safetensors headers, directories, shard writer.
