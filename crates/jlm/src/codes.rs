//! Architecture and role codes.

use crate::tables::{ARCHITECTURES, ROLES};

/// A valid architecture code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch(u16);

impl Arch {
    /// Llama, Mistral and Mixtral.
    pub const LLAMA: Self = Self(1);
    /// Qwen2 and Qwen2.5.
    pub const QWEN2: Self = Self(2);
    /// Qwen3, dense.
    pub const QWEN3: Self = Self(3);
    /// Qwen3, mixture of experts.
    pub const QWEN3_MOE: Self = Self(4);
    /// OLMoE.
    pub const OLMOE: Self = Self(5);

    /// A code of the format's tables; `None` for any other.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        ARCHITECTURES
            .binary_search_by_key(&code, |(code, _)| *code)
            .ok()
            .map(|_| Self(code))
    }

    /// The architecture called `name` in the format's tables.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        ARCHITECTURES
            .iter()
            .find(|(_, known)| *known == name)
            .map(|(code, _)| Self(*code))
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// The code's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let at = ARCHITECTURES
            .binary_search_by_key(&self.0, |(code, _)| *code)
            .expect("only codes of the table are constructed");
        ARCHITECTURES[at].1
    }
}

/// A valid role code: what a tensor is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Role(u16);

macro_rules! roles {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl Role {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }
    };
}

roles! {
    /// Token embedding: `[n_embd, n_vocab]`.
    TOKEN_EMBD = 1;
    /// Output projection: `[n_embd, n_vocab]`.
    OUTPUT = 2;
    /// Final norm: `[n_embd]`.
    OUTPUT_NORM = 3;
    /// Norm before attention: `[n_embd]`.
    ATTN_NORM = 16;
    /// Query projection.
    ATTN_Q = 17;
    /// Key projection.
    ATTN_K = 18;
    /// Value projection.
    ATTN_V = 19;
    /// Attention output projection.
    ATTN_OUT = 20;
    /// Query bias.
    ATTN_Q_BIAS = 22;
    /// Key bias.
    ATTN_K_BIAS = 23;
    /// Value bias.
    ATTN_V_BIAS = 24;
    /// Attention output bias.
    ATTN_OUT_BIAS = 25;
    /// Query norm: `[head_dim]`, or the whole projection under [`crate::Flags::QK_NORM_WHOLE`].
    ATTN_Q_NORM = 26;
    /// Key norm.
    ATTN_K_NORM = 27;
    /// Norm before the feed-forward part: `[n_embd]`.
    FFN_NORM = 32;
    /// Gate projection: `[n_embd, n_ff]`.
    FFN_GATE = 33;
    /// Up projection: `[n_embd, n_ff]`.
    FFN_UP = 34;
    /// Down projection: `[n_ff, n_embd]`.
    FFN_DOWN = 35;
    /// Router: `[n_embd, n_expert]`.
    ROUTER = 48;
    /// All experts' gate projections: `[n_embd, n_ff_exp, n_expert]`.
    EXP_GATE_BANK = 49;
    /// All experts' up projections: `[n_embd, n_ff_exp, n_expert]`.
    EXP_UP_BANK = 50;
    /// All experts' down projections: `[n_ff_exp, n_embd, n_expert]`.
    EXP_DOWN_BANK = 51;
    /// One expert's gate projection; the entry's index is the expert.
    EXP_GATE = 52;
    /// One expert's up projection.
    EXP_UP = 53;
    /// One expert's down projection.
    EXP_DOWN = 54;
    /// Gate of the shared expert: `[n_embd]`.
    SH_ROUTER = 55;
    /// Rotary divisors beyond the original context, one per pair, f32.
    ROPE_FACTORS_LONG = 59;
    /// Rotary divisors within the original context, one per pair, f32.
    ROPE_FACTORS_SHORT = 60;
    /// Rotary divisors, one per pair, f32.
    ROPE_FREQS = 61;
    /// Projection of a next-token-prediction block; version 28 only.
    NEXTN_EH_PROJ = 124;
}

impl Role {
    /// A code of the format's tables; `None` for any other.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        find(code).map(|_| Self(code))
    }

    /// The role called `name` in the format's tables.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        ROLES
            .iter()
            .find(|(_, known, _)| *known == name)
            .map(|(code, _, _)| Self(*code))
    }

    /// The code.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// The code's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// A per-block vector that is read once at load: it lives in the dense region.
    #[must_use]
    pub fn is_expanded(self) -> bool {
        self.row().2 & 1 != 0
    }

    /// A vision role: its block index counts in the vision page array.
    #[must_use]
    pub fn is_vision(self) -> bool {
        self.row().2 & 2 != 0
    }

    /// A bank of all experts of a block; with three or more dims it is split into expert pages.
    #[must_use]
    pub fn is_expert_bank(self) -> bool {
        self.row().2 & 4 != 0
    }

    /// A role that version 27 does not have.
    #[must_use]
    pub const fn is_since_28(self) -> bool {
        matches!(self.0, 124..=129)
    }

    fn row(self) -> &'static (u16, &'static str, u8) {
        find(self.0).expect("only codes of the table are constructed")
    }
}

fn find(code: u16) -> Option<&'static (u16, &'static str, u8)> {
    let at = ROLES
        .binary_search_by_key(&code, |(code, _, _)| *code)
        .ok()?;
    Some(&ROLES[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_without_repeats() {
        assert!(ARCHITECTURES.windows(2).all(|w| w[0].0 < w[1].0));
        assert!(ROLES.windows(2).all(|w| w[0].0 < w[1].0));
    }

    #[test]
    fn codes_without_a_name_are_no_roles() {
        for code in [0, 31, 43, 96, 103, 130, 65495] {
            assert_eq!(Role::from_code(code), None, "{code}");
        }
        assert!(Role::EXP_GATE_BANK.is_expert_bank());
        assert!(Role::ATTN_NORM.is_expanded() && !Role::ROUTER.is_expanded());
    }
}
