//! Models of drawn weights in containers of any shape, whose experts are known for each token.

use jlm::{
    Arch, Config, Container, DType, Draft, Flags, Role, Span, TensorEntry, TensorKey, Version,
    WriterFingerprint,
};

/// The sizes of a model; dense when it has no experts.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub blocks: u32,
    /// Size of the hidden state.
    pub embd: u32,
    /// Size of an expert, or of the dense feed-forward part.
    pub ffn: u32,
    pub experts: u32,
    pub used: u32,
    /// At most half of `embd`.
    pub vocab: u32,
}

/// A model in the family of Qwen3, computed in full, but built so that nothing hides the routing: the
/// embedding of token t is 1 at t, the blocks write above the vocabulary's dimensions only, and routers
/// read below. So the router of a block ranks its experts for a token as its column says, in
/// every context.
pub struct Drawn {
    pub container: Container,
    pub bytes: Vec<u8>,
    sizes: Sizes,
    /// The experts by block, token and rank, the best one first.
    ranked: Vec<Vec<Vec<u32>>>,
}

impl Drawn {
    pub fn new(sizes: Sizes) -> Self {
        assert!(
            2 * sizes.vocab <= sizes.embd,
            "no room for what blocks write"
        );
        let container = lay_out(sizes);
        let mut draw = Draw(1);
        let mut ranking = || {
            let mut ranking: Vec<u32> = (0..sizes.experts).collect();
            for at in (1..ranking.len()).rev() {
                ranking.swap(at, (draw.next() % (at as u64 + 1)) as usize);
            }
            ranking
        };
        let mut of_block = || (0..sizes.vocab).map(|_| ranking()).collect();
        let ranked: Vec<Vec<Vec<u32>>> = (0..sizes.blocks).map(|_| of_block()).collect();
        let mut bytes = container.encode_meta(&[], &[]).unwrap();
        bytes.resize(container.header().file_len() as usize, 0);
        for entry in container.tensors() {
            for sheet in 0..entry.sheets() {
                let span = container.sheet(entry, sheet).unwrap().qs;
                let out = &mut bytes[span.offset as usize..][..span.length as usize];
                match entry.key.role {
                    Role::TOKEN_EMBD => embed(sizes, out),
                    Role::ROUTER => route(sizes, &ranked[entry.key.block as usize], out),
                    _ if entry.dtype == DType::F32 => ones(out),
                    role => {
                        draw.fill(entry.k(), out);
                        if writes(role) {
                            let below = sizes.vocab as usize * entry.k() as usize * 2;
                            out[..below].fill(0);
                        }
                    }
                }
            }
        }
        Self {
            container,
            bytes,
            sizes,
            ranked,
        }
    }

    /// The experts that a block uses for a token, ascending.
    pub fn experts(&self, block: u32, token: u32) -> Vec<u32> {
        let ranking = &self.ranked[block as usize][token as usize];
        let mut used = ranking[..self.sizes.used as usize].to_vec();
        used.sort_unstable();
        used
    }

    pub fn slice(&self, span: Span) -> &[u8] {
        &self.bytes[span.offset as usize..][..span.length as usize]
    }
}

fn lay_out(sizes: Sizes) -> Container {
    let Sizes {
        blocks,
        embd,
        ffn,
        experts,
        used,
        vocab,
    } = sizes;
    let mut config = Config::new(if experts > 0 {
        Arch::QWEN3_MOE
    } else {
        Arch::QWEN3
    });
    config.n_layer = blocks;
    config.n_embd = embd;
    config.n_head = embd / HEAD;
    config.n_kv_head = config.n_head / 2;
    config.head_dim = HEAD;
    config.n_rot = HEAD;
    config.n_ffn = ffn;
    config.n_vocab = vocab;
    config.n_ctx = 4096;
    config.n_expert = experts;
    config.n_expert_used = used;
    config.n_ffn_exp = ffn;
    config.rms_eps = 1e-6;
    config.rope_base = 1e6;
    let flags = [Flags::TIED, Flags::QK_NORM, Flags::ROPE_NEOX];
    config.flags = flags.into_iter().fold(Flags::default(), Flags::with);
    let (queries, keys) = (config.n_head * HEAD, config.n_kv_head * HEAD);

    let mut tensors = vec![
        entry(Role::TOKEN_EMBD, -1, DType::Bf16, &[embd, vocab]),
        entry(Role::OUTPUT_NORM, -1, DType::F32, &[embd]),
    ];
    for block in 0..blocks as i32 {
        let mut push = |role, dims: &[u32]| {
            let dtype = match dims.len() {
                1 => DType::F32,
                _ => DType::Bf16,
            };
            tensors.push(entry(role, block, dtype, dims));
        };
        push(Role::ATTN_NORM, &[embd]);
        push(Role::ATTN_Q, &[embd, queries]);
        push(Role::ATTN_K, &[embd, keys]);
        push(Role::ATTN_V, &[embd, keys]);
        push(Role::ATTN_OUT, &[queries, embd]);
        push(Role::ATTN_Q_NORM, &[HEAD]);
        push(Role::ATTN_K_NORM, &[HEAD]);
        push(Role::FFN_NORM, &[embd]);
        if experts > 0 {
            push(Role::ROUTER, &[embd, experts]);
            push(Role::EXP_GATE_BANK, &[embd, ffn, experts]);
            push(Role::EXP_UP_BANK, &[embd, ffn, experts]);
            push(Role::EXP_DOWN_BANK, &[ffn, embd, experts]);
        } else {
            push(Role::FFN_GATE, &[embd, ffn]);
            push(Role::FFN_UP, &[embd, ffn]);
            push(Role::FFN_DOWN, &[ffn, embd]);
        }
    }
    let draft = Draft {
        version: Version::V27,
        config,
        vision_len: 0,
        vocab_len: 0,
        tensors,
        fingerprint: WriterFingerprint::default(),
    };
    draft.lay_out().unwrap()
}

fn entry(role: Role, block: i32, dtype: DType, dims: &[u32]) -> TensorEntry {
    TensorEntry {
        key: TensorKey {
            role,
            block,
            index: -1,
        },
        dtype,
        dims: dims.iter().map(|dim| u64::from(*dim)).collect(),
        qs_off: 0,
        d_off: 0,
        sc_off: 0,
        name: format!("{}.{block}", role.name()),
    }
}

/// Matrices whose products are added to the hidden state.
fn writes(role: Role) -> bool {
    [Role::ATTN_OUT, Role::FFN_DOWN, Role::EXP_DOWN_BANK].contains(&role)
}

fn embed(sizes: Sizes, out: &mut [u8]) {
    for token in 0..sizes.vocab as usize {
        let at = 2 * (token * sizes.embd as usize + token);
        out[at..at + 2].copy_from_slice(&bf16(1.0));
    }
}

/// Ranks are small whole numbers: exact in bfloat16, and no two experts score alike.
fn route(sizes: Sizes, rankings: &[Vec<u32>], out: &mut [u8]) {
    for (token, ranking) in rankings.iter().enumerate() {
        for (rank, expert) in ranking.iter().enumerate() {
            let at = 2 * (*expert as usize * sizes.embd as usize + token);
            let score = (sizes.experts as usize - rank) as f32 / 16.0;
            out[at..at + 2].copy_from_slice(&bf16(score));
        }
    }
}

fn ones(out: &mut [u8]) {
    let (values, _) = out.as_chunks_mut::<4>();
    values.fill(1f32.to_le_bytes());
}

/// Of a number that bfloat16 has.
fn bf16(value: f32) -> [u8; 2] {
    let [0, 0, low, high] = value.to_le_bytes() else {
        panic!("{value} is not a bfloat16");
    };
    [low, high]
}

/// Knuth's multiplier.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1);
        self.0 >> 32
    }

    /// Numbers of either sign near 1 / sqrt(k), in bfloat16.
    fn fill(&mut self, k: u64, out: &mut [u8]) {
        let exponent = (127 - u64::from(k.ilog2()) / 2) << 7;
        let (values, _) = out.as_chunks_mut::<2>();
        for value in values {
            *value = ((self.next() & 0x807f | exponent) as u16).to_le_bytes();
        }
    }
}

/// Size of a head.
const HEAD: u32 = 32;
