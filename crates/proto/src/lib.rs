//! Generated gRPC messages, clients and servers.
//!
//! `generated/` is written by the test `tests/generated.rs` run with `CHANCERY_REGENERATE=1`; without
//! it the test fails when `proto/` and the committed code differ.

mod redacted;

/// Package `chancery.v1`.
#[expect(
    missing_docs,
    reason = "generated: the documentation is the comments of the .proto files"
)]
#[allow(
    clippy::all,
    clippy::pedantic,
    reason = "generated: which lints it meets depends on the generator's version"
)]
pub mod v1 {
    include!("generated/chancery.v1.rs");
}

/// The encoded `FileDescriptorSet` of every service, for gRPC reflection and for checks that must
/// see every method.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptor.bin");
