//! Messages to the domain and back.

use api::{InvalidField, fields, v1};
use model_key::LockVersion;
use registry_domain::{Grant, KeyOrigin, KeyRecord, KeyState};

use crate::grants::OpenGrant;
use crate::scope::{GrantScope, Scheme, Transform};

pub fn key(record: KeyRecord) -> v1::Key {
    let state = match record.state {
        KeyState::Pending => v1::KeyState::Unspecified,
        KeyState::Active => v1::KeyState::Active,
        KeyState::Disabled => v1::KeyState::Disabled,
        KeyState::Destroyed => v1::KeyState::Destroyed,
    };
    let origin = match record.origin {
        KeyOrigin::Created => v1::KeyOrigin::Created,
        KeyOrigin::Imported => v1::KeyOrigin::Imported,
    };
    v1::Key {
        id: record.id.to_string(),
        name: record.name,
        fingerprint: record.fingerprint.to_string(),
        version: record.version,
        state: state.into(),
        origin: origin.into(),
        source_aggregate: record
            .source_aggregate
            .map(|aggregate| aggregate.to_string())
            .unwrap_or_default(),
        created_at: record.created_at.div_euclid(1000),
        disabled_at: record.disabled_at.map_or(0, |at| at.div_euclid(1000)),
    }
}

pub fn grant(grant: &Grant, key: &KeyRecord) -> v1::SealGrant {
    v1::SealGrant {
        id: grant.id.to_string(),
        key_id: grant.key_id.to_string(),
        fingerprint: key.fingerprint.to_string(),
        key_version: key.version,
        expires_at: grant.expires_at.div_euclid(1000),
    }
}

pub fn open_grant(request: &v1::OpenSealGrantRequest) -> Result<OpenGrant, InvalidField> {
    let scheme = match fields::known("scheme", request.scheme)? {
        v1::Scheme::Client => Scheme::Client,
        v1::Scheme::D1 => Scheme::D1,
        v1::Scheme::L1 | v1::Scheme::Unspecified => Scheme::L1,
    };
    let transform = match fields::optional_known("transform", request.transform)? {
        Some(v1::Transform::Perm) => Some(Transform::Perm),
        Some(v1::Transform::Orth) => Some(Transform::Orth),
        Some(v1::Transform::Unspecified) | None => None,
    };
    let version = |lock| match lock {
        v1::Lock::V1 => Some(LockVersion::V1),
        v1::Lock::V2 => Some(LockVersion::V2),
        v1::Lock::None | v1::Lock::Unspecified => None,
    };
    let lock = version(fields::known("lock", request.lock)?);
    let unlock = fields::optional_known("unlock", request.unlock)?.and_then(version);
    Ok(OpenGrant {
        job_id: fields::id("job_id", &request.job_id)?,
        fence: request.fence,
        key_id: fields::id("key_id", &request.key_id)?,
        source_aggregate: fields::digest("source_aggregate", &request.source_aggregate)?,
        scope: GrantScope {
            scheme,
            transform,
            lock,
            unlock,
            blob_salt: fields::optional_bytes("blob_salt", &request.blob_salt)?,
            container_salt: fields::optional_bytes("container_salt", &request.container_salt)?,
        },
    })
}
