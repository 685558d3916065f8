//! Immutable blobs by SHA-256 over an object store.
