//! What the fuzz target and the corpus replay both run.

use shard_identity::ShardManifest;

/// Any bytes are refused or parsed; what parsed is written so that it parses to the same.
pub fn manifest(bytes: &[u8]) {
    let Ok(manifest) = ShardManifest::from_json(bytes) else {
        return;
    };
    let again = ShardManifest::from_json(manifest.to_json().as_bytes());
    assert_eq!(again.expect("what is written is read"), manifest);
    let rebuilt = ShardManifest::new(manifest.shards().to_vec());
    assert_eq!(rebuilt.expect("its shards are valid"), manifest);
}
