//! Tensor names to identities (spec: container, C.1).

use jlm::{Role, TensorKey};

use crate::model::{Class, MixtureNames};

/// What a source tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    /// A tensor of its own.
    Tensor(TensorKey),
    /// One expert's sheet of a bank.
    Sheet {
        /// The bank.
        bank: TensorKey,
        /// Which expert.
        expert: u32,
    },
    /// Not stored: rotary frequencies, which the config gives.
    Ignored,
}

/// What the tensor called `name` is; `None` for a name the class does not have.
pub(crate) fn named(class: &Class, name: &str) -> Option<Named> {
    let whole = |role| Some(Named::Tensor(key(role, -1)));
    match name {
        "model.embed_tokens.weight" => return whole(Role::TOKEN_EMBD),
        "lm_head.weight" => return whole(Role::OUTPUT),
        "model.norm.weight" => return whole(Role::OUTPUT_NORM),
        "model.rotary_emb.inv_freq" => return Some(Named::Ignored),
        _ => {}
    }
    let (block, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let block = i32::try_from(index(block)?).ok()?;
    let of_block = |role| Some(Named::Tensor(key(role, block)));
    match rest {
        "input_layernorm.weight" => return of_block(Role::ATTN_NORM),
        "post_attention_layernorm.weight" => return of_block(Role::FFN_NORM),
        "self_attn.q_proj.weight" => return of_block(Role::ATTN_Q),
        "self_attn.k_proj.weight" => return of_block(Role::ATTN_K),
        "self_attn.v_proj.weight" => return of_block(Role::ATTN_V),
        "self_attn.o_proj.weight" => return of_block(Role::ATTN_OUT),
        "self_attn.q_proj.bias" => return of_block(Role::ATTN_Q_BIAS),
        "self_attn.k_proj.bias" => return of_block(Role::ATTN_K_BIAS),
        "self_attn.v_proj.bias" => return of_block(Role::ATTN_V_BIAS),
        "self_attn.o_proj.bias" => return of_block(Role::ATTN_OUT_BIAS),
        "self_attn.q_norm.weight" if class.qk_norm => return of_block(Role::ATTN_Q_NORM),
        "self_attn.k_norm.weight" if class.qk_norm => return of_block(Role::ATTN_K_NORM),
        "self_attn.rotary_emb.inv_freq" => return Some(Named::Ignored),
        _ => {}
    }
    let (router, experts, projections) = match class.mixture {
        None => {
            return match rest {
                "mlp.gate_proj.weight" => of_block(Role::FFN_GATE),
                "mlp.up_proj.weight" => of_block(Role::FFN_UP),
                "mlp.down_proj.weight" => of_block(Role::FFN_DOWN),
                _ => None,
            };
        }
        Some(MixtureNames::Mlp) => (
            "mlp.gate.weight",
            "mlp.experts.",
            ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        ),
        Some(MixtureNames::BlockSparse) => (
            "block_sparse_moe.gate.weight",
            "block_sparse_moe.experts.",
            ["w1.weight", "w3.weight", "w2.weight"],
        ),
    };
    if rest == router {
        return of_block(Role::ROUTER);
    }
    let (expert, projection) = rest.strip_prefix(experts)?.split_once('.')?;
    let banks = [Role::EXP_GATE_BANK, Role::EXP_UP_BANK, Role::EXP_DOWN_BANK];
    let at = projections.iter().position(|known| *known == projection)?;
    Some(Named::Sheet {
        bank: key(banks[at], block),
        expert: index(expert)?,
    })
}

const fn key(role: Role, block: i32) -> TensorKey {
    TensorKey {
        role,
        block,
        index: -1,
    }
}

/// A decimal number written the one way.
fn index(text: &str) -> Option<u32> {
    let value: u32 = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}
