//! The config record: the architecture and its constants (spec: container, B.2, A.6, A.7).

use codec::{DecodeError, Fault, Reader, Writer};

use crate::codes::Arch;
use crate::header::Version;
use crate::record::{Field, Number, record};
use crate::tails::Tails;

/// A layer's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LayerKind {
    /// Full softmax attention.
    Attention = 1,
    /// Linear attention (gated delta rule).
    Linear = 2,
    /// Mamba-2 mixer.
    Ssd = 8,
    /// Mamba-2 and attention side by side.
    SsdAttention = 9,
    /// Gated short convolution.
    ShortConv = 10,
    /// Mamba-1.
    Mamba = 11,
}

impl LayerKind {
    /// The kind with this code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Attention,
            2 => Self::Linear,
            8 => Self::Ssd,
            9 => Self::SsdAttention,
            10 => Self::ShortConv,
            11 => Self::Mamba,
            _ => return None,
        })
    }

    /// Whether the layer keeps a key-value cache.
    #[must_use]
    pub const fn attends(self) -> bool {
        matches!(self, Self::Attention | Self::SsdAttention)
    }
}

/// Bits of [`Config::flags`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// The output projection is the embedding.
    pub const TIED: Self = Self(1 << 1);
    /// Queries and keys pass an RMS norm.
    pub const QK_NORM: Self = Self(1 << 2);
    /// That norm spans the whole projection, not a head.
    pub const QK_NORM_WHOLE: Self = Self(1 << 3);
    /// The top-k router weights are not renormalised.
    pub const KEEP_ROUTER_WEIGHTS: Self = Self(1 << 4);
    /// Rotary pairs are (i, i + n_rot/2); clear, they are (2i, 2i + 1).
    pub const ROPE_NEOX: Self = Self(1 << 7);
    /// The router's scores are sigmoids.
    pub const SIGMOID_ROUTER: Self = Self(1 << 13);
    /// Attention is not causal.
    pub const NON_CAUSAL: Self = Self(1 << 15);
    /// Mean pooling.
    pub const POOL_MEAN: Self = Self(1 << 16);
    /// Pooling by the first token.
    pub const POOL_CLS: Self = Self(1 << 17);
    /// Pooling by the last token.
    pub const POOL_LAST: Self = Self(1 << 18);

    /// Names of all bits, by position; retired bits have none.
    pub const NAMES: [Option<&'static str>; 28] = [
        Some("GELU"),
        Some("TiedEmbd"),
        Some("QKNorm"),
        Some("QKNormFull"),
        Some("NoNormTopK"),
        None,
        None,
        Some("RopeNeox"),
        Some("AttnGate"),
        Some("QuickGELU"),
        Some("VisionRope"),
        Some("SwigluOAI"),
        Some("YarnNoRound"),
        Some("SigmoidRouter"),
        Some("NoPos"),
        Some("NonCausal"),
        Some("PoolMean"),
        Some("PoolCLS"),
        Some("PoolLast"),
        Some("ChunkedSWA"),
        Some("GlobalNoRope"),
        Some("QKL2Norm"),
        Some("WeightInput"),
        Some("KeysTiled"),
        Some("LayerNorm"),
        Some("Parallel"),
        Some("ReLU2"),
        Some("QKNormPost"),
    ];

    /// Whether every bit of `other` is set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These bits and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

record! {
    /// Constants of state-space layers.
    SsmConfig {
        conv_kernel: u32 = "ConvKernel",
        groups: u32 = "Groups",
        inner: u32 = "Inner",
        state_size: u32 = "StateSize",
        n_head_v: u32 = "NHeadV",
    }
}

/// The architecture and its constants. Sizes are in elements, counts in layers or heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Architecture.
    pub arch: Arch,
    /// `NLayer`.
    pub n_layer: u32,
    /// `NEmbd`: hidden size.
    pub n_embd: u32,
    /// `NHead`: query heads.
    pub n_head: u32,
    /// `NKVHead`: key and value heads.
    pub n_kv_head: u32,
    /// `HeadDim`: size of a query and key head.
    pub head_dim: u32,
    /// `NRot`: rotated elements of a head.
    pub n_rot: u32,
    /// `NFFN`: size of the dense feed-forward part.
    pub n_ffn: u32,
    /// `NVocab`: rows of the embedding.
    pub n_vocab: u32,
    /// `NCtx`: positions the model was made for.
    pub n_ctx: u32,
    /// `NExpert`: routed experts of a mixture block, 0 for dense models.
    pub n_expert: u32,
    /// `NExpertUsed`: experts a token is routed to.
    pub n_expert_used: u32,
    /// `NFFNExp`: size of an expert.
    pub n_ffn_exp: u32,
    /// `SWAWindow`: sliding window in tokens, 0 for none.
    pub swa_window: u32,
    /// `SWAPeriod`: every how many layers one is global.
    pub swa_period: u32,
    /// `RMSEps`.
    pub rms_eps: f32,
    /// `RopeBase`.
    pub rope_base: f32,
    /// `AttnFactor`: factor on the rotary sines and cosines.
    pub attn_factor: f32,
    /// `EmbdScale`: factor on embeddings.
    pub embd_scale: f32,
    /// `RopeBaseSWA`.
    pub rope_base_swa: f32,
    /// `Flags`.
    pub flags: Flags,
    /// `NFFNShExp`: size of the shared expert.
    pub n_ffn_sh_exp: u32,
    /// State-space constants.
    pub ssm: SsmConfig,
    /// Kinds of the layers; empty when every layer is full attention.
    pub layer_kinds: Vec<LayerKind>,
    /// `RopeSections`.
    pub rope_sections: [u32; 4],
    /// `AttnSoftcap`.
    pub attn_softcap: f32,
    /// `FinalSoftcap`.
    pub final_softcap: f32,
    /// `YarnFactor`: 0 for none.
    pub yarn_factor: f32,
    /// `YarnOrigCtx`.
    pub yarn_orig_ctx: u32,
    /// `YarnBetaFast`.
    pub yarn_beta_fast: f32,
    /// `YarnBetaSlow`.
    pub yarn_beta_slow: f32,
    /// `RopeLinear`: linear rotary scaling, 0 for none.
    pub rope_linear: f32,
    /// `HeadDimV`: size of a value head when it differs, else 0.
    pub head_dim_v: u32,
    /// `NDenseLead`: dense layers before the first mixture.
    pub n_dense_lead: u32,
    /// `QLoraRank`.
    pub q_lora_rank: u32,
    /// `KVLoraRank`.
    pub kv_lora_rank: u32,
    /// `YarnLogMul`.
    pub yarn_log_mul: f32,
    /// `ExpertScale`: factor on router weights, 0 for none.
    pub expert_scale: f32,
    /// `NExpertGroup`.
    pub n_expert_group: u32,
    /// `NExpertGroupUsed`.
    pub n_expert_group_used: u32,
    /// `NMTP`: next-token-prediction blocks; version 28 only.
    pub n_mtp: u32,
    /// Optional tails.
    pub tails: Tails,
}

impl Config {
    /// A config whose every field is zero or empty.
    #[must_use]
    pub fn new(arch: Arch) -> Self {
        Self {
            arch,
            n_layer: 0,
            n_embd: 0,
            n_head: 0,
            n_kv_head: 0,
            head_dim: 0,
            n_rot: 0,
            n_ffn: 0,
            n_vocab: 0,
            n_ctx: 0,
            n_expert: 0,
            n_expert_used: 0,
            n_ffn_exp: 0,
            swa_window: 0,
            swa_period: 0,
            rms_eps: 0.0,
            rope_base: 0.0,
            attn_factor: 0.0,
            embd_scale: 0.0,
            rope_base_swa: 0.0,
            flags: Flags::default(),
            n_ffn_sh_exp: 0,
            ssm: SsmConfig::default(),
            layer_kinds: Vec::new(),
            rope_sections: [0; 4],
            attn_softcap: 0.0,
            final_softcap: 0.0,
            yarn_factor: 0.0,
            yarn_orig_ctx: 0,
            yarn_beta_fast: 0.0,
            yarn_beta_slow: 0.0,
            rope_linear: 0.0,
            head_dim_v: 0,
            n_dense_lead: 0,
            q_lora_rank: 0,
            kv_lora_rank: 0,
            yarn_log_mul: 0.0,
            expert_scale: 0.0,
            n_expert_group: 0,
            n_expert_group_used: 0,
            n_mtp: 0,
            tails: Tails::default(),
        }
    }

    /// The format's names of all numbers of the record, tails included, with their values.
    #[must_use]
    pub fn numbers(&self) -> Vec<(&'static str, Number)> {
        let mut numbers = vec![
            ("NLayer", self.n_layer.number()),
            ("NEmbd", self.n_embd.number()),
            ("NHead", self.n_head.number()),
            ("NKVHead", self.n_kv_head.number()),
            ("HeadDim", self.head_dim.number()),
            ("NRot", self.n_rot.number()),
            ("NFFN", self.n_ffn.number()),
            ("NVocab", self.n_vocab.number()),
            ("NCtx", self.n_ctx.number()),
            ("NExpert", self.n_expert.number()),
            ("NExpertUsed", self.n_expert_used.number()),
            ("NFFNExp", self.n_ffn_exp.number()),
            ("SWAWindow", self.swa_window.number()),
            ("SWAPeriod", self.swa_period.number()),
            ("RMSEps", self.rms_eps.number()),
            ("RopeBase", self.rope_base.number()),
            ("AttnFactor", self.attn_factor.number()),
            ("EmbdScale", self.embd_scale.number()),
            ("RopeBaseSWA", self.rope_base_swa.number()),
            ("NFFNShExp", self.n_ffn_sh_exp.number()),
            ("AttnSoftcap", self.attn_softcap.number()),
            ("FinalSoftcap", self.final_softcap.number()),
            ("YarnFactor", self.yarn_factor.number()),
            ("YarnOrigCtx", self.yarn_orig_ctx.number()),
            ("YarnBetaFast", self.yarn_beta_fast.number()),
            ("YarnBetaSlow", self.yarn_beta_slow.number()),
            ("RopeLinear", self.rope_linear.number()),
            ("HeadDimV", self.head_dim_v.number()),
            ("NDenseLead", self.n_dense_lead.number()),
            ("QLoraRank", self.q_lora_rank.number()),
            ("KVLoraRank", self.kv_lora_rank.number()),
            ("YarnLogMul", self.yarn_log_mul.number()),
            ("ExpertScale", self.expert_scale.number()),
            ("NExpertGroup", self.n_expert_group.number()),
            ("NExpertGroupUsed", self.n_expert_group_used.number()),
            ("NMTP", self.n_mtp.number()),
        ];
        let tails = &self.tails;
        numbers.extend(tails.attn_temp.numbers());
        numbers.extend(tails.scale.numbers());
        numbers.extend(tails.clamp.numbers());
        numbers.extend(tails.sliding.numbers());
        numbers.extend(tails.indexer.numbers());
        numbers.extend(tails.alt_up.numbers());
        numbers.extend(tails.indexer_block.numbers());
        numbers.extend(tails.hyper.numbers());
        numbers.extend(tails.latent.numbers());
        numbers
    }

    /// Whether layer `block` keeps a key-value cache. Blocks past the list attend.
    #[must_use]
    pub fn attends(&self, block: u32) -> bool {
        self.layer_kinds
            .get(block as usize)
            .is_none_or(|kind| kind.attends())
    }

    /// Whether layer `block` reads the keys and values of an earlier layer.
    #[must_use]
    pub fn shares_kv(&self, block: u32) -> bool {
        let shared = self.tails.sliding.n_kv_shared;
        shared > 0 && block >= self.n_layer.saturating_sub(shared) && block < self.n_layer
    }

    /// Decodes a config section.
    pub fn decode(bytes: &[u8], version: Version) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let before = r.clone();
        let code = r.u16("Arch")?;
        let arch = Arch::from_code(code).ok_or_else(|| {
            before.error("Arch", Fault::Invalid(format!("{code} is no architecture")))
        })?;
        let mut config = Self {
            n_layer: r.u32("NLayer")?,
            n_embd: r.u32("NEmbd")?,
            n_head: r.u32("NHead")?,
            n_kv_head: r.u32("NKVHead")?,
            head_dim: r.u32("HeadDim")?,
            n_rot: r.u32("NRot")?,
            n_ffn: r.u32("NFFN")?,
            n_vocab: r.u32("NVocab")?,
            n_ctx: r.u32("NCtx")?,
            n_expert: r.u32("NExpert")?,
            n_expert_used: r.u32("NExpertUsed")?,
            n_ffn_exp: r.u32("NFFNExp")?,
            swa_window: r.u32("SWAWindow")?,
            swa_period: r.u32("SWAPeriod")?,
            rms_eps: r.f32("RMSEps")?,
            rope_base: r.f32("RopeBase")?,
            attn_factor: r.f32("AttnFactor")?,
            embd_scale: r.f32("EmbdScale")?,
            rope_base_swa: r.f32("RopeBaseSWA")?,
            flags: read_flags(r)?,
            n_ffn_sh_exp: r.u32("NFFNShExp")?,
            ssm: SsmConfig::read(r)?,
            ..Self::new(arch)
        };
        config.layer_kinds = read_layer_kinds(r, config.n_layer)?;
        for section in &mut config.rope_sections {
            *section = r.u32("RopeSections")?;
        }
        config.attn_softcap = r.f32("AttnSoftcap")?;
        config.final_softcap = r.f32("FinalSoftcap")?;
        config.yarn_factor = r.f32("YarnFactor")?;
        config.yarn_orig_ctx = r.u32("YarnOrigCtx")?;
        config.yarn_beta_fast = r.f32("YarnBetaFast")?;
        config.yarn_beta_slow = r.f32("YarnBetaSlow")?;
        config.rope_linear = r.f32("RopeLinear")?;
        config.head_dim_v = r.u32("HeadDimV")?;
        config.n_dense_lead = r.u32("NDenseLead")?;
        config.q_lora_rank = r.u32("QLoraRank")?;
        config.kv_lora_rank = r.u32("KVLoraRank")?;
        config.yarn_log_mul = r.f32("YarnLogMul")?;
        config.expert_scale = r.f32("ExpertScale")?;
        config.n_expert_group = r.u32("NExpertGroup")?;
        config.n_expert_group_used = r.u32("NExpertGroupUsed")?;
        if version >= Version::V28 {
            config.n_mtp = r.u32("NMTP")?;
        }
        config.tails = Tails::read(r)?;
        reader.finish("config")?;
        Ok(config)
    }

    /// The section's bytes. `n_mtp` is not written for version 27.
    #[must_use]
    pub fn encode(&self, version: Version) -> Vec<u8> {
        let mut out = Writer::new();
        let o = &mut out;
        o.u16(self.arch.code());
        for value in [
            self.n_layer,
            self.n_embd,
            self.n_head,
            self.n_kv_head,
            self.head_dim,
            self.n_rot,
            self.n_ffn,
            self.n_vocab,
            self.n_ctx,
            self.n_expert,
            self.n_expert_used,
            self.n_ffn_exp,
            self.swa_window,
            self.swa_period,
        ] {
            o.u32(value);
        }
        for value in [
            self.rms_eps,
            self.rope_base,
            self.attn_factor,
            self.embd_scale,
            self.rope_base_swa,
        ] {
            o.f32(value);
        }
        o.u32(self.flags.0);
        o.u32(self.n_ffn_sh_exp);
        self.ssm.write(o);
        o.u32(self.layer_kinds.len() as u32);
        self.layer_kinds.iter().for_each(|kind| o.u8(*kind as u8));
        self.rope_sections
            .iter()
            .for_each(|section| o.u32(*section));
        o.f32(self.attn_softcap);
        o.f32(self.final_softcap);
        o.f32(self.yarn_factor);
        o.u32(self.yarn_orig_ctx);
        o.f32(self.yarn_beta_fast);
        o.f32(self.yarn_beta_slow);
        o.f32(self.rope_linear);
        o.u32(self.head_dim_v);
        o.u32(self.n_dense_lead);
        o.u32(self.q_lora_rank);
        o.u32(self.kv_lora_rank);
        o.f32(self.yarn_log_mul);
        o.f32(self.expert_scale);
        o.u32(self.n_expert_group);
        o.u32(self.n_expert_group_used);
        if version >= Version::V28 {
            o.u32(self.n_mtp);
        }
        self.tails.write(o);
        out.into_bytes()
    }
}

fn read_flags(r: &mut Reader<'_>) -> Result<Flags, DecodeError> {
    let before = r.clone();
    let flags = Flags(r.u32("Flags")?);
    let refuse = |reason: &str| Err(before.error("Flags", Fault::Invalid(reason.to_owned())));
    if flags.0 >> Flags::NAMES.len() != 0 || flags.0 & RETIRED != 0 {
        return refuse("has a bit that means nothing");
    }
    let pools = [Flags::POOL_MEAN, Flags::POOL_CLS, Flags::POOL_LAST];
    if pools.into_iter().filter(|pool| flags.has(*pool)).count() > 1 {
        return refuse("has more than one pooling bit");
    }
    Ok(flags)
}

fn read_layer_kinds(r: &mut Reader<'_>, n_layer: u32) -> Result<Vec<LayerKind>, DecodeError> {
    let before = r.clone();
    let refuse = |reason: String| before.error("LayerKinds", Fault::Invalid(reason));
    let count = r.count("LayerKinds", 1, MAX_LAYERS)?;
    if count != 0 && count as u64 != u64::from(n_layer) {
        return Err(refuse(format!("{count} kinds for {n_layer} layers")));
    }
    r.bytes("LayerKinds", count)?
        .iter()
        .map(|code| {
            LayerKind::from_code(*code).ok_or_else(|| refuse(format!("{code} is no layer kind")))
        })
        .collect()
}

/// Bits 5 and 6: fused projections, retired.
const RETIRED: u32 = 0b11 << 5;
const MAX_LAYERS: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tails::DecisionTemperature;

    #[test]
    fn a_later_tail_forces_every_earlier_one() {
        let mut config = Config::new(Arch::LLAMA);
        let plain = config.encode(Version::V27).len();
        assert_eq!(plain, 186);
        assert_eq!(config.encode(Version::V28).len(), 190);
        config.tails.clamp.clamp_kqv = 8.0;
        let bytes = config.encode(Version::V27);
        assert_eq!(bytes.len(), plain + 16 + 12 + 4);
        assert_eq!(Config::decode(&bytes, Version::V27).unwrap(), config);
    }

    #[test]
    fn all_tails_survive_the_round_trip_and_no_truncation_is_accepted_inside_one() {
        let mut config = Config::new(Arch::LLAMA);
        config
            .tails
            .decision
            .temperatures
            .push(DecisionTemperature {
                question: 1,
                min: 2,
                max: 3,
                temperature: 0.5,
            });
        config.tails.comp_kinds = vec![1, 2];
        let bytes = config.encode(Version::V28);
        assert_eq!(Config::decode(&bytes, Version::V28).unwrap(), config);
        let accepted = (0..bytes.len())
            .filter(|length| Config::decode(&bytes[..*length], Version::V28).is_ok())
            .count();
        assert_eq!(
            accepted, 10,
            "one length for each number of tails below ten"
        );
    }

    #[test]
    fn retired_flags_and_unknown_kinds_are_refused() {
        let mut config = Config::new(Arch::LLAMA);
        config.flags = Flags(1 << 5);
        assert!(Config::decode(&config.encode(Version::V27), Version::V27).is_err());
        config.flags = Flags::default();
        config.n_layer = 2;
        config.layer_kinds = vec![LayerKind::Attention];
        assert!(Config::decode(&config.encode(Version::V27), Version::V27).is_err());
    }
}
