//! Whole-suite tests: architecture bans and end-to-end runs.
