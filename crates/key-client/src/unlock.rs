use std::collections::HashMap;
use std::fmt;

use api::client::Client;
use api::{UnitRange, fields, v1};
use identifiers::{CapabilityId, RequestId, Sha256Digest};
use jlm::{Region, UnitId};
use key_wrap::{Purpose, RecipientKey, open_subkeys};
use model_key::{Component, Label, Subkey, SubkeyId};
use rand_core::CryptoRng;

use crate::error::KeyClientError;
use crate::spec::sealed_from_proto;

/// The keys of a container's units.
pub type UnitKeys = HashMap<UnitId, Subkey>;

/// A capability and the unit keys that came with it.
pub struct Unlocked {
    /// The token to show to storage nodes. Bound to this process's certificate, yet not for logs.
    pub capability: String,
    /// Its id.
    pub id: CapabilityId,
    /// Unix seconds.
    pub expires_at: i64,
    /// The units granted.
    pub units: Vec<UnitRange>,
    /// A key for each unit granted.
    pub keys: UnitKeys,
}

impl fmt::Debug for Unlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unlocked")
            .field("id", &self.id)
            .field("expires_at", &self.expires_at)
            .field("units", &self.units)
            .finish_non_exhaustive()
    }
}

/// Asks the key service to unlock units of an artifact (all of them when `units` is empty), whose
/// container has `salt`. A repeated request id has one effect, so that trying again is safe.
pub async fn issue_unlock(
    client: &Client,
    request_id: RequestId,
    artifact: Sha256Digest,
    salt: [u8; 16],
    units: &[UnitRange],
    rng: &mut impl CryptoRng,
) -> Result<Unlocked, KeyClientError> {
    let recipient = RecipientKey::generate(rng);
    let request = v1::IssueUnlockRequest {
        request_id: request_id.to_string(),
        artifact_digest: artifact.to_string(),
        units: units.iter().map(|range| range.to_proto()).collect(),
        recipient: recipient.public_key().to_vec(),
    };
    let answer = client
        .call(|| {
            let mut service = client.key_service();
            let request = request.clone();
            async move { service.issue_unlock(request).await }
        })
        .await?
        .into_inner();
    let id = fields::id("capability_id", &answer.capability_id)?;
    let units = UnitRange::from_protos(&answer.units)?;
    let ids = unit_ids(salt, &units);
    let sealed = sealed_from_proto("unit_keys", answer.unit_keys)?;
    let subkeys = open_subkeys(&recipient, Purpose::Capability(id), &ids, &sealed)?;
    let keys = units_of(&units).zip(subkeys).collect();
    Ok(Unlocked {
        capability: answer.capability,
        id,
        expires_at: answer.expires_at,
        units,
        keys,
    })
}

/// The subkeys of units, ranges in order and units in order: what an unlock wraps.
#[must_use]
pub fn unit_ids(salt: [u8; 16], ranges: &[UnitRange]) -> Vec<SubkeyId> {
    ranges
        .iter()
        .flat_map(|range| {
            let region = range.region;
            (range.start..range.end).map(move |unit| SubkeyId {
                component: Component::Model,
                label: Label::ContainerUnit { salt, region, unit },
            })
        })
        .collect()
}

fn units_of(ranges: &[UnitRange]) -> impl Iterator<Item = UnitId> + '_ {
    ranges.iter().flat_map(|range| {
        let region = Region::from_id(range.region).expect("a unit range has a region from 1 to 6");
        (range.start..range.end).map(move |index| UnitId::new(region, index))
    })
}
