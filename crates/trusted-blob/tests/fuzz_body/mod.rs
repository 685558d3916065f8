//! What the fuzz targets and the corpus replay both run.

use model_key::ModelKey;
use secret::{Secret, SecretBytes};
use trusted_blob::{Header, Payload, PayloadWriter, decode};

/// Any bytes are refused or opened; a header that parsed is written as the same bytes.
pub fn blob(bytes: &[u8]) {
    if let Ok((header, length)) = Header::parse(bytes) {
        assert_eq!(header.preamble(), bytes[..length]);
    }
    // Fixture key a, which the corpus is sealed under.
    let key = ModelKey::new(Secret::fill_with(|key| key.copy_from_slice(KEY)));
    if let Ok(payload) = decode(&key, bytes) {
        self::payload(payload.expose());
    }
}

/// Any bytes are refused or parsed; what parsed is written so that it parses to the same.
pub fn payload(bytes: &[u8]) {
    let Ok(payload) = Payload::parse(SecretBytes::new(bytes.to_vec())) else {
        return;
    };
    let mut writer = PayloadWriter::new();
    for (path, content) in payload.files() {
        writer.file(path, content).expect("a parsed path is sane");
    }
    for (name, tensor) in payload.tensors() {
        writer
            .tensor(name, tensor)
            .expect("a parsed tensor is whole");
    }
    let written = writer.finish().expect("what was parsed can be written");
    let again = Payload::parse(written).expect("what is written is read");
    assert!(again.files().eq(payload.files()));
    assert_eq!(again.tensors().count(), payload.tensors().count());
}

const KEY: &[u8; 32] = &[
    0x1e, 0xb7, 0x11, 0x4b, 0xa9, 0x7e, 0x57, 0x23, 0xb4, 0x66, 0x1d, 0x32, 0x71, 0xf8, 0x53, 0xff,
    0x69, 0x7f, 0x50, 0x39, 0x2b, 0x82, 0x58, 0x6b, 0xf8, 0xb4, 0x9a, 0xb7, 0x02, 0x22, 0x81, 0xa9,
];
