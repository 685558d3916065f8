//! The CPU inference engine: graph, KV cache, sampling.
