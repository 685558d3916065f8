//! Model keys as the key service describes them.

use api::client::Client;
use api::{InvalidField, fields, v1};
use receipt::KeyRef;
use tonic::Status;

/// A model key's public record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFacts {
    pub key: KeyRef,
    pub is_active: bool,
}

/// Looks a key up by id or name.
pub async fn find(key_service: &Client, key: &str) -> Result<KeyFacts, Status> {
    let answer = key_service
        .call(|| {
            let mut service = key_service.key_service();
            let key = key.to_owned();
            async move { service.get_key(v1::GetKeyRequest { key }).await }
        })
        .await?
        .into_inner();
    facts(&answer).map_err(|error| Status::unavailable(format!("malformed answer: {error}")))
}

fn facts(key: &v1::Key) -> Result<KeyFacts, InvalidField> {
    Ok(KeyFacts {
        key: KeyRef {
            id: fields::id("id", &key.id)?,
            version: key.version,
            fingerprint: fields::id("fingerprint", &key.fingerprint)?,
        },
        is_active: key.state() == v1::KeyState::Active,
    })
}
