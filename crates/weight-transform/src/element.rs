//! Element types that a recipe computes with.

use half::{bf16, f16};

/// How one element of a tensor is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// bfloat16.
    Bf16,
    /// IEEE 754 binary16.
    F16,
    /// IEEE 754 binary32.
    F32,
    /// FP8, 4 exponent and 3 mantissa bits, finite.
    F8E4M3,
    /// FP8, 5 exponent and 2 mantissa bits.
    F8E5M2,
    /// A power of two, 8 exponent bits.
    F8E8M0,
    /// 8-bit integers; where an architecture packs them, two FP4 codes a byte, low nibble first.
    I8,
    /// 64-bit integers.
    I64,
    /// Anything else, of which only whole tensors can be copied.
    Other,
}

impl Element {
    /// Bytes of one element; `None` for [`Element::Other`].
    #[must_use]
    pub const fn width(self) -> Option<usize> {
        match self {
            Self::F8E4M3 | Self::F8E5M2 | Self::F8E8M0 | Self::I8 => Some(1),
            Self::Bf16 | Self::F16 => Some(2),
            Self::F32 => Some(4),
            Self::I64 => Some(8),
            Self::Other => None,
        }
    }

    /// Whether values are FP8 numbers that a separate tensor scales.
    #[must_use]
    pub const fn is_fp8(self) -> bool {
        matches!(self, Self::F8E4M3 | Self::F8E5M2)
    }

    /// Whether the top bit of an element is its sign.
    pub(crate) const fn has_sign_bit(self) -> bool {
        matches!(
            self,
            Self::Bf16 | Self::F16 | Self::F32 | Self::F8E4M3 | Self::F8E5M2
        )
    }

    /// Whether the dense transforms read and write it.
    pub(crate) const fn is_dense(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16 | Self::F32)
    }
}

/// Widens one little-endian element. Only for [`Element::is_dense`] types.
#[inline(always)]
pub(crate) fn widen(element: Element, bytes: &[u8]) -> f64 {
    match (element, bytes) {
        (Element::Bf16, &[a, b]) => f64::from(bf16::from_le_bytes([a, b]).to_f32()),
        (Element::F16, &[a, b]) => f64::from(f16::from_le_bytes([a, b]).to_f32()),
        (Element::F32, &[a, b, c, d]) => f64::from(f32::from_le_bytes([a, b, c, d])),
        _ => f64::NAN,
    }
}

/// Rounds to float32 and then to the element, nearest-even each time, and stores it
/// (spec: sealed checkpoint, section 3). Only for [`Element::is_dense`] types.
#[inline(always)]
pub(crate) fn narrow(element: Element, value: f64, out: &mut [u8]) {
    let single = value as f32;
    match element {
        Element::Bf16 => out.copy_from_slice(&round_to_bf16(single).to_le_bytes()),
        Element::F16 => out.copy_from_slice(&f16::from_f32(single).to_le_bytes()),
        Element::F32 => out.copy_from_slice(&single.to_le_bytes()),
        _ => out.fill(0xFF),
    }
}

/// Nearest-even; a NaN keeps its sign and stays one.
#[inline(always)]
fn round_to_bf16(single: f32) -> u16 {
    let bits = single.to_bits();
    if single.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// Multiplies one element's bits by a power of two, rounding as [`narrow`] does.
pub(crate) trait Scalable: Copy {
    /// The product, rounded to nearest even.
    fn times(self, factor: f32) -> Self;
}

/// bfloat16 bits.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Bits(pub u16);
/// binary16 bits.
#[derive(Clone, Copy)]
pub(crate) struct F16Bits(pub u16);

impl Scalable for Bf16Bits {
    fn times(self, factor: f32) -> Self {
        // The product of 8 significant bits and a power of two is exact in float32 down to 2^-149,
        // 16 below the smallest bfloat16, so one rounding follows.
        Self(round_to_bf16(
            f32::from_bits(u32::from(self.0) << 16) * factor,
        ))
    }
}

impl Scalable for F16Bits {
    fn times(self, factor: f32) -> Self {
        Self(f16::from_f32(f16::from_bits(self.0).to_f32() * factor).to_bits())
    }
}

impl Scalable for f32 {
    fn times(self, factor: f32) -> Self {
        self * factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two_round_as_the_double_route_does() {
        for exponent in -2..=2 {
            let factor = f32::from(2_i8).powi(exponent);
            for bits in 0..=u16::MAX {
                let wide = f64::from(bf16::from_bits(bits).to_f32()) * f64::from(factor);
                if wide.is_nan() {
                    continue;
                }
                let mut expected = [0; 2];
                narrow(Element::Bf16, wide, &mut expected);
                assert_eq!(Bf16Bits(bits).times(factor).0.to_le_bytes(), expected);
                let wide = f64::from(f16::from_bits(bits).to_f32()) * f64::from(factor);
                if wide.is_nan() {
                    continue;
                }
                narrow(Element::F16, wide, &mut expected);
                assert_eq!(F16Bits(bits).times(factor).0.to_le_bytes(), expected);
            }
        }
    }
}
