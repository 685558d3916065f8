//! A container's tensors, resolved to the parts of a decoder.

use std::collections::HashSet;

use jlm::{
    Arch, Config, Container, DType, Flags, LayerKind, Planes, Region, Role, Span, TensorEntry,
    TensorKey,
};

use crate::error::{ModelError, RunError};
use crate::kernels::Matrix;
use crate::kv::KvShape;

/// A decoder that can be run: shapes, and where each tensor lies on its page. Holds no weights.
#[derive(Debug)]
pub struct Model {
    pub(crate) shape: Shape,
    pub(crate) embedding: Slot,
    pub(crate) output_norm: Slot,
    /// `None` when the head is the embedding.
    pub(crate) output: Option<Slot>,
    pub(crate) rope_freqs: Option<Slot>,
    pub(crate) blocks: Vec<Block>,
}

/// Dimensions and constants.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub embd: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub rot: usize,
    pub vocab: usize,
    pub ctx: usize,
    pub experts: usize,
    pub experts_used: usize,
    pub expert_scale: f32,
    pub keep_router_weights: bool,
    pub rms_eps: f32,
    pub rope_base: f32,
    pub rope_linear: f32,
    pub attn_factor: f32,
    pub embd_scale: f32,
    pub neox: bool,
    pub norm_whole: bool,
}

/// One layer.
#[derive(Debug)]
pub(crate) struct Block {
    pub attn_norm: Slot,
    pub q: Projection,
    pub k: Projection,
    pub v: Projection,
    pub out: Projection,
    pub q_norm: Option<Slot>,
    pub k_norm: Option<Slot>,
    pub ffn_norm: Slot,
    pub ffn: FeedForward,
}

/// A matrix and its bias.
#[derive(Debug)]
pub(crate) struct Projection {
    pub weight: Slot,
    pub bias: Option<Slot>,
}

#[derive(Debug)]
pub(crate) enum FeedForward {
    Dense(Mlp),
    Mixture { router: Slot, experts: Experts },
}

/// Where a mixture's experts are.
#[derive(Debug)]
pub(crate) enum Experts {
    /// On a page each; the slots' offsets are within such a page.
    Paged(Box<Mlp>),
    /// On the block's own page.
    InBlock(Vec<Mlp>),
}

/// A gated feed-forward network.
#[derive(Debug)]
pub(crate) struct Mlp {
    pub gate: Slot,
    pub up: Slot,
    pub down: Slot,
}

/// Where a matrix lies in the bytes it belongs to: the dense region, its block's page or an
/// expert's page.
#[derive(Debug)]
pub(crate) struct Slot {
    pub name: String,
    pub rows: usize,
    k: usize,
    dtype: DType,
    dense: bool,
    planes: [(usize, usize); 3],
}

impl Slot {
    /// The matrix, in the dense region or on the page it belongs to.
    pub(crate) fn on<'a>(&self, dense: &'a [u8], page: &'a [u8]) -> Result<Matrix<'a>, RunError> {
        let bytes = if self.dense { dense } else { page };
        let plane = |(offset, length): (usize, usize)| match length {
            0 => Some(&[][..]),
            length => bytes.get(offset..)?.get(..length),
        };
        let [qs, d, sc] = self.planes.map(plane);
        let matrix = (|| Matrix::new(self.dtype, self.k, self.rows, qs?, d?, sc?))();
        matrix.ok_or_else(|| RunError::ShortPage {
            unit: if self.dense {
                "the dense region"
            } else {
                "a block or expert"
            }
            .to_owned(),
            name: self.name.clone(),
        })
    }
}

impl Model {
    /// Resolves the tensors of a container. Fails, naming field or tensor, on anything that this
    /// engine would not compute exactly: other architectures, scalings, roles and shapes.
    pub fn new(container: &Container) -> Result<Self, ModelError> {
        let config = container.config();
        check_config(config)?;
        let shape = Shape::new(config);
        let mut find = Finder {
            container,
            used: HashSet::new(),
        };

        let embedding = find.matrix(Role::TOKEN_EMBD, -1, shape.embd, shape.vocab)?;
        let output_norm = find.vector(Role::OUTPUT_NORM, -1, shape.embd)?;
        let tied = config.flags.has(Flags::TIED);
        let output = match tied {
            true => None,
            false => Some(find.matrix(Role::OUTPUT, -1, shape.embd, shape.vocab)?),
        };
        let rope_freqs = find.optional_vector(Role::ROPE_FREQS, -1, shape.rot / 2)?;
        let blocks = (0..config.n_layer)
            .map(|block| find.block(config, &shape, block as i32))
            .collect::<Result<Vec<_>, _>>()?;
        find.nothing_is_left()?;
        Ok(Self {
            shape,
            embedding,
            output_norm,
            output,
            rope_freqs,
            blocks,
        })
    }

    /// What one position keeps in the KV cache.
    #[must_use]
    pub fn kv_shape(&self) -> KvShape {
        KvShape {
            layers: self.blocks.len(),
            heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
        }
    }

    /// The most positions the model was made for.
    #[must_use]
    pub fn context(&self) -> usize {
        self.shape.ctx
    }

    /// Rows of the embedding: ids are below this.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.shape.vocab
    }

    /// Layers.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.blocks.len()
    }
}

impl Shape {
    fn new(config: &Config) -> Self {
        let flag = |flag| config.flags.has(flag);
        Self {
            embd: config.n_embd as usize,
            heads: config.n_head as usize,
            kv_heads: config.n_kv_head as usize,
            head_dim: config.head_dim as usize,
            rot: config.n_rot as usize,
            vocab: config.n_vocab as usize,
            ctx: config.n_ctx as usize,
            experts: config.n_expert as usize,
            experts_used: config.n_expert_used as usize,
            expert_scale: if config.expert_scale == 0.0 {
                1.0
            } else {
                config.expert_scale
            },
            keep_router_weights: flag(Flags::KEEP_ROUTER_WEIGHTS),
            rms_eps: config.rms_eps,
            rope_base: config.rope_base,
            rope_linear: if config.rope_linear == 0.0 {
                1.0
            } else {
                config.rope_linear
            },
            attn_factor: if config.attn_factor == 0.0 {
                1.0
            } else {
                config.attn_factor
            },
            embd_scale: if config.embd_scale == 0.0 {
                1.0
            } else {
                config.embd_scale
            },
            neox: flag(Flags::ROPE_NEOX),
            norm_whole: flag(Flags::QK_NORM_WHOLE),
        }
    }
}

fn check_config(config: &Config) -> Result<(), ModelError> {
    let refuse = |field, reason: String| Err(ModelError::Config { field, reason });
    let archs = [
        Arch::LLAMA,
        Arch::QWEN2,
        Arch::QWEN3,
        Arch::QWEN3_MOE,
        Arch::OLMOE,
    ];
    if !archs.contains(&config.arch) {
        return refuse("Arch", format!("{} is not supported", config.arch.name()));
    }
    let known = [
        Flags::TIED,
        Flags::QK_NORM,
        Flags::QK_NORM_WHOLE,
        Flags::KEEP_ROUTER_WEIGHTS,
        Flags::ROPE_NEOX,
    ];
    let known = known.into_iter().fold(Flags::default(), Flags::with);
    let other = config.flags.0 & !known.0;
    if other != 0 {
        let bit = other.trailing_zeros() as usize;
        let name = Flags::NAMES
            .get(bit)
            .copied()
            .flatten()
            .unwrap_or("unnamed");
        return refuse("Flags", format!("bit {bit} ({name}) is not supported"));
    }
    for (field, value) in [
        ("NLayer", config.n_layer),
        ("NEmbd", config.n_embd),
        ("NHead", config.n_head),
        ("NKVHead", config.n_kv_head),
        ("HeadDim", config.head_dim),
        ("NVocab", config.n_vocab),
        ("NCtx", config.n_ctx),
    ] {
        if value == 0 || value > MAX_DIMENSION {
            return refuse(field, format!("{value} is not 1 to {MAX_DIMENSION}"));
        }
    }
    if !config.n_head.is_multiple_of(config.n_kv_head) {
        return refuse("NKVHead", "does not divide NHead".to_owned());
    }
    if config.n_rot == 0 || config.n_rot > config.head_dim || !config.n_rot.is_multiple_of(2) {
        return refuse("NRot", "is not an even number up to HeadDim".to_owned());
    }
    if config.head_dim_v != 0 && config.head_dim_v != config.head_dim {
        return refuse("HeadDimV", "differs from HeadDim".to_owned());
    }
    if config.n_expert > 0 && !(1..=config.n_expert).contains(&config.n_expert_used) {
        return refuse("NExpertUsed", format!("is not 1 to {}", config.n_expert));
    }
    if config
        .layer_kinds
        .iter()
        .any(|kind| *kind != LayerKind::Attention)
    {
        return refuse(
            "LayerKinds",
            "has layers other than full attention".to_owned(),
        );
    }
    for (field, value) in [
        ("SWAWindow", config.swa_window),
        ("NFFNShExp", config.n_ffn_sh_exp),
        ("NExpertGroup", config.n_expert_group),
        ("QLoraRank", config.q_lora_rank),
        ("KVLoraRank", config.kv_lora_rank),
        ("NMTP", config.n_mtp),
        (
            "RopeSections",
            config.rope_sections.iter().copied().max().unwrap_or(0),
        ),
    ] {
        if value != 0 {
            return refuse(field, format!("{value} is not supported"));
        }
    }
    for (field, value) in [
        ("AttnSoftcap", config.attn_softcap),
        ("FinalSoftcap", config.final_softcap),
        ("YarnFactor", config.yarn_factor),
    ] {
        if value != 0.0 {
            return refuse(field, format!("{value} is not supported"));
        }
    }
    if config.tails != jlm::Tails::default() {
        return refuse("tails", "are not supported".to_owned());
    }
    for (field, value) in [
        ("RMSEps", config.rms_eps),
        ("RopeBase", config.rope_base),
        ("RopeLinear", config.rope_linear),
        ("AttnFactor", config.attn_factor),
        ("EmbdScale", config.embd_scale),
        ("ExpertScale", config.expert_scale),
    ] {
        if !value.is_finite() || value < 0.0 {
            return refuse(field, format!("{value} is out of range"));
        }
    }
    Ok(())
}

/// Looks tensors up and remembers which were asked for.
struct Finder<'a> {
    container: &'a Container,
    used: HashSet<TensorKey>,
}

impl<'a> Finder<'a> {
    fn block(&mut self, config: &Config, shape: &Shape, block: i32) -> Result<Block, ModelError> {
        let queries = shape.heads * shape.head_dim;
        let keys = shape.kv_heads * shape.head_dim;
        let norms = config.flags.has(Flags::QK_NORM);
        let norm_len = |whole| {
            if shape.norm_whole {
                whole
            } else {
                shape.head_dim
            }
        };
        let mut norm = |role, length| match norms {
            true => self.vector(role, block, length).map(Some),
            false => Ok(None),
        };
        let q_norm = norm(Role::ATTN_Q_NORM, norm_len(queries))?;
        let k_norm = norm(Role::ATTN_K_NORM, norm_len(keys))?;
        let mut projection = |weight, bias, k, rows| {
            Ok(Projection {
                weight: self.matrix(weight, block, k, rows)?,
                bias: self.optional_vector(bias, block, rows)?,
            })
        };
        let q = projection(Role::ATTN_Q, Role::ATTN_Q_BIAS, shape.embd, queries)?;
        let k = projection(Role::ATTN_K, Role::ATTN_K_BIAS, shape.embd, keys)?;
        let v = projection(Role::ATTN_V, Role::ATTN_V_BIAS, shape.embd, keys)?;
        let out = projection(Role::ATTN_OUT, Role::ATTN_OUT_BIAS, queries, shape.embd)?;
        Ok(Block {
            attn_norm: self.vector(Role::ATTN_NORM, block, shape.embd)?,
            q,
            k,
            v,
            out,
            q_norm,
            k_norm,
            ffn_norm: self.vector(Role::FFN_NORM, block, shape.embd)?,
            ffn: self.feed_forward(config, shape, block)?,
        })
    }

    fn feed_forward(
        &mut self,
        config: &Config,
        shape: &Shape,
        block: i32,
    ) -> Result<FeedForward, ModelError> {
        let embd = shape.embd;
        if config.n_expert == 0 || (block as u32) < config.n_dense_lead {
            let ffn = config.n_ffn as usize;
            return Ok(FeedForward::Dense(Mlp {
                gate: self.matrix(Role::FFN_GATE, block, embd, ffn)?,
                up: self.matrix(Role::FFN_UP, block, embd, ffn)?,
                down: self.matrix(Role::FFN_DOWN, block, ffn, embd)?,
            }));
        }
        let ffn = config.n_ffn_exp as usize;
        let router = self.matrix(Role::ROUTER, block, embd, shape.experts)?;
        let banked = self
            .container
            .tensor_of(Role::EXP_GATE_BANK, block)
            .is_some();
        let experts = if banked {
            Experts::Paged(Box::new(Mlp {
                gate: self.bank(Role::EXP_GATE_BANK, block, embd, ffn, shape.experts)?,
                up: self.bank(Role::EXP_UP_BANK, block, embd, ffn, shape.experts)?,
                down: self.bank(Role::EXP_DOWN_BANK, block, ffn, embd, shape.experts)?,
            }))
        } else {
            let mut expert = |index| {
                Ok(Mlp {
                    gate: self.indexed(Role::EXP_GATE, block, index, [embd, ffn])?,
                    up: self.indexed(Role::EXP_UP, block, index, [embd, ffn])?,
                    down: self.indexed(Role::EXP_DOWN, block, index, [ffn, embd])?,
                })
            };
            let experts = 0..config.n_expert as i32;
            Experts::InBlock(
                experts
                    .map(&mut expert)
                    .collect::<Result<_, ModelError>>()?,
            )
        };
        Ok(FeedForward::Mixture { router, experts })
    }

    fn vector(&mut self, role: Role, block: i32, length: usize) -> Result<Slot, ModelError> {
        self.indexed(role, block, -1, [length, 1])
    }

    fn optional_vector(
        &mut self,
        role: Role,
        block: i32,
        length: usize,
    ) -> Result<Option<Slot>, ModelError> {
        match self.container.tensor_of(role, block) {
            Some(_) => self.vector(role, block, length).map(Some),
            None => Ok(None),
        }
    }

    fn matrix(
        &mut self,
        role: Role,
        block: i32,
        k: usize,
        rows: usize,
    ) -> Result<Slot, ModelError> {
        self.indexed(role, block, -1, [k, rows])
    }

    fn indexed(
        &mut self,
        role: Role,
        block: i32,
        index: i32,
        [k, rows]: [usize; 2],
    ) -> Result<Slot, ModelError> {
        let entry = self.entry(TensorKey { role, block, index })?;
        let base = match entry.is_dense() {
            true => Some(self.container.region(Region::Dense).offset),
            false => {
                let pages = self.container.region(Region::Text);
                let size = self.container.unit_len(Region::Text);
                u64::try_from(block)
                    .ok()
                    .and_then(|block| pages.offset.checked_add(block.checked_mul(size)?))
            }
        };
        slot(entry, &self.container.planes(entry), base, [k, rows, 1])
    }

    fn bank(
        &mut self,
        role: Role,
        block: i32,
        k: usize,
        rows: usize,
        experts: usize,
    ) -> Result<Slot, ModelError> {
        let entry = self.entry(TensorKey {
            role,
            block,
            index: -1,
        })?;
        let page = u32::try_from(block)
            .ok()
            .and_then(|block| self.container.expert_page(block, 0));
        let base = page.map(|page| page.offset);
        slot(
            entry,
            &self.container.planes(entry),
            base,
            [k, rows, experts],
        )
    }

    fn entry(&mut self, key: TensorKey) -> Result<&'a TensorEntry, ModelError> {
        let entry = self.container.tensor(key).ok_or(ModelError::Missing {
            role: key.role.name(),
            block: key.block,
        })?;
        self.used.insert(key);
        Ok(entry)
    }

    fn nothing_is_left(&self) -> Result<(), ModelError> {
        let mut entries = self.container.tensors().iter();
        match entries.find(|entry| !self.used.contains(&entry.key)) {
            None => Ok(()),
            Some(entry) => Err(ModelError::Tensor {
                name: entry.name.clone(),
                reason: format!(
                    "role {} has no part in a {} model",
                    entry.key.role.name(),
                    self.container.config().arch.name()
                ),
            }),
        }
    }
}

/// The place of a tensor relative to `base`, once its dims are `[k, rows, sheets]`.
fn slot(
    entry: &TensorEntry,
    planes: &Planes,
    base: Option<u64>,
    [k, rows, sheets]: [usize; 3],
) -> Result<Slot, ModelError> {
    let refuse = |reason: String| ModelError::Tensor {
        name: entry.name.clone(),
        reason,
    };
    let dims = [entry.k(), entry.rows(), entry.sheets()];
    if dims != [k, rows, sheets].map(|dim| dim as u64) {
        return Err(refuse(format!(
            "shape is {dims:?}, not {:?}",
            [k, rows, sheets]
        )));
    }
    let relative = |span: Span| {
        let offset = match span.length {
            0 => 0,
            _ => span.offset.checked_sub(base?)?,
        };
        Some((
            usize::try_from(offset).ok()?,
            usize::try_from(span.length).ok()?,
        ))
    };
    let [qs, d, sc] = planes.as_array().map(relative);
    let planes = (|| Some([qs?, d?, sc?]))();
    Ok(Slot {
        name: entry.name.clone(),
        rows,
        k,
        dtype: entry.dtype,
        dense: entry.is_dense(),
        planes: planes.ok_or_else(|| refuse("lies before its page".to_owned()))?,
    })
}

/// Keeps products of two dimensions far below 64 bits.
const MAX_DIMENSION: u32 = 1 << 28;
