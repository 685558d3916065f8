//! The storage-node service.
