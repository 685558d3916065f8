//! What the fuzz target runs: any input is an error or a read inside the file.

#![allow(clippy::unwrap_used, reason = "test support")]

use gguf::Gguf;

/// The start of a file of a mebibyte.
pub fn gguf(data: &[u8]) {
    let file_len = 1 << 20;
    if let Ok(gguf) = Gguf::decode(data, file_len) {
        for tensor in gguf.tensors() {
            assert!(tensor.offset + tensor.bytes <= file_len, "{}", tensor.name);
        }
    }
}
