//! What the end-to-end tests share: a running suite on loopback with a database of its own.
