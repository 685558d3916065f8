//! A container of large pages.

#![allow(clippy::unwrap_used, reason = "a bench fails loudly")]

use jlm::{
    Arch, Config, DType, Draft, Region, Role, TensorEntry, TensorKey, Version, WriterFingerprint,
};

/// A container of two blocks with one page each.
pub fn two(bytes: u64) -> Vec<u8> {
    let entry = |role: Role, block, dims: &[u64]| TensorEntry {
        key: TensorKey {
            role,
            block,
            index: -1,
        },
        dtype: DType::F32,
        dims: dims.to_vec(),
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: format!("{}.{block}", role.name()),
    };
    let mut config = Config::new(Arch::LLAMA);
    config.n_layer = 2;
    let container = Draft {
        version: Version::V27,
        config,
        vision_len: 0,
        vocab_len: 0,
        tensors: vec![
            entry(Role::OUTPUT_NORM, -1, &[64]),
            entry(Role::FFN_UP, 0, &[1024, bytes / 4096]),
            entry(Role::FFN_UP, 1, &[1024, bytes / 4096]),
        ],
        fingerprint: WriterFingerprint::default(),
    }
    .lay_out()
    .unwrap();
    assert_eq!(container.region(Region::Text).length, 2 * bytes);
    let mut file = container.encode_meta(&[], &[]).unwrap();
    file.resize(container.header().file_len() as usize, 0xa5);
    file
}
