//! Sixteen f32 lanes at a time: AVX-512, AVX2 with FMA, or plain Rust.
//!
//! A value of a level type proves that the processor has the level's features: [`Avx512::detect`]
//! and [`Avx2::detect`] are the only ways to make one. Kernels are written once over [`Simd`] and
//! compiled once per level.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Lanes of every vector.
pub(crate) const LANES: usize = 16;

/// Operations on sixteen lanes. Every method is `inline(always)`, so that it is compiled with the
/// features of the kernel it is used in.
pub(crate) trait Simd: Copy + Send + Sync {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen u32.
    type I: Copy;

    fn zero(self) -> Self::F;
    fn splat(self, value: f32) -> Self::F;
    fn load(self, values: &[f32; LANES]) -> Self::F;
    fn to_array(self, values: Self::F) -> [f32; LANES];
    /// `a * b + c`.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn add(self, a: Self::F, b: Self::F) -> Self::F;

    /// Sixteen little-endian f32.
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F;
    /// Sixteen little-endian f16.
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F;
    /// Sixteen little-endian bfloat16.
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F;

    /// Sixteen little-endian u32.
    fn load_words(self, bytes: &[u8; 64]) -> Self::I;
    /// Byte `B` of every word, as a signed number.
    fn signed_byte<const B: u32>(self, words: Self::I) -> Self::F;
    /// The bits of every word from `shift`, under `mask`.
    fn field(self, words: Self::I, shift: u32, mask: u32) -> Self::I;
    /// `low | high << 4`.
    fn join_nibble(self, low: Self::I, high: Self::I) -> Self::I;
    /// Every word, below 2^24, as a number.
    fn number(self, words: Self::I) -> Self::F;

    /// The sum of the lanes: halves are added until one is left, the same at every level.
    #[inline(always)]
    fn sum(self, values: Self::F) -> f32 {
        let mut lanes = self.to_array(values);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// Plain Rust, for every processor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [u32; LANES];

    #[inline(always)]
    fn zero(self) -> Self::F {
        [0.0; LANES]
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        *values
    }
    #[inline(always)]
    fn to_array(self, values: Self::F) -> [f32; LANES] {
        values
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        std::array::from_fn(|i| f32::from_bits(word(bytes, i)))
    }
    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F {
        std::array::from_fn(|i| f16_to_f32(half_word(bytes, i)))
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F {
        std::array::from_fn(|i| f32::from_bits(u32::from(half_word(bytes, i)) << 16))
    }
    #[inline(always)]
    fn load_words(self, bytes: &[u8; 64]) -> Self::I {
        std::array::from_fn(|i| word(bytes, i))
    }
    #[inline(always)]
    fn signed_byte<const B: u32>(self, words: Self::I) -> Self::F {
        words.map(|w| ((w >> (8 * B)) as u8 as i8).into())
    }
    #[inline(always)]
    fn field(self, words: Self::I, shift: u32, mask: u32) -> Self::I {
        words.map(|w| (w >> shift) & mask)
    }
    #[inline(always)]
    fn join_nibble(self, low: Self::I, high: Self::I) -> Self::I {
        std::array::from_fn(|i| low[i] | high[i] << 4)
    }
    #[inline(always)]
    fn number(self, words: Self::I) -> Self::F {
        words.map(|w| w as f32)
    }
}

#[inline(always)]
fn word(bytes: &[u8; 64], i: usize) -> u32 {
    u32::from_le_bytes([
        bytes[4 * i],
        bytes[4 * i + 1],
        bytes[4 * i + 2],
        bytes[4 * i + 3],
    ])
}

#[inline(always)]
fn half_word(bytes: &[u8; 32], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// The value of f16 bits. A plain multiplication makes subnormals exact.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let sign = (bits & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    let value = if magnitude >= 0x7c00 {
        f32::from_bits(0x7f80_0000 | (magnitude & 0x3ff) << 13)
    } else {
        f32::from_bits(magnitude << 13) * F16_RESCALE
    };
    f32::from_bits(value.to_bits() | sign)
}

/// 2^112: the difference of the exponents' biases.
const F16_RESCALE: f32 = f32::from_bits((112 + 127) << 23);

/// Proof that the processor has AVX-512F.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    pub(crate) fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx512f").then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;

    #[inline(always)]
    fn zero(self) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves AVX-512F; the 64 bytes read are the array's.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }
    #[inline(always)]
    fn to_array(self, values: Self::F) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: `self` proves AVX-512F; the 64 bytes written are the array's.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), values) };
        out
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        // SAFETY: `self` proves AVX-512F; the 64 bytes read are the array's, at any alignment.
        unsafe { _mm512_loadu_ps(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F {
        // SAFETY: `self` proves AVX-512F (and with it AVX); the 32 bytes read are the array's.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F {
        // SAFETY: `self` proves AVX-512F (and with it AVX); the 32 bytes read are the array's.
        unsafe {
            let halves = _mm256_loadu_si256(bytes.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }
    #[inline(always)]
    fn load_words(self, bytes: &[u8; 64]) -> Self::I {
        // SAFETY: `self` proves AVX-512F; the 64 bytes read are the array's, at any alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }
    #[inline(always)]
    fn signed_byte<const B: u32>(self, words: Self::I) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe {
            let up = _mm512_sllv_epi32(words, _mm512_set1_epi32(24 - 8 * B as i32));
            _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(up))
        }
    }
    #[inline(always)]
    fn field(self, words: Self::I, shift: u32, mask: u32) -> Self::I {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe {
            let down = _mm512_srlv_epi32(words, _mm512_set1_epi32(shift as i32));
            _mm512_and_si512(down, _mm512_set1_epi32(mask as i32))
        }
    }
    #[inline(always)]
    fn join_nibble(self, low: Self::I, high: Self::I) -> Self::I {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_or_si512(low, _mm512_slli_epi32::<4>(high)) }
    }
    #[inline(always)]
    fn number(self, words: Self::I) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX-512F.
        unsafe { _mm512_cvtepi32_ps(words) }
    }
}

/// Proof that the processor has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];

    #[inline(always)]
    fn zero(self) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { [_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    fn splat(self, value: f32) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    fn load(self, values: &[f32; LANES]) -> Self::F {
        // SAFETY: `self` proves AVX2; both reads of 32 bytes lie in the array.
        unsafe {
            [
                _mm256_loadu_ps(values.as_ptr()),
                _mm256_loadu_ps(values.as_ptr().add(8)),
            ]
        }
    }
    #[inline(always)]
    fn to_array(self, values: Self::F) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: `self` proves AVX2; both writes of 32 bytes lie in the array.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), values[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), values[1]);
        }
        out
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves that the processor has FMA.
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    fn load_f32(self, bytes: &[u8; 64]) -> Self::F {
        // SAFETY: `self` proves AVX2; both reads of 32 bytes lie in the array.
        unsafe {
            [
                _mm256_loadu_ps(bytes.as_ptr().cast()),
                _mm256_loadu_ps(bytes.as_ptr().add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    fn load_f16(self, bytes: &[u8; 32]) -> Self::F {
        // SAFETY: `self` proves F16C; both reads of 16 bytes lie in the array.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    fn load_bf16(self, bytes: &[u8; 32]) -> Self::F {
        // SAFETY: `self` proves AVX2; both reads of 16 bytes lie in the array.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().add(16).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }
    #[inline(always)]
    fn load_words(self, bytes: &[u8; 64]) -> Self::I {
        // SAFETY: `self` proves AVX2; both reads of 32 bytes lie in the array.
        unsafe {
            [
                _mm256_loadu_si256(bytes.as_ptr().cast()),
                _mm256_loadu_si256(bytes.as_ptr().add(32).cast()),
            ]
        }
    }
    #[inline(always)]
    fn signed_byte<const B: u32>(self, words: Self::I) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe {
            let shift = _mm256_set1_epi32(24 - 8 * B as i32);
            let up = [
                _mm256_sllv_epi32(words[0], shift),
                _mm256_sllv_epi32(words[1], shift),
            ];
            [
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(up[0])),
                _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(up[1])),
            ]
        }
    }
    #[inline(always)]
    fn field(self, words: Self::I, shift: u32, mask: u32) -> Self::I {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe {
            let shift = _mm256_set1_epi32(shift as i32);
            let mask = _mm256_set1_epi32(mask as i32);
            [
                _mm256_and_si256(_mm256_srlv_epi32(words[0], shift), mask),
                _mm256_and_si256(_mm256_srlv_epi32(words[1], shift), mask),
            ]
        }
    }
    #[inline(always)]
    fn join_nibble(self, low: Self::I, high: Self::I) -> Self::I {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe {
            [
                _mm256_or_si256(low[0], _mm256_slli_epi32::<4>(high[0])),
                _mm256_or_si256(low[1], _mm256_slli_epi32::<4>(high[1])),
            ]
        }
    }
    #[inline(always)]
    fn number(self, words: Self::I) -> Self::F {
        // SAFETY: `self` proves that the processor has AVX2.
        unsafe { [_mm256_cvtepi32_ps(words[0]), _mm256_cvtepi32_ps(words[1])] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_has_its_value() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let got = f16_to_f32(bits);
            assert!(
                got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                "{bits:#06x}"
            );
        }
    }

    fn check<S: Simd>(s: S) {
        let bytes: [u8; 64] = std::array::from_fn(|i| (i as u8).wrapping_mul(37) ^ 0x5a);
        let half: [u8; 32] = std::array::from_fn(|i| bytes[i] & 0x3f);
        let p = Portable;
        let (words, expected) = (s.load_words(&bytes), p.load_words(&bytes));
        assert_eq!(
            s.to_array(s.signed_byte::<0>(words)),
            p.signed_byte::<0>(expected)
        );
        assert_eq!(
            s.to_array(s.signed_byte::<3>(words)),
            p.signed_byte::<3>(expected)
        );
        let joined = s.join_nibble(s.field(words, 8, 15), s.field(words, 12, 3));
        let expected = p.join_nibble(p.field(expected, 8, 15), p.field(expected, 12, 3));
        assert_eq!(s.to_array(s.number(joined)), p.number(expected));
        assert_eq!(s.to_array(s.load_f16(&half)), p.load_f16(&half));
        assert_eq!(s.to_array(s.load_bf16(&half)), p.load_bf16(&half));
        let (a, same) = (s.load_bf16(&half), p.load_bf16(&half));
        assert_eq!(
            s.to_array(s.fma(a, s.splat(0.5), s.zero())),
            same.map(|v| v * 0.5)
        );
        assert_eq!(s.sum(s.add(a, s.zero())), p.sum(same));
    }

    #[test]
    fn levels_agree_lane_by_lane() {
        check(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            Avx2::detect().into_iter().for_each(check);
            Avx512::detect().into_iter().for_each(check);
        }
    }
}
