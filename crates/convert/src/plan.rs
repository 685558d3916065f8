//! What will be written: every tensor's identity, type, shape and source.

use std::collections::{BTreeMap, HashMap};

use checkpoint::{Dtype, TensorInfo, TensorSource};
use jlm::{
    Config, Container, DType, Draft, Flags, Planes, Region, Role, TensorEntry, TensorKey, UnitId,
    Version, Vocab, WriterFingerprint,
};

use crate::error::ConvertError;
use crate::files::{Parsed, SourceFiles};
use crate::model::Model;
use crate::names::{Named, named};
use crate::produce::{self, Origin, Recipe, Source};
use crate::vocab::vocab;

/// Choices of a conversion.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Store bf16 tensors as f32, as the reference writer does.
    pub widen_bf16: bool,
    /// Store float matrices whose rows are whole blocks as Q8_0.
    pub q8: bool,
    /// Who writes the container.
    pub fingerprint: WriterFingerprint,
}

/// Something that the container does not hold, which the source had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The tokenizer's NFC normalizer: text that is not in NFC may become other tokens.
    NormalizerDropped,
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NormalizerDropped => f.write_str(
                "tokenizer.json: the NFC normalizer is not stored; text must be given in NFC",
            ),
        }
    }
}

/// A container that is decided in full and not yet produced.
pub struct Plan<'a> {
    origin: Origin<'a>,
    container: Container,
    meta: Vec<u8>,
    /// By tensor, in table order.
    recipes: Vec<Recipe>,
    warnings: Vec<Warning>,
}

/// One sheet of one tensor (one expert's matrix of a bank): the least that is produced at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    tensor: usize,
    sheet: u64,
    planes: Planes,
}

impl Piece {
    /// Where its planes lie in the file.
    #[must_use]
    pub const fn planes(&self) -> Planes {
        self.planes
    }

    /// Bytes of its planes together.
    #[must_use]
    pub fn length(&self) -> u64 {
        let planes = self.planes.as_array();
        planes.iter().map(|plane| plane.length).sum()
    }
}

/// Plans the conversion of a checkpoint. Reads tensor data only to compare a tied model's head
/// with its embedding.
pub fn plan<'a>(
    source: &'a dyn TensorSource,
    files: &SourceFiles,
    options: &Options,
) -> Result<Plan<'a>, ConvertError> {
    let files = Parsed::new(files)?;
    let model = Model::new(&files.config)?;
    let mut collected = Collected::new(source, &model)?;
    let tied = collected.settle_head(source, &model)?;
    let mut config = model.config.clone();
    if tied {
        config.flags = config.flags.with(Flags::TIED);
    }
    let (entries, recipes) = collected.into_entries(&model, options)?;
    let (vocab, warnings) = vocab(&files, config.n_vocab)?;
    Plan::lay_out(
        Origin::Checkpoint(source),
        config,
        Some(&vocab),
        (entries, recipes),
        &options.fingerprint,
        warnings,
    )
}

impl<'a> Plan<'a> {
    pub(crate) fn lay_out(
        origin: Origin<'a>,
        config: Config,
        vocab: Option<&Vocab>,
        (tensors, recipes): (Vec<TensorEntry>, Vec<Recipe>),
        fingerprint: &WriterFingerprint,
        warnings: Vec<Warning>,
    ) -> Result<Self, ConvertError> {
        let vocab = vocab.map_or(Vec::new(), Vocab::encode);
        let container = Draft {
            version: Version::V27,
            config,
            vision_len: 0,
            vocab_len: vocab.len() as u64,
            tensors,
            fingerprint: fingerprint.clone(),
        }
        .lay_out()?;
        let meta = container.encode_meta(&[], &vocab)?;
        Ok(Self {
            origin,
            container,
            meta,
            recipes,
            warnings,
        })
    }

    /// The container's structure: what would be written.
    #[must_use]
    pub const fn container(&self) -> &Container {
        &self.container
    }

    /// The container's bytes before the dense region: the first bytes of the plain file.
    #[must_use]
    pub fn meta(&self) -> &[u8] {
        &self.meta
    }

    /// What the container will not hold.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The units that follow the metadata, in file order: written back to back they complete the
    /// file.
    pub fn units(&self) -> impl Iterator<Item = UnitId> {
        let after_meta = |unit: &UnitId| unit.region >= Region::Dense;
        self.container.units().filter(after_meta)
    }

    /// Every sheet of every tensor, by place in the file. With the metadata before them and zeros
    /// between them they are the file; in any order, and with one tensor in memory.
    #[must_use]
    pub fn pieces(&self) -> Vec<Piece> {
        let tensors = self.container.tensors().iter().enumerate();
        let mut pieces: Vec<Piece> = tensors
            .flat_map(|(tensor, entry)| {
                (0..entry.sheets()).filter_map(move |sheet| {
                    let planes = self.container.sheet(entry, sheet)?;
                    Some(Piece {
                        tensor,
                        sheet,
                        planes,
                    })
                })
            })
            .collect();
        pieces.sort_by_key(|piece| piece.planes.qs.offset);
        pieces
    }

    /// Produces a piece of this plan: its planes back to back. `out` must have its length.
    ///
    /// # Errors
    /// When the source cannot be read or its values cannot be held.
    pub fn write_piece(&self, piece: &Piece, out: &mut [u8]) -> Result<(), ConvertError> {
        let entry = &self.container.tensors()[piece.tensor];
        if out.len() as u64 != piece.length() {
            return Err(ConvertError::tensor(
                &entry.name,
                "is given a buffer of another length",
            ));
        }
        let recipe = &self.recipes[piece.tensor];
        let (sheet, planes) = (piece.sheet, piece.planes);
        produce::write_planes(self.origin, entry, recipe, sheet, planes, out)
    }

    /// Produces a unit. `out` must have its length: see [`Container::unit`]. Besides `out`, one
    /// tensor (one expert's matrix for banks) is in memory.
    pub fn write_unit(&self, unit: UnitId, out: &mut [u8]) -> Result<(), ConvertError> {
        let span = self
            .container
            .unit(unit)
            .filter(|_| unit.region >= Region::Dense)
            .ok_or(ConvertError::NoUnit(unit))?;
        let (given, needed) = (out.len() as u64, span.length);
        if given != needed {
            return Err(ConvertError::Length {
                unit,
                given,
                needed,
            });
        }
        produce::write_span(self.origin, &self.container, &self.recipes, span, out)
    }
}

/// Tensors found in the source, before they are entries.
struct Collected {
    /// By source name, which is table order.
    tensors: BTreeMap<String, (TensorKey, TensorInfo)>,
    /// By block and role, which is table order; sheets by expert.
    banks: BTreeMap<(i32, Role), BTreeMap<u32, TensorInfo>>,
}

impl Collected {
    fn new(source: &dyn TensorSource, model: &Model) -> Result<Self, ConvertError> {
        let mut collected = Self {
            tensors: BTreeMap::new(),
            banks: BTreeMap::new(),
        };
        for info in source.tensors() {
            let name = &info.name;
            let Some(named) = named(&model.class, name) else {
                let reason = format!("is no tensor of a {} model", model.class.arch.name());
                return Err(ConvertError::tensor(name, reason));
            };
            match named {
                Named::Ignored => {}
                Named::Tensor(key) => {
                    check_block(name, key, &model.config)?;
                    let found = (key, info.clone());
                    collected.tensors.insert(name.clone(), found);
                }
                Named::Sheet { bank, expert } => {
                    check_block(name, bank, &model.config)?;
                    let sheets = collected.banks.entry((bank.block, bank.role)).or_default();
                    sheets.insert(expert, info.clone());
                }
            }
        }
        collected.check_complete(model)?;
        Ok(collected)
    }

    /// Decides whether the head is the embedding; drops a head that equals a tied embedding.
    fn settle_head(
        &mut self,
        source: &dyn TensorSource,
        model: &Model,
    ) -> Result<bool, ConvertError> {
        let head = self.tensors.get(HEAD).map(|(_, info)| info.clone());
        match (head, model.tied) {
            (None, true) => Ok(true),
            (Some(_), false) => Ok(false),
            (None, false) => {
                let reason = "is missing, and tie_word_embeddings is not true";
                Err(ConvertError::tensor(HEAD, reason))
            }
            (Some(head), true) => {
                let embedding = &self.tensors[EMBEDDING].1;
                let equal = produce::equal(source, &head, embedding)?;
                if equal {
                    self.tensors.remove(HEAD);
                }
                Ok(equal)
            }
        }
    }

    /// Every block has the tensors that the class cannot do without.
    fn check_complete(&self, model: &Model) -> Result<(), ConvertError> {
        let mut found: HashMap<(Role, i32), usize> = HashMap::new();
        for (key, _) in self.tensors.values() {
            *found.entry((key.role, key.block)).or_default() += 1;
        }
        let need = |role: Role, block: i32| {
            if found.contains_key(&(role, block)) {
                return Ok(());
            }
            let place = if block < 0 {
                String::new()
            } else {
                format!(" of layer {block}")
            };
            let reason = format!("the checkpoint has no {}{place}", role.name());
            Err(ConvertError::config("num_hidden_layers", reason))
        };
        need(Role::TOKEN_EMBD, -1)?;
        need(Role::OUTPUT_NORM, -1)?;
        let mut block_roles = vec![
            Role::ATTN_NORM,
            Role::ATTN_Q,
            Role::ATTN_K,
            Role::ATTN_V,
            Role::ATTN_OUT,
            Role::FFN_NORM,
        ];
        if model.class.qk_norm {
            block_roles.extend([Role::ATTN_Q_NORM, Role::ATTN_K_NORM]);
        }
        block_roles.extend(match model.class.mixture {
            Some(_) => &[Role::ROUTER][..],
            None => &[Role::FFN_GATE, Role::FFN_UP, Role::FFN_DOWN],
        });
        for block in 0..model.config.n_layer as i32 {
            block_roles.iter().try_for_each(|role| need(*role, block))?;
            if model.class.mixture.is_none() {
                continue;
            }
            for role in BANKS {
                let sheets = self.banks.get(&(block, role)).map_or(0, BTreeMap::len);
                if sheets != model.config.n_expert as usize {
                    let reason = format!("layer {block} has {sheets} experts of {}", role.name());
                    return Err(ConvertError::config("num_experts", reason));
                }
            }
        }
        Ok(())
    }

    fn into_entries(
        self,
        model: &Model,
        options: &Options,
    ) -> Result<(Vec<TensorEntry>, Vec<Recipe>), ConvertError> {
        let mut entries = Vec::new();
        let mut recipes = Vec::new();
        let mut push = |(entry, recipe)| {
            entries.push(entry);
            recipes.push(recipe);
        };
        let divisors = model.rope_divisors.as_deref().map(rope_freqs);
        let (before, after): (Vec<_>, Vec<_>) = self
            .tensors
            .into_values()
            .partition(|(_, info)| info.name.as_str() < ROPE_FREQS);
        let tensor = |(key, info): (TensorKey, TensorInfo)| {
            let shape = expected_shape(key, &model.config);
            let heads = permuted_heads(key, model);
            let source = Source::Tensor(info.name.clone());
            entry(key, &info.name, &info, &shape, 1, options)
                .map(|(entry, stored)| (entry, Recipe::new(source, stored, heads)))
        };
        for found in before {
            push(tensor(found)?);
        }
        divisors.into_iter().for_each(&mut push);
        for found in after {
            push(tensor(found)?);
        }
        for ((block, role), sheets) in self.banks {
            push(bank(block, role, sheets, model, options)?);
        }
        Ok((entries, recipes))
    }
}

fn bank(
    block: i32,
    role: Role,
    sheets: BTreeMap<u32, TensorInfo>,
    model: &Model,
    options: &Options,
) -> Result<(TensorEntry, Recipe), ConvertError> {
    let key = TensorKey {
        role,
        block,
        index: -1,
    };
    let shape = expected_shape(key, &model.config);
    // Counted and numbered without gaps: `check_complete` counted, and no expert is above.
    let mut names = Vec::with_capacity(sheets.len());
    let mut first: Option<TensorInfo> = None;
    for (expected, (expert, info)) in (0..).zip(sheets) {
        if expert != expected {
            let reason = format!("expert {expected} of its bank is missing");
            return Err(ConvertError::tensor(&info.name, reason));
        }
        check_shape(&info, &shape)?;
        let first = first.get_or_insert_with(|| info.clone());
        if first.dtype != info.dtype {
            let reason = "is not of the type of its bank's first expert";
            return Err(ConvertError::tensor(&info.name, reason));
        }
        names.push(info.name);
    }
    let first = first.ok_or_else(|| ConvertError::config("num_experts", "is 0"))?;
    let name = first.name.replacen("experts.0.", "experts.*.", 1);
    let experts = names.len() as u64;
    let (entry, stored) = entry(key, &name, &first, &shape, experts, options)?;
    Ok((entry, Recipe::new(Source::Bank(names), stored, None)))
}

fn rope_freqs(divisors: &[f32]) -> (TensorEntry, Recipe) {
    let bytes: Vec<u8> = divisors
        .iter()
        .flat_map(|divisor| divisor.to_le_bytes())
        .collect();
    let entry = TensorEntry {
        key: TensorKey {
            role: Role::ROPE_FREQS,
            block: -1,
            index: -1,
        },
        dtype: DType::F32,
        dims: vec![divisors.len() as u64],
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: ROPE_FREQS.to_owned(),
    };
    (
        entry,
        Recipe::new(Source::Computed(bytes), DType::F32, None),
    )
}

/// The entry of a tensor (or bank of `sheets`), and the type that its source values have.
fn entry(
    key: TensorKey,
    name: &str,
    info: &TensorInfo,
    shape: &[u64],
    sheets: u64,
    options: &Options,
) -> Result<(TensorEntry, DType), ConvertError> {
    check_shape(info, shape)?;
    let stored = match info.dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        other => {
            return Err(ConvertError::tensor(
                name,
                format!("type {other} is not converted"),
            ));
        }
    };
    let mut dims: Vec<u64> = shape.iter().rev().copied().collect();
    if matches!(
        key.role,
        Role::EXP_GATE_BANK | Role::EXP_UP_BANK | Role::EXP_DOWN_BANK
    ) {
        dims.push(sheets);
    }
    let blocks = dims.len() >= 2 && dims[0].is_multiple_of(Q8_BLOCK);
    let quantized = options.q8 && blocks && !matches!(key.role, Role::ROUTER | Role::SH_ROUTER);
    let dtype = match stored {
        _ if quantized => DType::Q8,
        DType::Bf16 if options.widen_bf16 => DType::F32,
        other => other,
    };
    let entry = TensorEntry {
        key,
        dtype,
        dims,
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: name.to_owned(),
    };
    Ok((entry, stored))
}

/// Heads whose rows are permuted for interleaved rotary pairs; `None` for other tensors.
fn permuted_heads(key: TensorKey, model: &Model) -> Option<u64> {
    let heads = match key.role {
        Role::ATTN_Q | Role::ATTN_Q_BIAS => model.config.n_head,
        Role::ATTN_K | Role::ATTN_K_BIAS => model.config.n_kv_head,
        _ => return None,
    };
    model.class.interleaved.then_some(heads.into())
}

fn check_block(name: &str, key: TensorKey, config: &Config) -> Result<(), ConvertError> {
    if i64::from(key.block) < i64::from(config.n_layer) {
        return Ok(());
    }
    let reason = format!("is of a layer past the {} of config.json", config.n_layer);
    Err(ConvertError::tensor(name, reason))
}

fn check_shape(info: &TensorInfo, shape: &[u64]) -> Result<(), ConvertError> {
    if info.shape == shape {
        return Ok(());
    }
    let reason = format!("has shape {:?}, config.json says {shape:?}", info.shape);
    Err(ConvertError::tensor(&info.name, reason))
}

/// The source's shape of a role: rows first.
pub(crate) fn expected_shape(key: TensorKey, config: &Config) -> Vec<u64> {
    let whole_norm = config.flags.has(Flags::QK_NORM_WHOLE);
    let c = config;
    let q = u64::from(c.n_head) * u64::from(c.head_dim);
    let kv = u64::from(c.n_kv_head) * u64::from(c.head_dim);
    let (embd, ffn, expert) = (c.n_embd.into(), c.n_ffn.into(), c.n_ffn_exp.into());
    match key.role {
        Role::TOKEN_EMBD | Role::OUTPUT => vec![c.n_vocab.into(), embd],
        Role::ATTN_Q => vec![q, embd],
        Role::ATTN_K | Role::ATTN_V => vec![kv, embd],
        Role::ATTN_OUT => vec![embd, q],
        Role::ATTN_Q_BIAS => vec![q],
        Role::ATTN_K_BIAS | Role::ATTN_V_BIAS => vec![kv],
        Role::ATTN_Q_NORM if whole_norm => vec![q],
        Role::ATTN_K_NORM if whole_norm => vec![kv],
        Role::ATTN_Q_NORM | Role::ATTN_K_NORM => vec![c.head_dim.into()],
        Role::FFN_GATE | Role::FFN_UP => vec![ffn, embd],
        Role::FFN_DOWN => vec![embd, ffn],
        Role::ROUTER => vec![c.n_expert.into(), embd],
        Role::EXP_GATE_BANK | Role::EXP_UP_BANK | Role::EXP_GATE | Role::EXP_UP => {
            vec![expert, embd]
        }
        Role::EXP_DOWN_BANK | Role::EXP_DOWN => vec![embd, expert],
        // Norms, and the attention output's bias.
        _ => vec![embd],
    }
}

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";
const ROPE_FREQS: &str = "rope_freqs.weight";
const BANKS: [Role; 3] = [Role::EXP_GATE_BANK, Role::EXP_UP_BANK, Role::EXP_DOWN_BANK];
const Q8_BLOCK: u64 = 32;
