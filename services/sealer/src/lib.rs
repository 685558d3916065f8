//! The sealer service.
