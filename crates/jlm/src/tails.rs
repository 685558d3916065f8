//! The config record's ten optional tails (spec: container, B.2).

use codec::{DecodeError, Reader, Writer};

use crate::record::record;

record! {
    /// First tail: interleaved mixtures and attention temperature.
    AttnTempTail {
        moe_step: u32 = "MoEStep",
        scale: f32 = "AttnTempScale",
        floor: u32 = "AttnTempFloor",
        offset: f32 = "AttnTempOffset",
    }
}

record! {
    /// Second tail: multipliers.
    ScaleTail {
        attn: f32 = "AttnScale",
        residual: f32 = "ResidualScale",
        logit: f32 = "LogitScale",
    }
}

record! {
    /// Third tail: clamping.
    ClampTail {
        clamp_kqv: f32 = "ClampKQV",
    }
}

record! {
    /// Fourth tail: sliding-window layers of another shape.
    SlidingTail {
        head_dim: u32 = "HeadDimSWA",
        n_kv_head: u32 = "NKVHeadSWA",
        n_rot: u32 = "NRotSWA",
        flags2: u32 = "Flags2",
        n_kv_shared: u32 = "NKVShared",
        ple_dim: u32 = "PLEDim",
    }
}

record! {
    /// Fifth tail: the sparse-attention indexer.
    IndexerTail {
        heads: u32 = "IdxHeads",
        head_dim: u32 = "IdxHeadDim",
        top_k: u32 = "IdxTopK",
    }
}

record! {
    /// Sixth tail: alternating updates.
    AltUpTail {
        alt_up: u32 = "AltUp",
        n_sparse: u32 = "NSparse",
        sparse_std: f32 = "SparseStd",
    }
}

record! {
    /// Seventh tail: the indexer's blocks.
    IndexerBlockTail {
        block: u32 = "IdxBlock",
        local: u32 = "IdxLocal",
    }
}

record! {
    /// Numbers of the eighth tail: hyper-connections and compressed attention.
    HyperTail {
        mult: u32 = "HCMult",
        iters: u32 = "HCIters",
        eps: f32 = "HCEps",
        o_groups: u32 = "OGroups",
        o_lora_rank: u32 = "OLoraRank",
        comp_rate_csa: u32 = "CompRateCSA",
        comp_rate_hca: u32 = "CompRateHCA",
        n_hash_layers: u32 = "NHashLayers",
    }
}

record! {
    /// Ninth tail: attention residuals and latent experts.
    LatentTail {
        attn_res_block: u32 = "AttnResBlock",
        expert_latent: u32 = "ExpertLatent",
        situ_beta: f32 = "SituBeta",
        situ_linear_beta: f32 = "SituLinearBeta",
        kda_lower_bound: f32 = "KDALowerBound",
        latent_norm_eps: f32 = "LatentNormEps",
    }
}

/// Tenth tail: decision heads.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DecisionTail {
    /// `Decision`: 0 none, 1 lev, 2 lfm2-d1, 3 laya.
    pub kind: u8,
    /// `DecisionBlocks`.
    pub blocks: u32,
    /// `DecisionHeadTokens`.
    pub head_tokens: u32,
    /// `DecisionHeads`.
    pub heads: u32,
    /// Temperatures by question type and size.
    pub temperatures: Vec<DecisionTemperature>,
}

/// A temperature for questions of one type and a range of sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecisionTemperature {
    /// Question type: 0 choice, 1 score, 2 noul.
    pub question: u8,
    /// Smallest size.
    pub min: u32,
    /// Largest size.
    pub max: u32,
    /// The temperature.
    pub temperature: f32,
}

/// The ten optional tails; all zero for llama, qwen2, qwen3 and qwen3moe.
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs, reason = "each field's type says what it is")]
pub struct Tails {
    pub attn_temp: AttnTempTail,
    pub scale: ScaleTail,
    pub clamp: ClampTail,
    pub sliding: SlidingTail,
    pub indexer: IndexerTail,
    pub alt_up: AltUpTail,
    pub indexer_block: IndexerBlockTail,
    pub hyper: HyperTail,
    /// Kinds of compressed attention by layer (part of the eighth tail): 0 none, 1 CSA, 2 HCA.
    pub comp_kinds: Vec<u8>,
    pub latent: LatentTail,
    pub decision: DecisionTail,
}

impl Tails {
    /// Each tail is there when bytes are left.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut tails = Self::default();
        macro_rules! tail {
            ($field:ident, $kind:ident) => {
                if r.left() == 0 {
                    return Ok(tails);
                }
                tails.$field = $kind::read(r)?;
            };
        }
        tail!(attn_temp, AttnTempTail);
        tail!(scale, ScaleTail);
        tail!(clamp, ClampTail);
        tail!(sliding, SlidingTail);
        tail!(indexer, IndexerTail);
        tail!(alt_up, AltUpTail);
        tail!(indexer_block, IndexerBlockTail);
        tail!(hyper, HyperTail);
        let count = r.count("CompKinds", 1, MAX_LAYERS)?;
        tails.comp_kinds = r.bytes("CompKinds", count)?.to_vec();
        tail!(latent, LatentTail);
        tail!(decision, DecisionTail);
        Ok(tails)
    }

    /// Tails up to the last that is not all zero.
    pub(crate) fn write(&self, out: &mut Writer) {
        let hyper_is_zero = self.hyper.is_zero() && self.comp_kinds.is_empty();
        let zero = [
            self.attn_temp.is_zero(),
            self.scale.is_zero(),
            self.clamp.is_zero(),
            self.sliding.is_zero(),
            self.indexer.is_zero(),
            self.alt_up.is_zero(),
            self.indexer_block.is_zero(),
            hyper_is_zero,
            self.latent.is_zero(),
            self.decision == DecisionTail::default(),
        ];
        let count = zero
            .iter()
            .rposition(|zero| !zero)
            .map_or(0, |last| last + 1);
        let writers: [&dyn Fn(&mut Writer); 10] = [
            &|o| self.attn_temp.write(o),
            &|o| self.scale.write(o),
            &|o| self.clamp.write(o),
            &|o| self.sliding.write(o),
            &|o| self.indexer.write(o),
            &|o| self.alt_up.write(o),
            &|o| self.indexer_block.write(o),
            &|o| {
                self.hyper.write(o);
                o.u32(self.comp_kinds.len() as u32);
                o.bytes(&self.comp_kinds);
            },
            &|o| self.latent.write(o),
            &|o| self.decision.write(o),
        ];
        writers[..count].iter().for_each(|write| write(out));
    }
}

impl DecisionTail {
    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (kind, blocks, head_tokens, heads) = (
            r.u8("Decision")?,
            r.u32("DecisionBlocks")?,
            r.u32("DecisionHeadTokens")?,
            r.u32("DecisionHeads")?,
        );
        let count = r.count("DecisionTemps", 13, MAX_LAYERS)?;
        let temperatures = (0..count)
            .map(|_| {
                Ok(DecisionTemperature {
                    question: r.u8("DecisionTemps type")?,
                    min: r.u32("DecisionTemps min")?,
                    max: r.u32("DecisionTemps max")?,
                    temperature: r.f32("DecisionTemps T")?,
                })
            })
            .collect::<Result<_, DecodeError>>()?;
        Ok(Self {
            kind,
            blocks,
            head_tokens,
            heads,
            temperatures,
        })
    }

    fn write(&self, out: &mut Writer) {
        out.u8(self.kind);
        out.u32(self.blocks);
        out.u32(self.head_tokens);
        out.u32(self.heads);
        out.u32(self.temperatures.len() as u32);
        for entry in &self.temperatures {
            out.u8(entry.question);
            out.u32(entry.min);
            out.u32(entry.max);
            out.f32(entry.temperature);
        }
    }
}

/// Longest list by layer.
const MAX_LAYERS: usize = 1 << 16;
