//! The .jlm container: codec, layout, packers and unpackers.
