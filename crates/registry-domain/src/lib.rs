//! Artifacts, jobs and receipts: state machines and repository traits.
