//! The key-service service.
