use std::collections::BTreeMap;

use identifiers::{Role, SpiffeId};
use serde::Deserialize;

use crate::peer::Peer;
use Role::{Auditor, Inference, KeyService, Operator, Platform, Registry, Sealer, Storage};

/// Every RPC and the roles that may call it. What is not here is refused.
const METHODS: &[(&str, &[Role])] = &[
    ("/chancery.v1.KeyService/CreateKey", &[Operator]),
    ("/chancery.v1.KeyService/GetImportKey", &[Operator]),
    ("/chancery.v1.KeyService/ImportKey", &[Operator]),
    (
        "/chancery.v1.KeyService/GetKey",
        &[Operator, Platform, Auditor, Sealer],
    ),
    (
        "/chancery.v1.KeyService/ListKeys",
        &[Operator, Platform, Auditor],
    ),
    ("/chancery.v1.KeyService/DisableKey", &[Operator]),
    ("/chancery.v1.KeyService/OpenSealGrant", &[Sealer]),
    ("/chancery.v1.KeyService/DeriveSubkeys", &[Sealer]),
    ("/chancery.v1.KeyService/CloseSealGrant", &[Sealer]),
    ("/chancery.v1.KeyService/IssueUnlock", &[Inference]),
    ("/chancery.v1.KeyService/GetCapabilityKeys", SERVICES),
    ("/chancery.v1.KeyService/RevokeUnlock", &[Operator]),
    (
        "/chancery.v1.SealService/SubmitSealJob",
        &[Platform, Operator],
    ),
    ("/chancery.v1.SealService/GetSealJob", &[Platform, Operator]),
    (
        "/chancery.v1.SealService/ListSealJobs",
        &[Platform, Operator],
    ),
    (
        "/chancery.v1.SealService/WatchSealJob",
        &[Platform, Operator],
    ),
    (
        "/chancery.v1.SealService/CancelSealJob",
        &[Platform, Operator],
    ),
    ("/chancery.v1.RegistryService/RegisterArtifact", &[Sealer]),
    ("/chancery.v1.RegistryService/GetArtifact", EVERYONE),
    ("/chancery.v1.RegistryService/ListArtifacts", EVERYONE),
    ("/chancery.v1.RegistryService/AppendReceipt", SERVICES),
    (
        "/chancery.v1.RegistryService/GetReceipt",
        &[Auditor, Operator, Platform],
    ),
    (
        "/chancery.v1.RegistryService/ListReceipts",
        &[Auditor, Operator, Platform],
    ),
    ("/chancery.v1.RegistryService/GetCheckpoint", EVERYONE),
    ("/chancery.v1.RegistryService/GetInclusionProof", EVERYONE),
    ("/chancery.v1.RegistryService/GetConsistencyProof", EVERYONE),
    ("/chancery.v1.RegistryService/GetTile", EVERYONE),
    ("/chancery.v1.RegistryService/GetTrustedKeys", EVERYONE),
    ("/chancery.v1.StorageService/PutBlob", &[Sealer]),
    (
        "/chancery.v1.StorageService/GetBlob",
        &[Inference, Sealer, Operator],
    ),
    (
        "/chancery.v1.StorageService/ProveRange",
        &[Inference, Sealer, Operator],
    ),
    (
        "/chancery.v1.StorageService/StatBlob",
        &[Sealer, Operator, Auditor, Registry, Inference],
    ),
    ("/chancery.v1.StorageService/Scrub", &[Operator]),
    (
        "/chancery.v1.InferenceService/LoadModel",
        &[Platform, Operator],
    ),
    (
        "/chancery.v1.InferenceService/UnloadModel",
        &[Platform, Operator],
    ),
    (
        "/chancery.v1.InferenceService/ListModels",
        &[Platform, Operator],
    ),
    (
        "/chancery.v1.InferenceService/Generate",
        &[Platform, Operator],
    ),
    ("/grpc.health.v1.Health/Check", EVERYONE),
    ("/grpc.health.v1.Health/List", EVERYONE),
    ("/grpc.health.v1.Health/Watch", EVERYONE),
    (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        EVERYONE,
    ),
];

const SERVICES: &[Role] = &[KeyService, Sealer, Registry, Storage, Inference];
const EVERYONE: &[Role] = &Role::ALL;

/// The roles that may call an RPC, by its path `/<package>.<Service>/<Method>`; `None` for a
/// method that the table does not know.
#[must_use]
pub fn allowed_roles(path: &str) -> Option<&'static [Role]> {
    METHODS
        .iter()
        .find(|(known, _)| *known == path)
        .map(|(_, roles)| *roles)
}

/// Every path of the table.
pub fn methods() -> impl Iterator<Item = &'static str> {
    METHODS.iter().map(|(path, _)| *path)
}

/// Narrows one RPC to named peers, within the roles that the table allows.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MethodRestriction {
    /// `/<package>.<Service>/<Method>`.
    pub method: String,
    /// The peers that may call it.
    pub peers: Vec<SpiffeId>,
}

/// The table, with this installation's restrictions.
#[derive(Debug, Clone, Default)]
pub struct Authorisation {
    only: BTreeMap<String, Vec<SpiffeId>>,
}

impl Authorisation {
    /// The table narrowed by `restrictions`; the error is a method that the table does not know.
    pub fn new(restrictions: Vec<MethodRestriction>) -> Result<Self, String> {
        let mut only = BTreeMap::<String, Vec<SpiffeId>>::new();
        for restriction in restrictions {
            if allowed_roles(&restriction.method).is_none() {
                return Err(restriction.method);
            }
            only.entry(restriction.method)
                .or_default()
                .extend(restriction.peers);
        }
        Ok(Self { only })
    }

    /// Whether `peer` may call the RPC at `path` at `now` (unix seconds).
    pub fn check(&self, path: &str, peer: &Peer, now: i64) -> Result<(), Denied> {
        if now > peer.not_after {
            return Err(Denied::Expired);
        }
        let roles = allowed_roles(path).ok_or(Denied::UnknownMethod)?;
        if !roles.contains(&peer.role()) {
            return Err(Denied::Role(peer.role()));
        }
        match self.only.get(path) {
            Some(peers) if !peers.contains(&peer.spiffe) => Err(Denied::Name),
            _ => Ok(()),
        }
    }
}

/// Why a call is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The peer's certificate ended since its connection was made.
    #[error("the caller's certificate has expired")]
    Expired,
    /// The method is not in the table.
    #[error("no role may call this method")]
    UnknownMethod,
    /// The peer's role may not call it.
    #[error("the role {0} may not call this method")]
    Role(Role),
    /// The method is restricted to other peers.
    #[error("this method is restricted to other callers")]
    Name,
    /// The peer is on the deny list.
    #[error("the caller is on the deny list")]
    DenyList,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE: &str = "/chancery.v1.KeyService/CreateKey";

    fn peer(role: Role, name: &str) -> Peer {
        Peer {
            spiffe: SpiffeId::new("test", role, name).unwrap(),
            cert_sha256: [0; 32],
            not_after: 100,
            serial: String::new(),
        }
    }

    #[test]
    fn only_the_listed_roles_may_call() {
        let table = Authorisation::default();
        for role in Role::ALL {
            let expected = match role {
                Operator => Ok(()),
                other => Err(Denied::Role(other)),
            };
            assert_eq!(table.check(CREATE, &peer(role, "a"), 100), expected);
        }
        assert_eq!(
            table.check("/chancery.v1.KeyService/ExportKey", &peer(Operator, "a"), 0),
            Err(Denied::UnknownMethod)
        );
        assert_eq!(
            table.check(CREATE, &peer(Operator, "a"), 101),
            Err(Denied::Expired)
        );
    }

    #[test]
    fn a_restriction_narrows_a_method_to_named_peers() {
        let alice = peer(Operator, "alice");
        let table = Authorisation::new(vec![MethodRestriction {
            method: CREATE.to_owned(),
            peers: vec![alice.spiffe.clone()],
        }])
        .unwrap();
        assert_eq!(table.check(CREATE, &alice, 0), Ok(()));
        assert_eq!(
            table.check(CREATE, &peer(Operator, "bob"), 0),
            Err(Denied::Name)
        );
        let unknown = MethodRestriction {
            method: "/a/b".to_owned(),
            peers: Vec::new(),
        };
        assert_eq!(Authorisation::new(vec![unknown]).unwrap_err(), "/a/b");
    }
}
