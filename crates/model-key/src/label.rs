//! Every label that a subkey is derived under, as types.
//!
//! A caller never supplies a label's text: it names a component, a use and typed fields, and
//! [`SubkeyId`] renders them. No two different ids render to the same derivation.

use std::fmt;

/// One subkey of a model key: which component's key it is derived from, and for what.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubkeyId {
    /// The component whose key the label starts from.
    pub component: Component,
    /// What the subkey is for.
    pub label: Label,
}

/// The key that labels start from: the model key, or a component's own derived key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The model key itself.
    Model,
    /// MiniMax H3's text encoder.
    H3TextEncoder,
    /// MiniMax H3's diffusion transformer.
    H3Dit,
    /// Z-Image's text encoder.
    ZImageTextEncoder,
    /// Z-Image's latent basis.
    ZImageLatent,
}

impl Component {
    /// The label the component's key is derived under; `None` for the model key.
    #[must_use]
    pub const fn label(self) -> Option<&'static str> {
        match self {
            Self::Model => None,
            Self::H3TextEncoder => Some("h3/text-encoder"),
            Self::H3Dit => Some("h3/dit"),
            Self::ZImageTextEncoder => Some("zimage/text-encoder"),
            Self::ZImageLatent => Some("zimage/latent"),
        }
    }
}

/// What a subkey is for. `Display` gives the derivation label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// `perm/<path>`: draws of a permutation.
    Permutation(Path),
    /// `stream/<path>`: a key stream of signs, turns, scales or Gaussian draws.
    Stream(Path),
    /// `lock/<version>/<tensor id>`: a tensor's lock stream.
    Lock(LockVersion, TensorId),
    /// `l1/trusted-blob/<salt>`: the chunks of a trusted blob.
    TrustedBlob([u8; 16]),
    /// `jlm/v1/<salt>/<region id>/<unit index>`: one unit of a sealed container.
    ContainerUnit {
        /// The container's salt.
        salt: [u8; 16],
        /// Region id, 1 to 6.
        region: u8,
        /// Unit index within the region.
        unit: u64,
    },
}

/// A lock's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockVersion {
    /// AES-256-CTR streams; floats only.
    V1,
    /// ChaCha20 streams.
    V2,
}

/// A tensor's lock id: its name, or `<component folder>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(String);

impl TensorId {
    /// A checked id: 1 to 512 bytes, no control character, no empty, `.` or `..` segment.
    /// `None` otherwise.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let sane = !text.is_empty()
            && text.len() <= MAX_TENSOR_ID
            && !text.chars().any(char::is_control)
            && text
                .split('/')
                .all(|segment| !matches!(segment, "" | "." | ".."));
        sane.then(|| Self(text.to_owned()))
    }

    /// The id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where in a model a permutation or stream is used, and which part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path {
    /// The place.
    pub site: Site,
    /// Steps below it, outermost first.
    pub parts: Vec<Part>,
}

impl Path {
    /// A path to a whole site.
    #[must_use]
    pub const fn new(site: Site) -> Self {
        Self {
            site,
            parts: Vec::new(),
        }
    }

    /// A path to a scoped site.
    #[must_use]
    pub const fn scoped(scope: Scope, site: ScopedSite) -> Self {
        Self::new(Site::Scoped(scope, site))
    }

    /// This path, one step further.
    #[must_use]
    pub fn then(&self, part: Part) -> Self {
        let mut parts = self.parts.clone();
        parts.push(part);
        Self {
            site: self.site,
            parts,
        }
    }
}

/// A place in a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// `residual-perm`: the signed permutation of the hidden dimension.
    ResidualPerm,
    /// `residual`: the orthogonal matrix of the hidden dimension, or a diffusion transformer's
    /// signed permutation.
    Residual,
    /// `vocab`: the regular token ids.
    Vocab,
    /// `latent/video`: video latent channels.
    LatentVideo,
    /// `latent/audio`: audio latent channels.
    LatentAudio,
    /// `latent-basis`: Z-Image's latent basis.
    LatentBasis,
    /// A place inside a layer or block.
    Scoped(Scope, ScopedSite),
}

/// A layer or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// `l{i}`
    Layer(u32),
    /// `layers.{i}`
    LayerName(u32),
    /// `mtp{i}`
    Mtp(u32),
    /// `mtp.{i}`
    MtpName(u32),
    /// `block{i}`
    Block(u32),
    /// `refiner{i}`
    Refiner(u32),
    /// `d1/noise_refiner.{i}`
    D1NoiseRefiner(u32),
    /// `d1/context_refiner.{i}`
    D1ContextRefiner(u32),
    /// `d1/siglip_refiner.{i}`
    D1SiglipRefiner(u32),
    /// `d1/layers.{i}`
    D1Layer(u32),
}

/// A place inside a layer or block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScopedSite {
    /// `kv-heads`
    KvHeads,
    /// `turns`
    Turns,
    /// `v`
    V,
    /// `v-perm/{head}`
    VPerm(u32),
    /// `ffn`
    Ffn,
    /// `e{expert}/ffn`
    ExpertFfn(u32),
    /// `shared/ffn`
    SharedFfn,
    /// `experts`
    Experts,
    /// `heads`
    Heads,
    /// `pass`
    Pass,
    /// `attn/head`
    AttnHead,
    /// `mlp/channels`
    MlpChannels,
    /// `mlp/hidden`
    MlpHidden,
}

/// A step below a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// `/sign`
    Sign,
    /// `/blocks`
    Blocks,
    /// `/in{block}`
    In(u64),
    /// `/g{start}`
    Group(u64),
    /// `-scale`
    ScaleStream,
    /// `-sign`
    SignStream,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permutation(path) => write!(f, "perm/{path}"),
            Self::Stream(path) => write!(f, "stream/{path}"),
            Self::Lock(version, tensor) => write!(f, "lock/{version}/{}", tensor.0),
            Self::TrustedBlob(salt) => write!(f, "l1/trusted-blob/{}", Hex(salt)),
            Self::ContainerUnit { salt, region, unit } => {
                write!(f, "jlm/v1/{}/{region}/{unit}", Hex(salt))
            }
        }
    }
}

impl fmt::Display for LockVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1 => "v1",
            Self::V2 => "v2",
        })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.site.fmt(f)?;
        self.parts.iter().try_for_each(|part| part.fmt(f))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResidualPerm => f.write_str("residual-perm"),
            Self::Residual => f.write_str("residual"),
            Self::Vocab => f.write_str("vocab"),
            Self::LatentVideo => f.write_str("latent/video"),
            Self::LatentAudio => f.write_str("latent/audio"),
            Self::LatentBasis => f.write_str("latent-basis"),
            Self::Scoped(scope, site) => write!(f, "{scope}/{site}"),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(i) => write!(f, "l{i}"),
            Self::LayerName(i) => write!(f, "layers.{i}"),
            Self::Mtp(i) => write!(f, "mtp{i}"),
            Self::MtpName(i) => write!(f, "mtp.{i}"),
            Self::Block(i) => write!(f, "block{i}"),
            Self::Refiner(i) => write!(f, "refiner{i}"),
            Self::D1NoiseRefiner(i) => write!(f, "d1/noise_refiner.{i}"),
            Self::D1ContextRefiner(i) => write!(f, "d1/context_refiner.{i}"),
            Self::D1SiglipRefiner(i) => write!(f, "d1/siglip_refiner.{i}"),
            Self::D1Layer(i) => write!(f, "d1/layers.{i}"),
        }
    }
}

impl fmt::Display for ScopedSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KvHeads => f.write_str("kv-heads"),
            Self::Turns => f.write_str("turns"),
            Self::V => f.write_str("v"),
            Self::VPerm(head) => write!(f, "v-perm/{head}"),
            Self::Ffn => f.write_str("ffn"),
            Self::ExpertFfn(expert) => write!(f, "e{expert}/ffn"),
            Self::SharedFfn => f.write_str("shared/ffn"),
            Self::Experts => f.write_str("experts"),
            Self::Heads => f.write_str("heads"),
            Self::Pass => f.write_str("pass"),
            Self::AttnHead => f.write_str("attn/head"),
            Self::MlpChannels => f.write_str("mlp/channels"),
            Self::MlpHidden => f.write_str("mlp/hidden"),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sign => f.write_str("/sign"),
            Self::Blocks => f.write_str("/blocks"),
            Self::In(block) => write!(f, "/in{block}"),
            Self::Group(start) => write!(f, "/g{start}"),
            Self::ScaleStream => f.write_str("-scale"),
            Self::SignStream => f.write_str("-sign"),
        }
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

const MAX_TENSOR_ID: usize = 512;
