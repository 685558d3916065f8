//! The registry service.
