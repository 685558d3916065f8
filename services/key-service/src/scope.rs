//! Which subkeys a seal grant covers: only those that its scheme, transform, lock and salts use.

use registry_domain::RepositoryError;

use model_key::{Component, Label, LockVersion, Path, ScopedSite, Site, SubkeyId};

/// What a seal grant was opened for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantScope {
    /// The sealing scheme.
    pub scheme: Scheme,
    /// The transform; `None` for a job that changes a lock only.
    pub transform: Option<Transform>,
    /// The version of the lock put on; `None` when the shards are not locked.
    pub lock: Option<LockVersion>,
    /// The version of the lock taken off, if one is.
    pub unlock: Option<LockVersion>,
    /// Salt of the trusted blob that the job writes.
    pub blob_salt: Option<[u8; 16]>,
    /// Salt of the sealed container that the job writes.
    pub container_salt: Option<[u8; 16]>,
}

/// A sealing scheme (spec: sealed checkpoint, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// `l1`: decoders and MiniMax H3.
    L1,
    /// `client`: Z-Image, client keyed.
    Client,
    /// `d1-v1`: Z-Image, trusted and untrusted parts.
    D1,
}

/// A transform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    /// Signed permutations.
    Perm,
    /// Orthogonal matrices.
    Orth,
}

/// Why a subkey is outside a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutOfScope {
    /// The component is not part of the grant's scheme.
    #[error("component {0:?} is not part of the grant's scheme")]
    Component(Component),
    /// The label belongs to the other transform, or the grant is of none.
    #[error("the label belongs to a transform other than the grant's")]
    Transform,
    /// A lock stream of a version that the grant does not use.
    #[error("the grant does not use lock {0}")]
    Lock(LockVersion),
    /// A trusted blob with another salt, or in a grant that writes none.
    #[error("the grant does not write that trusted blob")]
    TrustedBlob,
    /// A container with another salt, or in a grant that writes none.
    #[error("the grant does not write that container")]
    Container,
}

impl GrantScope {
    /// Whether the grant covers `id`.
    pub fn covers(&self, id: &SubkeyId) -> Result<(), OutOfScope> {
        match &id.label {
            Label::Permutation(path) | Label::Stream(path) => self.covers_path(id.component, path),
            // What protects whole files is derived from the model key, never a component's.
            _ if id.component != Component::Model => Err(OutOfScope::Component(id.component)),
            Label::Lock(version, _) if [self.lock, self.unlock].contains(&Some(*version)) => Ok(()),
            Label::Lock(version, _) => Err(OutOfScope::Lock(*version)),
            Label::TrustedBlob(salt) if self.blob_salt == Some(*salt) => Ok(()),
            Label::TrustedBlob(_) => Err(OutOfScope::TrustedBlob),
            Label::ContainerUnit { salt, .. } if self.container_salt == Some(*salt) => Ok(()),
            Label::ContainerUnit { .. } => Err(OutOfScope::Container),
        }
    }

    fn covers_path(&self, component: Component, path: &Path) -> Result<(), OutOfScope> {
        let components: &[Component] = match self.scheme {
            Scheme::L1 => &[Component::Model, Component::H3TextEncoder, Component::H3Dit],
            Scheme::Client => &[Component::ZImageTextEncoder, Component::ZImageLatent],
            Scheme::D1 => &[Component::Model],
        };
        if !components.contains(&component) {
            return Err(OutOfScope::Component(component));
        }
        let Some(transform) = self.transform else {
            return Err(OutOfScope::Transform);
        };
        match transform_of(component, path.site) {
            Some(only) if only != transform => Err(OutOfScope::Transform),
            _ => Ok(()),
        }
    }
}

impl From<&GrantScope> for registry_domain::GrantScope {
    fn from(scope: &GrantScope) -> Self {
        let scheme = match scope.scheme {
            Scheme::L1 => "l1",
            Scheme::Client => "client",
            Scheme::D1 => "d1-v1",
        };
        let transform = match scope.transform {
            None => "none",
            Some(Transform::Perm) => "perm",
            Some(Transform::Orth) => "orth",
        };
        Self {
            scheme: scheme.to_owned(),
            transform: transform.to_owned(),
            lock: lock_name(scope.lock).to_owned(),
            unlock: lock_name(scope.unlock).to_owned(),
            blob_salt: scope.blob_salt,
            container_salt: scope.container_salt,
        }
    }
}

impl TryFrom<&registry_domain::GrantScope> for GrantScope {
    type Error = RepositoryError;

    fn try_from(stored: &registry_domain::GrantScope) -> Result<Self, RepositoryError> {
        let damaged = || RepositoryError::Damaged("grant scope");
        Ok(Self {
            scheme: match stored.scheme.as_str() {
                "l1" => Scheme::L1,
                "client" => Scheme::Client,
                "d1-v1" => Scheme::D1,
                _ => return Err(damaged()),
            },
            transform: match stored.transform.as_str() {
                "none" => None,
                "perm" => Some(Transform::Perm),
                "orth" => Some(Transform::Orth),
                _ => return Err(damaged()),
            },
            lock: lock_version(&stored.lock)?,
            unlock: lock_version(&stored.unlock)?,
            blob_salt: stored.blob_salt,
            container_salt: stored.container_salt,
        })
    }
}

const fn lock_name(lock: Option<LockVersion>) -> &'static str {
    match lock {
        None => "none",
        Some(LockVersion::V1) => "v1",
        Some(LockVersion::V2) => "v2",
    }
}

fn lock_version(name: &str) -> Result<Option<LockVersion>, RepositoryError> {
    match name {
        "none" => Ok(None),
        "v1" => Ok(Some(LockVersion::V1)),
        "v2" => Ok(Some(LockVersion::V2)),
        _ => Err(RepositoryError::Damaged("grant scope")),
    }
}

/// The transform that alone uses a site; `None` for sites that both use.
fn transform_of(component: Component, site: Site) -> Option<Transform> {
    match site {
        // The H3 diffusion transformer's residual is a signed permutation under either transform.
        Site::Residual if component == Component::H3Dit => None,
        Site::Residual | Site::Scoped(_, ScopedSite::V) => Some(Transform::Orth),
        Site::ResidualPerm | Site::Scoped(_, ScopedSite::VPerm(_)) => Some(Transform::Perm),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use model_key::{Scope, TensorId};

    use super::*;

    fn scope() -> GrantScope {
        GrantScope {
            scheme: Scheme::L1,
            transform: Some(Transform::Perm),
            lock: Some(LockVersion::V2),
            unlock: None,
            blob_salt: Some([1; 16]),
            container_salt: None,
        }
    }

    fn model(label: Label) -> SubkeyId {
        SubkeyId {
            component: Component::Model,
            label,
        }
    }

    fn unit(salt: [u8; 16]) -> SubkeyId {
        model(Label::ContainerUnit {
            salt,
            region: 4,
            unit: 0,
        })
    }

    #[test]
    fn a_perm_grant_covers_perm_labels_only() {
        let grant = scope();
        let heads = Path::scoped(Scope::Layer(3), ScopedSite::KvHeads);
        assert_eq!(grant.covers(&model(Label::Permutation(heads))), Ok(()));
        let orth = Path::new(Site::Residual);
        assert_eq!(
            grant.covers(&model(Label::Stream(orth))),
            Err(OutOfScope::Transform)
        );
        let orth_v = Path::scoped(Scope::Layer(3), ScopedSite::V);
        assert_eq!(
            grant.covers(&model(Label::Stream(orth_v))),
            Err(OutOfScope::Transform)
        );
    }

    #[test]
    fn locks_blobs_and_containers_are_those_of_the_grant() {
        let grant = scope();
        let tensor = TensorId::new("lm_head.weight").unwrap();
        let v1 = model(Label::Lock(LockVersion::V1, tensor.clone()));
        let v2 = model(Label::Lock(LockVersion::V2, tensor));
        assert_eq!(grant.covers(&v1), Err(OutOfScope::Lock(LockVersion::V1)));
        assert_eq!(grant.covers(&v2), Ok(()));
        let blob = |salt| model(Label::TrustedBlob(salt));
        assert_eq!(grant.covers(&blob([1; 16])), Ok(()));
        assert_eq!(grant.covers(&blob([2; 16])), Err(OutOfScope::TrustedBlob));
        assert_eq!(grant.covers(&unit([1; 16])), Err(OutOfScope::Container));
        let with_container = GrantScope {
            container_salt: Some([3; 16]),
            ..scope()
        };
        assert_eq!(with_container.covers(&unit([3; 16])), Ok(()));
    }

    #[test]
    fn a_grant_to_change_a_lock_covers_both_locks_and_nothing_else() {
        let grant = GrantScope {
            transform: None,
            unlock: Some(LockVersion::V1),
            blob_salt: None,
            ..scope()
        };
        let tensor = TensorId::new("lm_head.weight").unwrap();
        for version in [LockVersion::V1, LockVersion::V2] {
            let id = model(Label::Lock(version, tensor.clone()));
            assert_eq!(grant.covers(&id), Ok(()));
        }
        let heads = Path::scoped(Scope::Layer(3), ScopedSite::KvHeads);
        for label in [Label::Permutation(heads.clone()), Label::Stream(heads)] {
            assert_eq!(grant.covers(&model(label)), Err(OutOfScope::Transform));
        }
        let blob = model(Label::TrustedBlob([1; 16]));
        assert_eq!(grant.covers(&blob), Err(OutOfScope::TrustedBlob));
        assert_eq!(grant.covers(&unit([1; 16])), Err(OutOfScope::Container));
    }

    #[test]
    fn components_of_other_schemes_are_refused() {
        let id = SubkeyId {
            component: Component::ZImageLatent,
            label: Label::Stream(Path::new(Site::LatentBasis)),
        };
        assert_eq!(
            scope().covers(&id),
            Err(OutOfScope::Component(Component::ZImageLatent))
        );
        let client = GrantScope {
            scheme: Scheme::Client,
            ..scope()
        };
        assert_eq!(client.covers(&id), Ok(()));
    }
}
