use std::arch::asm;
use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_blend_epi16, _mm256_blend_epi32, _mm256_mul_epu32,
    _mm256_permute2x128_si256, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_srli_epi64,
    _mm256_store_si256, _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32,
    _mm256_unpacklo_epi64,
};

use super::{Batch, NarrowBatch};

/// Two quarter rounds side by side, on words named by their registers; their third words are in
/// registers 8 and 9.
macro_rules! quarter_rounds {
    ($a0:literal, $b0:literal, $d0:literal; $a1:literal, $b1:literal, $d1:literal) => {
        concat!(
            half!($a0, $b0, $d0; $a1, $b1, $d1; "[{turns}]", "12", "20"),
            half!($a0, $b0, $d0; $a1, $b1, $d1; "[{turns} + 32]", "7", "25"),
        )
    };
}

macro_rules! half {
    ($a0:literal, $b0:literal, $d0:literal; $a1:literal, $b1:literal, $d1:literal;
        $turn:literal, $left:literal, $right:literal) => {
        concat!(
            "vpaddd ",
            $a0,
            ", ",
            $a0,
            ", ",
            $b0,
            "\n",
            "vpaddd ",
            $a1,
            ", ",
            $a1,
            ", ",
            $b1,
            "\n",
            "vpxor ",
            $d0,
            ", ",
            $d0,
            ", ",
            $a0,
            "\n",
            "vpxor ",
            $d1,
            ", ",
            $d1,
            ", ",
            $a1,
            "\n",
            "vpshufb ",
            $d0,
            ", ",
            $d0,
            ", ",
            $turn,
            "\n",
            "vpshufb ",
            $d1,
            ", ",
            $d1,
            ", ",
            $turn,
            "\n",
            "vpaddd ymm8, ymm8, ",
            $d0,
            "\n",
            "vpaddd ymm9, ymm9, ",
            $d1,
            "\n",
            "vpxor ",
            $b0,
            ", ",
            $b0,
            ", ymm8\n",
            "vpxor ",
            $b1,
            ", ",
            $b1,
            ", ymm9\n",
            "vpslld ymm10, ",
            $b0,
            ", ",
            $left,
            "\n",
            "vpsrld ",
            $b0,
            ", ",
            $b0,
            ", ",
            $right,
            "\n",
            "vpslld ymm11, ",
            $b1,
            ", ",
            $left,
            "\n",
            "vpsrld ",
            $b1,
            ", ",
            $b1,
            ", ",
            $right,
            "\n",
            "vpor ",
            $b0,
            ", ",
            $b0,
            ", ymm10\n",
            "vpor ",
            $b1,
            ", ",
            $b1,
            ", ymm11\n",
        )
    };
}

/// Fills `out` with batch number `batch` of the key stream: twice 8 blocks, one per lane. With
/// `SCALED` every word `w` becomes `(w * span) >> 32` before the lanes are turned into natural
/// order.
#[target_feature(enable = "avx2")]
pub(crate) fn fill<const SCALED: bool>(state: &[u32; 16], batch: u32, span: u32, out: &mut Batch) {
    let span = _mm256_set1_epi32(span as i32);
    for half in 0..2 {
        let blocks = Blocks::new(state, batch, half);
        let word = |at: usize| {
            let word = blocks.word(at);
            if SCALED { scale(word, span) } else { word }
        };
        for part in 0..2 {
            let at = |word: usize| part * 8 + word;
            let words = transpose([
                word(at(0)),
                word(at(1)),
                word(at(2)),
                word(at(3)),
                word(at(4)),
                word(at(5)),
                word(at(6)),
                word(at(7)),
            ]);
            for (block, words) in words.into_iter().enumerate() {
                let at = half as usize * 128 + block * 16 + part * 8;
                let place = &mut out.0[at..at + 8];
                // SAFETY: `place` is 8 words, 32 bytes; the batch is aligned to 64 bytes and `at`
                // is a multiple of 8 words.
                unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), words) };
            }
        }
    }
}

/// Fills `out` with the offsets `(w * span) >> 32` of batch number `batch`, for a span below 2^16:
/// pairs of offsets share a lane, which halves the work of turning the lanes.
#[target_feature(enable = "avx2")]
pub(crate) fn fill_narrow(state: &[u32; 16], batch: u32, span: u32, out: &mut NarrowBatch) {
    let (low, high) = (
        _mm256_set1_epi32(span as i32),
        _mm256_set1_epi32((span << 16) as i32),
    );
    for half in 0..2 {
        let blocks = Blocks::new(state, batch, half);
        let pair = |at: usize| scale_pair(blocks.word(2 * at), blocks.word(2 * at + 1), low, high);
        let offsets = transpose([
            pair(0),
            pair(1),
            pair(2),
            pair(3),
            pair(4),
            pair(5),
            pair(6),
            pair(7),
        ]);
        for (block, offsets) in offsets.into_iter().enumerate() {
            let at = half as usize * 128 + block * 16;
            let place = &mut out.0[at..at + 16];
            // SAFETY: `place` is 16 offsets, 32 bytes; the batch is aligned to 64 bytes and `at`
            // is a multiple of 16 offsets.
            unsafe { _mm256_store_si256(place.as_mut_ptr().cast(), offsets) };
        }
    }
}

/// 8 blocks of the key stream, the first or second half of a batch: word by word, one block per
/// lane.
struct Blocks<'a> {
    state: &'a [u32; 16],
    counter: __m256i,
    /// After the rounds; the start is not added yet.
    mixed: [__m256i; 16],
}

impl<'a> Blocks<'a> {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(state: &'a [u32; 16], batch: u32, half: u32) -> Self {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let first = batch.wrapping_mul(16).wrapping_add(half * 8);
        let counter = _mm256_add_epi32(_mm256_set1_epi32(first as i32), lanes);
        let mut blocks = Self {
            state,
            counter,
            mixed: [counter; 16],
        };
        for position in 0..16 {
            blocks.mixed[position] = blocks.start(position);
        }
        rounds(&mut blocks.mixed);
        blocks
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn start(&self, position: usize) -> __m256i {
        if position == 12 {
            self.counter
        } else {
            _mm256_set1_epi32(self.state[position] as i32)
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn word(&self, position: usize) -> __m256i {
        _mm256_add_epi32(self.mixed[position], self.start(position))
    }
}

/// The 20 rounds, in place.
///
/// In assembly, as the compiler makes of each byte shuffle two or more, and shuffles are what the
/// rounds wait for. Words 0 to 7 and 12 to 15 stay in registers of their numbers; of 8 to 11, two
/// are in registers 8 and 9 and two in memory, in turn; 10 and 11 are spare.
#[inline]
#[target_feature(enable = "avx2")]
fn rounds(x: &mut [__m256i; 16]) {
    // SAFETY: the function has AVX2. The loads and stores are of the 16 vectors of `x` and the 2 of
    // `TURNS`, both aligned to 32 bytes.
    unsafe {
        asm!(
            "vmovdqa ymm0, [{x}]",
            "vmovdqa ymm1, [{x} + 32]",
            "vmovdqa ymm2, [{x} + 64]",
            "vmovdqa ymm3, [{x} + 96]",
            "vmovdqa ymm4, [{x} + 128]",
            "vmovdqa ymm5, [{x} + 160]",
            "vmovdqa ymm6, [{x} + 192]",
            "vmovdqa ymm7, [{x} + 224]",
            "vmovdqa ymm8, [{x} + 256]",
            "vmovdqa ymm9, [{x} + 288]",
            "vmovdqa ymm12, [{x} + 384]",
            "vmovdqa ymm13, [{x} + 416]",
            "vmovdqa ymm14, [{x} + 448]",
            "vmovdqa ymm15, [{x} + 480]",
            "2:",
            quarter_rounds!("ymm0", "ymm4", "ymm12"; "ymm1", "ymm5", "ymm13"),
            "vmovdqa [{x} + 256], ymm8",
            "vmovdqa [{x} + 288], ymm9",
            "vmovdqa ymm8, [{x} + 320]",
            "vmovdqa ymm9, [{x} + 352]",
            quarter_rounds!("ymm2", "ymm6", "ymm14"; "ymm3", "ymm7", "ymm15"),
            quarter_rounds!("ymm0", "ymm5", "ymm15"; "ymm1", "ymm6", "ymm12"),
            "vmovdqa [{x} + 320], ymm8",
            "vmovdqa [{x} + 352], ymm9",
            "vmovdqa ymm8, [{x} + 256]",
            "vmovdqa ymm9, [{x} + 288]",
            quarter_rounds!("ymm2", "ymm7", "ymm13"; "ymm3", "ymm4", "ymm14"),
            "dec {left:e}",
            "jnz 2b",
            "vmovdqa [{x}], ymm0",
            "vmovdqa [{x} + 32], ymm1",
            "vmovdqa [{x} + 64], ymm2",
            "vmovdqa [{x} + 96], ymm3",
            "vmovdqa [{x} + 128], ymm4",
            "vmovdqa [{x} + 160], ymm5",
            "vmovdqa [{x} + 192], ymm6",
            "vmovdqa [{x} + 224], ymm7",
            "vmovdqa [{x} + 256], ymm8",
            "vmovdqa [{x} + 288], ymm9",
            "vmovdqa [{x} + 384], ymm12",
            "vmovdqa [{x} + 416], ymm13",
            "vmovdqa [{x} + 448], ymm14",
            "vmovdqa [{x} + 480], ymm15",
            x = in(reg) x.as_mut_ptr(),
            turns = in(reg) &raw const TURNS,
            left = inout(reg) 10 => _,
            out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
            out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
            out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
            out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
            options(nostack),
        );
    }
}

/// Byte orders that rotate each lane left by 16, then by 8.
#[repr(align(32))]
struct Turns(#[expect(dead_code, reason = "read by the assembly")] [[u8; 32]; 2]);

static TURNS: Turns = Turns([
    [
        2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9,
        14, 15, 12, 13,
    ],
    [
        3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14, 3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10,
        15, 12, 13, 14,
    ],
]);

/// `(w * span) >> 32` in each lane.
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn scale(word: __m256i, span: __m256i) -> __m256i {
    let even = _mm256_mul_epu32(word, span);
    let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(word), span);
    _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd)
}

/// `(a * span) >> 32` and, above it, `(b * span) >> 32` in each lane, for a span below 2^16: `low` is
/// the span, `high` the span times 2^16, which puts the second product 16 bits up.
#[inline]
#[target_feature(enable = "avx2")]
fn scale_pair(a: __m256i, b: __m256i, low: __m256i, high: __m256i) -> __m256i {
    let even =
        _mm256_blend_epi16::<0b1010_1010>(_mm256_mul_epu32(a, low), _mm256_mul_epu32(b, high));
    let odd = _mm256_blend_epi16::<0b1010_1010>(
        _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), low),
        _mm256_mul_epu32(_mm256_srli_epi64::<32>(b), high),
    );
    _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<32>(even), odd)
}

/// Turns 8 vectors of one word of 8 blocks into 8 blocks of 8 words.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose(x: [__m256i; 8]) -> [__m256i; 8] {
    let mut rows = [x[0]; 8];
    for quad in 0..2 {
        let [a, b, c, d] = [
            x[quad * 4],
            x[quad * 4 + 1],
            x[quad * 4 + 2],
            x[quad * 4 + 3],
        ];
        let low = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let high = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        // rows[quad * 4 + r], 128-bit lane l: words quad*4 .. quad*4+4 of block 4l + r.
        rows[quad * 4] = _mm256_unpacklo_epi64(low.0, low.1);
        rows[quad * 4 + 1] = _mm256_unpackhi_epi64(low.0, low.1);
        rows[quad * 4 + 2] = _mm256_unpacklo_epi64(high.0, high.1);
        rows[quad * 4 + 3] = _mm256_unpackhi_epi64(high.0, high.1);
    }
    let mut blocks = [x[0]; 8];
    for r in 0..4 {
        blocks[r] = _mm256_permute2x128_si256::<0x20>(rows[r], rows[4 + r]);
        blocks[4 + r] = _mm256_permute2x128_si256::<0x31>(rows[r], rows[4 + r]);
    }
    blocks
}
