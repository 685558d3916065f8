//! [`SubkeyId`] to [`v1::SubkeySpec`] and back: total in one direction, injective in both.
//!
//! The salts of a trusted blob and of a container are not in the message: they are the grant's.

use api::{InvalidField, fields, v1};
use key_wrap::Sealed;
use model_key::{
    Component, Label, LockVersion, Part, Path, Scope, ScopedSite, Site, SubkeyId, TensorId,
};
use v1::label_path::Site as SiteMessage;
use v1::subkey_spec::Use;
use v1::{GlobalSite, LabelPartKind, ScopeKind, ScopedSiteKind};

/// The salts that a grant was opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Salts {
    /// Of the trusted blob.
    pub blob: Option<[u8; 16]>,
    /// Of the sealed container.
    pub container: Option<[u8; 16]>,
}

impl Salts {
    /// Whether the salt of `id`, if its label has one, is one of these.
    #[must_use]
    pub fn cover(&self, id: &SubkeyId) -> bool {
        match &id.label {
            Label::TrustedBlob(salt) => self.blob == Some(*salt),
            Label::ContainerUnit { salt, .. } => self.container == Some(*salt),
            _ => true,
        }
    }
}

/// The message that asks for `id`, under a grant that has its salt.
#[must_use]
pub fn subkey_to_proto(id: &SubkeyId) -> v1::SubkeySpec {
    let component = match id.component {
        Component::Model => v1::Component::Model,
        Component::H3TextEncoder => v1::Component::H3TextEncoder,
        Component::H3Dit => v1::Component::H3Dit,
        Component::ZImageTextEncoder => v1::Component::ZimageTextEncoder,
        Component::ZImageLatent => v1::Component::ZimageLatent,
    };
    let of = match &id.label {
        Label::Permutation(path) => Use::Permutation(path_to_proto(path)),
        Label::Stream(path) => Use::Stream(path_to_proto(path)),
        Label::Lock(version, tensor) => Use::Lock(v1::LockUse {
            version: match version {
                LockVersion::V1 => v1::Lock::V1,
                LockVersion::V2 => v1::Lock::V2,
            }
            .into(),
            tensor: tensor.as_str().to_owned(),
        }),
        Label::TrustedBlob(_) => Use::TrustedBlob(v1::TrustedBlobUse {}),
        Label::ContainerUnit { region, unit, .. } => Use::ContainerUnit(v1::ContainerUnitUse {
            region: (*region).into(),
            unit: *unit,
        }),
    };
    v1::SubkeySpec {
        component: component.into(),
        r#use: Some(of),
    }
}

/// The subkey that a message asks for under a grant with these salts.
pub fn subkey_from_proto(spec: &v1::SubkeySpec, salts: &Salts) -> Result<SubkeyId, InvalidField> {
    let component = match fields::known("subkeys.component", spec.component)? {
        v1::Component::Model | v1::Component::Unspecified => Component::Model,
        v1::Component::H3TextEncoder => Component::H3TextEncoder,
        v1::Component::H3Dit => Component::H3Dit,
        v1::Component::ZimageTextEncoder => Component::ZImageTextEncoder,
        v1::Component::ZimageLatent => Component::ZImageLatent,
    };
    let label = match fields::required("subkeys.use", spec.r#use.as_ref())? {
        Use::Permutation(path) => Label::Permutation(path_from_proto(path)?),
        Use::Stream(path) => Label::Stream(path_from_proto(path)?),
        Use::Lock(lock) => Label::Lock(
            match fields::known("subkeys.lock.version", lock.version)? {
                v1::Lock::V1 => LockVersion::V1,
                v1::Lock::V2 => LockVersion::V2,
                v1::Lock::None | v1::Lock::Unspecified => {
                    return Err(InvalidField::new(
                        "subkeys.lock.version",
                        "expected LOCK_V1 or LOCK_V2",
                    ));
                }
            },
            TensorId::new(&lock.tensor).ok_or_else(|| {
                InvalidField::new("subkeys.lock.tensor", "not the name of a tensor")
            })?,
        ),
        Use::TrustedBlob(_) => Label::TrustedBlob(salts.blob.ok_or_else(|| {
            InvalidField::new("subkeys.trusted_blob", "the grant writes no trusted blob")
        })?),
        Use::ContainerUnit(unit) => Label::ContainerUnit {
            salt: salts.container.ok_or_else(|| {
                InvalidField::new("subkeys.container_unit", "the grant writes no container")
            })?,
            region: u8::try_from(unit.region)
                .ok()
                .filter(|region| (1..=6).contains(region))
                .ok_or_else(|| {
                    InvalidField::new("subkeys.container_unit.region", "expected 1 to 6")
                })?,
            unit: unit.unit,
        },
    };
    Ok(SubkeyId { component, label })
}

/// Wrapped keys as a message.
#[must_use]
pub fn sealed_to_proto(sealed: Sealed) -> v1::HpkeSealed {
    v1::HpkeSealed {
        enc: sealed.enc.to_vec(),
        ciphertext: sealed.ciphertext,
    }
}

/// Wrapped keys of a message; `field` names it in an error.
pub fn sealed_from_proto(
    field: &'static str,
    sealed: Option<v1::HpkeSealed>,
) -> Result<Sealed, InvalidField> {
    let sealed = fields::required(field, sealed)?;
    Ok(Sealed {
        enc: fields::bytes(field, &sealed.enc)?,
        ciphertext: sealed.ciphertext,
    })
}

fn path_to_proto(path: &Path) -> v1::LabelPath {
    let global = |site: GlobalSite| SiteMessage::Global(site.into());
    let site = match path.site {
        Site::ResidualPerm => global(GlobalSite::ResidualPerm),
        Site::Residual => global(GlobalSite::Residual),
        Site::Vocab => global(GlobalSite::Vocab),
        Site::LatentVideo => global(GlobalSite::LatentVideo),
        Site::LatentAudio => global(GlobalSite::LatentAudio),
        Site::LatentBasis => global(GlobalSite::LatentBasis),
        Site::Scoped(scope, site) => {
            let (scope, scope_index) = scope_to_proto(scope);
            let (site, site_index) = scoped_site_to_proto(site);
            SiteMessage::Scoped(v1::ScopedSite {
                scope: scope.into(),
                scope_index,
                site: site.into(),
                site_index,
            })
        }
    };
    v1::LabelPath {
        site: Some(site),
        parts: path.parts.iter().map(part_to_proto).collect(),
    }
}

fn path_from_proto(path: &v1::LabelPath) -> Result<Path, InvalidField> {
    let site = match fields::required("subkeys.path.site", path.site.as_ref())? {
        SiteMessage::Global(site) => match fields::known("subkeys.path.global", *site)? {
            GlobalSite::ResidualPerm => Site::ResidualPerm,
            GlobalSite::Residual => Site::Residual,
            GlobalSite::Vocab => Site::Vocab,
            GlobalSite::LatentVideo => Site::LatentVideo,
            GlobalSite::LatentAudio => Site::LatentAudio,
            GlobalSite::LatentBasis => Site::LatentBasis,
            GlobalSite::Unspecified => return Err(unset("subkeys.path.global")),
        },
        SiteMessage::Scoped(scoped) => Site::Scoped(
            scope_from_proto(scoped.scope, scoped.scope_index)?,
            scoped_site_from_proto(scoped.site, scoped.site_index)?,
        ),
    };
    if path.parts.len() > MAX_PARTS {
        return Err(InvalidField::new("subkeys.path.parts", "more than 8"));
    }
    let parts = path.parts.iter().map(part_from_proto);
    Ok(Path {
        site,
        parts: parts.collect::<Result<_, _>>()?,
    })
}

const fn scope_to_proto(scope: Scope) -> (ScopeKind, u32) {
    match scope {
        Scope::Layer(i) => (ScopeKind::Layer, i),
        Scope::LayerName(i) => (ScopeKind::LayerName, i),
        Scope::Mtp(i) => (ScopeKind::Mtp, i),
        Scope::MtpName(i) => (ScopeKind::MtpName, i),
        Scope::Block(i) => (ScopeKind::Block, i),
        Scope::Refiner(i) => (ScopeKind::Refiner, i),
        Scope::D1NoiseRefiner(i) => (ScopeKind::D1NoiseRefiner, i),
        Scope::D1ContextRefiner(i) => (ScopeKind::D1ContextRefiner, i),
        Scope::D1SiglipRefiner(i) => (ScopeKind::D1SiglipRefiner, i),
        Scope::D1Layer(i) => (ScopeKind::D1Layer, i),
    }
}

fn scope_from_proto(kind: i32, index: u32) -> Result<Scope, InvalidField> {
    Ok(match fields::known("subkeys.path.scope", kind)? {
        ScopeKind::Layer => Scope::Layer(index),
        ScopeKind::LayerName => Scope::LayerName(index),
        ScopeKind::Mtp => Scope::Mtp(index),
        ScopeKind::MtpName => Scope::MtpName(index),
        ScopeKind::Block => Scope::Block(index),
        ScopeKind::Refiner => Scope::Refiner(index),
        ScopeKind::D1NoiseRefiner => Scope::D1NoiseRefiner(index),
        ScopeKind::D1ContextRefiner => Scope::D1ContextRefiner(index),
        ScopeKind::D1SiglipRefiner => Scope::D1SiglipRefiner(index),
        ScopeKind::D1Layer => Scope::D1Layer(index),
        ScopeKind::Unspecified => return Err(unset("subkeys.path.scope")),
    })
}

const fn scoped_site_to_proto(site: ScopedSite) -> (ScopedSiteKind, u32) {
    match site {
        ScopedSite::KvHeads => (ScopedSiteKind::KvHeads, 0),
        ScopedSite::Turns => (ScopedSiteKind::Turns, 0),
        ScopedSite::V => (ScopedSiteKind::V, 0),
        ScopedSite::VPerm(head) => (ScopedSiteKind::VPerm, head),
        ScopedSite::Ffn => (ScopedSiteKind::Ffn, 0),
        ScopedSite::ExpertFfn(expert) => (ScopedSiteKind::ExpertFfn, expert),
        ScopedSite::SharedFfn => (ScopedSiteKind::SharedFfn, 0),
        ScopedSite::Experts => (ScopedSiteKind::Experts, 0),
        ScopedSite::Heads => (ScopedSiteKind::Heads, 0),
        ScopedSite::Pass => (ScopedSiteKind::Pass, 0),
        ScopedSite::AttnHead => (ScopedSiteKind::AttnHead, 0),
        ScopedSite::MlpChannels => (ScopedSiteKind::MlpChannels, 0),
        ScopedSite::MlpHidden => (ScopedSiteKind::MlpHidden, 0),
    }
}

fn scoped_site_from_proto(kind: i32, index: u32) -> Result<ScopedSite, InvalidField> {
    let (site, indexed) = match fields::known("subkeys.path.scoped_site", kind)? {
        ScopedSiteKind::KvHeads => (ScopedSite::KvHeads, false),
        ScopedSiteKind::Turns => (ScopedSite::Turns, false),
        ScopedSiteKind::V => (ScopedSite::V, false),
        ScopedSiteKind::VPerm => (ScopedSite::VPerm(index), true),
        ScopedSiteKind::Ffn => (ScopedSite::Ffn, false),
        ScopedSiteKind::ExpertFfn => (ScopedSite::ExpertFfn(index), true),
        ScopedSiteKind::SharedFfn => (ScopedSite::SharedFfn, false),
        ScopedSiteKind::Experts => (ScopedSite::Experts, false),
        ScopedSiteKind::Heads => (ScopedSite::Heads, false),
        ScopedSiteKind::Pass => (ScopedSite::Pass, false),
        ScopedSiteKind::AttnHead => (ScopedSite::AttnHead, false),
        ScopedSiteKind::MlpChannels => (ScopedSite::MlpChannels, false),
        ScopedSiteKind::MlpHidden => (ScopedSite::MlpHidden, false),
        ScopedSiteKind::Unspecified => return Err(unset("subkeys.path.scoped_site")),
    };
    unindexed("subkeys.path.site_index", indexed, index.into())?;
    Ok(site)
}

fn part_to_proto(part: &Part) -> v1::LabelPart {
    let (kind, index) = match *part {
        Part::Sign => (LabelPartKind::Sign, 0),
        Part::Blocks => (LabelPartKind::Blocks, 0),
        Part::In(block) => (LabelPartKind::In, block),
        Part::Group(start) => (LabelPartKind::Group, start),
        Part::ScaleStream => (LabelPartKind::ScaleStream, 0),
        Part::SignStream => (LabelPartKind::SignStream, 0),
    };
    v1::LabelPart {
        kind: kind.into(),
        index,
    }
}

fn part_from_proto(part: &v1::LabelPart) -> Result<Part, InvalidField> {
    let (step, indexed) = match fields::known("subkeys.path.parts.kind", part.kind)? {
        LabelPartKind::Sign => (Part::Sign, false),
        LabelPartKind::Blocks => (Part::Blocks, false),
        LabelPartKind::In => (Part::In(part.index), true),
        LabelPartKind::Group => (Part::Group(part.index), true),
        LabelPartKind::ScaleStream => (Part::ScaleStream, false),
        LabelPartKind::SignStream => (Part::SignStream, false),
        LabelPartKind::Unspecified => return Err(unset("subkeys.path.parts.kind")),
    };
    unindexed("subkeys.path.parts.index", indexed, part.index)?;
    Ok(step)
}

/// Two messages never mean one subkey: an index that is not used must be 0.
fn unindexed(field: &'static str, indexed: bool, index: u64) -> Result<(), InvalidField> {
    if indexed || index == 0 {
        return Ok(());
    }
    Err(InvalidField::new(field, "this kind has no index"))
}

fn unset(field: &'static str) -> InvalidField {
    InvalidField::new(field, "required")
}

const MAX_PARTS: usize = 8;
