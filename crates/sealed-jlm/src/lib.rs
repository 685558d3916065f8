//! The sealed .jlm container: codec, page sealing and opening.
