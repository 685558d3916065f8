//! Unlocks: who gets the unit keys of an artifact, and for how long.

use std::sync::Arc;

use api::UnitRange;
use api::v1::get_artifact_request::Which;
use capability::{CertificateThumbprint, Claims, Confirmation, mint};
use custody::CustodyError;
use identifiers::{CapabilityId, Sha256Digest, SpiffeId};
use key_client::unit_ids;
use key_wrap::{MAX_SUBKEYS, Purpose, Sealed};
use registry_domain::{
    ArtifactKind, ArtifactManifest, CapabilityRecord, ContainerRecord, KeyRecord, NewCapability,
    NewRevocation, RepositoryError, Revocation, VerifiedManifest,
};
use release_policy::{Decision, Request};

use crate::app::KeyService;
use crate::error::KeyError;
use crate::keys::{Caller, body};
use crate::receipts::{Refused, millis};

/// What a node asks for.
#[derive(Debug, Clone)]
pub struct UnlockRequest {
    pub artifact: Sha256Digest,
    pub units: Vec<UnitRange>,
    pub recipient: [u8; 32],
    pub certificate: [u8; 32],
}

/// What it gets.
pub struct Unlock {
    pub token: String,
    pub capability: CapabilityRecord,
    pub units: Vec<UnitRange>,
    pub keys: Sealed,
}

impl KeyService {
    /// Decides an unlock and, if it is allowed, gives a capability and the wrapped unit keys.
    pub async fn issue_unlock(
        self: &Arc<Self>,
        caller: Caller,
        request: UnlockRequest,
    ) -> Result<Unlock, KeyError> {
        let mut about = Refused {
            request_id: Some(caller.request_id),
            units: request.units.iter().map(triple).collect(),
            ..Refused::default()
        };
        let which = Which::Digest(request.artifact.to_string());
        let artifact = match self.log.artifact(which).await {
            Ok(artifact) => artifact,
            Err(error @ (CustodyError::Unavailable(_) | CustodyError::Refused { .. })) => {
                return Err(error.into());
            }
            Err(error) => return Err(self.refuse(&caller, about, error.into()).await),
        };
        about.artifact = Some(&artifact);
        let key = match self.keys.key(artifact.manifest().key_id).await {
            Ok(key) => key,
            Err(RepositoryError::NotFound(what)) => {
                let error = RepositoryError::NotFound(what).into();
                return Err(self.refuse(&caller, about, error).await);
            }
            Err(error) => return Err(error.into()),
        };
        about.key = Some(&key);
        match self.decide(&caller, &request, &artifact, &key).await {
            Ok((capability, units, salt)) => {
                about.units = units.iter().map(triple).collect();
                self.receipts
                    .unlocked(&capability, &key, &artifact, about.units)
                    .await?;
                let token = self.mint(&capability, &request, &artifact, &units)?;
                let ids = unit_ids(salt, &units);
                let purpose = Purpose::Capability(capability.id);
                let keys = self.derive(key, ids, request.recipient, purpose).await?;
                Ok(Unlock {
                    token,
                    capability,
                    units,
                    keys,
                })
            }
            Err(error) if is_fault(&error) => Err(error),
            Err(error) => Err(self.refuse(&caller, about, error).await),
        }
    }

    /// Withdraws an artifact from a node, or from every node.
    pub async fn revoke_unlock(
        &self,
        caller: Caller,
        artifact: Sha256Digest,
        node: Option<SpiffeId>,
        reason: String,
    ) -> Result<Revocation, KeyError> {
        let known = self
            .log
            .artifact(Which::Digest(artifact.to_string()))
            .await?;
        let revocation = NewRevocation {
            caller: caller.id.clone(),
            request_id: caller.request_id,
            artifact,
            node,
            reason,
            at: self.clock.unix_millis(),
        };
        let revocation = self.keys.revoke(&revocation).await?.into_inner();
        self.receipts
            .revoked(&revocation, &known, &caller.id)
            .await?;
        Ok(revocation)
    }

    /// Everything that can say no, and the record of a yes.
    async fn decide(
        &self,
        caller: &Caller,
        request: &UnlockRequest,
        artifact: &VerifiedManifest,
        key: &KeyRecord,
    ) -> Result<(CapabilityRecord, Vec<UnitRange>, [u8; 16]), KeyError> {
        let manifest = artifact.manifest();
        let container = unlockable(manifest, key)?;
        let units = wanted_units(container, &request.units)?;
        let salt = container
            .salt_bytes()
            .ok_or(KeyError::NotUnlockable("its salt is damaged"))?;
        let epoch = self.keys.revocation_epoch().await?;
        let revocation = self.keys.revocation(&caller.id, &request.artifact).await?;
        let triples: Vec<_> = units.iter().map(triple).collect();
        let now = self.clock.unix_millis();
        let decision = self.policy.decide(
            &Request {
                node: &caller.id,
                model: &manifest.model,
                artifact: request.artifact,
                units: &triples,
                lock: &manifest.seal.lock,
                key_active: key.state == registry_domain::KeyState::Active,
                revoked: revocation.as_ref().map(|r| r.reason.as_str()),
            },
            now.div_euclid(1000),
        );
        let (lifetime, quota) = match decision {
            Decision::Allow {
                lifetime_seconds,
                quota,
            } => (i64::from(lifetime_seconds) * 1000, quota),
            Decision::Deny(reasons) => {
                let reasons: Vec<String> = reasons.iter().map(ToString::to_string).collect();
                return Err(KeyError::Denied(reasons.join("; ")));
            }
        };
        let quota = quota.map(|quota| registry_domain::Quota {
            limit: quota.limit,
            since: now - i64::from(quota.window_seconds) * 1000,
        });
        let new = NewCapability {
            id: CapabilityId::from_parts(millis(now), &self.randomness.bytes()),
            request_id: caller.request_id,
            body: request.body(),
            node: caller.id.clone(),
            artifact: request.artifact,
            key_id: key.id,
            epoch,
            issued_at: now,
            expires_at: now + lifetime,
        };
        let capability = self.keys.record_capability(&new, quota).await?.into_inner();
        if capability.expires_at <= now {
            return Err(KeyError::RequestExpired);
        }
        Ok((capability, units, salt))
    }

    fn mint(
        &self,
        capability: &CapabilityRecord,
        request: &UnlockRequest,
        artifact: &VerifiedManifest,
        units: &[UnitRange],
    ) -> Result<String, KeyError> {
        let manifest = artifact.manifest();
        let seconds = |time: i64| millis(time.div_euclid(1000));
        let mut blobs: Vec<Sha256Digest> = manifest.files.iter().map(|file| file.sha256).collect();
        blobs.sort_unstable();
        blobs.dedup();
        let mut units: Vec<capability::UnitRange> = units
            .iter()
            .map(|range| capability::UnitRange {
                region: range.region,
                start: range.start,
                end: range.end,
            })
            .collect();
        units.sort_unstable();
        let claims = Claims {
            jti: capability.id,
            iss: self.log.replica().clone(),
            sub: capability.node.clone(),
            iat: seconds(capability.issued_at),
            nbf: seconds(capability.issued_at),
            exp: seconds(capability.expires_at),
            cnf: Confirmation {
                x5t_s256: CertificateThumbprint::new(request.certificate),
            },
            artifact: capability.artifact,
            key_id: manifest.key_id,
            fingerprint: manifest.fingerprint,
            epoch: capability.epoch,
            blobs,
            units,
        };
        Ok(mint(&self.capability_key, &self.capability_kid, &claims)?)
    }

    async fn refuse(&self, caller: &Caller, about: Refused<'_>, error: KeyError) -> KeyError {
        self.receipts.refused(&caller.id, about, error).await
    }
}

impl UnlockRequest {
    fn body(&self) -> Sha256Digest {
        let mut units = Vec::with_capacity(self.units.len() * 17);
        for range in &self.units {
            units.push(range.region);
            units.extend_from_slice(&range.start.to_le_bytes());
            units.extend_from_slice(&range.end.to_le_bytes());
        }
        body(&[
            self.artifact.as_bytes(),
            &units,
            &self.recipient,
            &self.certificate,
        ])
    }
}

/// The container of an artifact that its key can unlock at all.
fn unlockable<'a>(
    manifest: &'a ArtifactManifest,
    key: &KeyRecord,
) -> Result<&'a ContainerRecord, KeyError> {
    let container = match (manifest.kind, &manifest.container) {
        (ArtifactKind::Container, Some(container)) => container,
        _ => return Err(KeyError::NotUnlockable("it is not a container")),
    };
    if manifest.fingerprint != key.fingerprint || manifest.key_version != key.version {
        return Err(KeyError::NotUnlockable(
            "its manifest names the key with another fingerprint or version",
        ));
    }
    // One key serves one source: a manifest of another source under this key is a forgery.
    if key.source_aggregate != Some(manifest.source.aggregate()) {
        return Err(KeyError::NotUnlockable(
            "the key does not serve the source in its manifest",
        ));
    }
    Ok(container)
}

/// The units to unlock: those asked for, which must exist and not overlap, or all.
fn wanted_units(
    container: &ContainerRecord,
    asked: &[UnitRange],
) -> Result<Vec<UnitRange>, KeyError> {
    let all = || {
        container.units.iter().map(|units| UnitRange {
            region: units.region,
            start: 0,
            end: units.count,
        })
    };
    let units: Vec<UnitRange> = if asked.is_empty() {
        all().collect()
    } else {
        asked.to_vec()
    };
    for range in &units {
        let exists = all().any(|known| known.region == range.region && range.end <= known.end);
        if !exists {
            return Err(KeyError::Units(range.region));
        }
    }
    let mut sorted = units.clone();
    sorted.sort_unstable();
    let overlap = sorted
        .windows(2)
        .find(|pair| pair[0].region == pair[1].region && pair[1].start < pair[0].end);
    if let Some(pair) = overlap {
        return Err(KeyError::Units(pair[1].region));
    }
    let count: u64 = units.iter().map(|range| range.end - range.start).sum();
    if count > MAX_SUBKEYS as u64 {
        return Err(KeyError::TooManyUnits(count));
    }
    Ok(units)
}

/// Whether an error is a fault of something else and not a decision about the request.
fn is_fault(error: &KeyError) -> bool {
    match error {
        KeyError::Repository(error) => !matches!(
            error,
            RepositoryError::QuotaExceeded { .. } | RepositoryError::Conflict(_)
        ),
        KeyError::Custody(error) => error.is_transient(),
        KeyError::Task(_) | KeyError::Claims(_) => true,
        _ => false,
    }
}

fn triple(range: &UnitRange) -> (u8, u64, u64) {
    (range.region, range.start, range.end)
}

#[cfg(test)]
mod tests {
    use registry_domain::RegionUnits;

    use super::*;

    fn container() -> ContainerRecord {
        ContainerRecord {
            salt: "00".repeat(16),
            units: vec![
                RegionUnits {
                    region: 1,
                    count: 1,
                },
                RegionUnits {
                    region: 4,
                    count: 8,
                },
            ],
        }
    }

    fn range(region: u8, start: u64, end: u64) -> UnitRange {
        UnitRange { region, start, end }
    }

    #[test]
    fn nothing_asked_for_means_all() {
        let all = wanted_units(&container(), &[]).unwrap();
        assert_eq!(all, [range(1, 0, 1), range(4, 0, 8)]);
    }

    #[test]
    fn units_exist_and_do_not_overlap() {
        let some = [range(4, 4, 8), range(4, 0, 4)];
        assert_eq!(wanted_units(&container(), &some).unwrap(), some);
        for bad in [
            vec![range(4, 0, 9)],
            vec![range(5, 0, 1)],
            vec![range(4, 0, 4), range(4, 3, 5)],
        ] {
            let refused = wanted_units(&container(), &bad);
            assert!(matches!(refused, Err(KeyError::Units(_))), "{bad:?}");
        }
        let large = ContainerRecord {
            units: vec![RegionUnits {
                region: 6,
                count: 5000,
            }],
            ..container()
        };
        assert!(matches!(
            wanted_units(&large, &[]),
            Err(KeyError::TooManyUnits(5000))
        ));
    }
}
