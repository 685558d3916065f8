//! What the fuzz targets and the corpus replay both run.

use tlog::{
    Checkpoint, Note, NoteVerifier, OfflineProof, TilePath, decode_entries, encode_entries,
    leaf_hash,
};

/// Any text is refused or parsed; what parsed is written so that it parses to the same again.
pub fn note(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(note) = text.parse::<Note>() {
        assert_eq!(note.encode().parse::<Note>().as_ref(), Ok(&note));
        if let Ok(checkpoint) = Checkpoint::parse_body(&note.text) {
            assert_eq!(Checkpoint::parse_body(&checkpoint.body()), Ok(checkpoint));
        }
    }
    if let Ok(key) = text.trim_end().parse::<NoteVerifier>() {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}

/// Any text is refused or parsed; a proof of an entry proves no other entry.
pub fn proof(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(proof) = text.parse::<OfflineProof>() else {
        return;
    };
    assert_eq!(
        proof.to_string().parse::<OfflineProof>().as_ref(),
        Ok(&proof)
    );
    let root = leaf_hash(b"root");
    let leaf = leaf_hash(b"leaf");
    let size = proof.index.saturating_add(1);
    // One leaf can be the root of a tree of one only.
    let proved = tlog::verify_inclusion(&leaf, proof.index, size, &proof.hashes, &root);
    assert!(proved.is_err());
}

/// Any bytes are a bundle of entries or refused; any text a tile path or refused.
pub fn tile(bytes: &[u8]) {
    let width = u32::from(bytes.first().copied().unwrap_or(0));
    if let Ok(entries) = decode_entries(bytes, width) {
        assert_eq!(encode_entries(entries).as_deref(), Ok(bytes));
    }
    let path = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| text.parse::<TilePath>().ok());
    if let Some(path) = path {
        assert_eq!(path.to_string().as_bytes(), bytes);
    }
}
