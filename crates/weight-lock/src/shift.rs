//! Codes shifted by offsets, modulo the span. Written as plain loops without branches, which the
//! compiler vectorises for the instruction set of the function they are inlined into.

use crate::element::{Domain, Element};

/// Locks (`LOCK`) or unlocks the units of `bytes` by `offsets`, one per value. Every value must be
/// inside the domain ([`first_outside`]).
#[inline(always)]
pub(crate) fn shift<const LOCK: bool, O: Copy + Into<u64>>(
    domain: Domain,
    bytes: &mut [u8],
    offsets: &[O],
) {
    let (size, span) = (domain.size(), domain.span());
    match domain.element() {
        Element::Bf16 | Element::F16 => float16::shift::<LOCK, O>(bytes, offsets, size, span),
        Element::F32 => float32::shift::<LOCK, O>(bytes, offsets, size, span),
        Element::F8E4m3 | Element::F8E5m2 => float8::shift::<LOCK, O>(bytes, offsets, size, span),
        Element::E2m1x2 => packed::<LOCK, O>(bytes, offsets, size, span),
        Element::E8m0 => byte::table::<LOCK, O>(bytes, offsets, span),
        Element::I16 => half::table::<LOCK, O>(bytes, offsets, span),
        Element::I32 => word::table::<LOCK, O>(bytes, offsets, span),
        Element::I64 => long::table::<LOCK, O>(bytes, offsets, span),
    }
}

/// The largest magnitude code of `bytes`; for tables the largest value read as unsigned, so that
/// a negative one is large. 0 for none.
#[inline(always)]
pub(crate) fn largest(element: Element, bytes: &[u8]) -> u64 {
    match element {
        Element::Bf16 | Element::F16 => half::largest(bytes, 0x7FFF),
        Element::F32 => word::largest(bytes, 0x7FFF_FFFF),
        Element::F8E4m3 | Element::F8E5m2 => byte::largest(bytes, 0x7F),
        Element::E2m1x2 => {
            let high = bytes.iter().fold(0, |most, code| most.max(code >> 4 & 7));
            byte::largest(bytes, 7).max(u64::from(high))
        }
        Element::E8m0 => byte::largest(bytes, 0xFF),
        Element::I16 => half::largest(bytes, 0xFFFF),
        Element::I32 => word::largest(bytes, 0xFFFF_FFFF),
        Element::I64 => long::largest(bytes, u64::MAX),
    }
}

/// Index, within `bytes`, of the first value whose magnitude is `bound` or more.
pub(crate) fn first_outside(element: Element, bytes: &[u8], bound: u64) -> Option<u64> {
    let units = bytes.chunks_exact(element.width());
    let unit = units
        .enumerate()
        .find(|(_, unit)| largest(element, unit) >= bound);
    let (at, unit) = unit?;
    let second_of_pair = element == Element::E2m1x2 && u64::from(unit[0] & 7) < bound;
    Some(at as u64 * element.values_per_unit() + u64::from(second_of_pair))
}

macro_rules! codes_of_width {
    ($name:ident, $code:ty) => {
        mod $name {
            const WIDTH: usize = size_of::<$code>();

            #[inline(always)]
            pub(super) fn largest(bytes: &[u8], mask: $code) -> u64 {
                let codes = bytes.as_chunks::<WIDTH>().0.iter();
                let codes = codes.map(|code| <$code>::from_le_bytes(*code) & mask);
                codes.fold(0, <$code>::max).into()
            }

            #[inline(always)]
            pub(super) fn table<const LOCK: bool, O: Copy + Into<u64>>(
                bytes: &mut [u8],
                offsets: &[O],
                span: u64,
            ) {
                let span = span as $code;
                for (bytes, offset) in bytes.as_chunks_mut::<WIDTH>().0.iter_mut().zip(offsets) {
                    let index = <$code>::from_le_bytes(*bytes);
                    *bytes = turn::<LOCK>(index, (*offset).into() as $code, span).to_le_bytes();
                }
            }

            /// `index` plus, or minus, `offset`, modulo `span`; both are below `span`.
            #[inline(always)]
            pub(super) fn turn<const LOCK: bool>(
                index: $code,
                offset: $code,
                span: $code,
            ) -> $code {
                if LOCK {
                    let wraps = <$code>::from(index >= span - offset);
                    let sum = index.wrapping_add(offset);
                    sum.wrapping_sub(span & wraps.wrapping_neg())
                } else {
                    let wraps = <$code>::from(index < offset);
                    let difference = index.wrapping_sub(offset);
                    difference.wrapping_add(span & wraps.wrapping_neg())
                }
            }
        }
    };
}

codes_of_width!(byte, u8);
codes_of_width!(half, u16);
codes_of_width!(word, u32);
codes_of_width!(long, u64);

macro_rules! floats_of_width {
    ($name:ident, $code:ty, $turn:path) => {
        mod $name {
            use $turn as turn;

            const WIDTH: usize = size_of::<$code>();
            const SIGN: u32 = <$code>::BITS - 1;

            #[inline(always)]
            pub(super) fn shift<const LOCK: bool, O: Copy + Into<u64>>(
                bytes: &mut [u8],
                offsets: &[O],
                size: u64,
                span: u64,
            ) {
                let (size, span) = (size as $code, span as $code);
                for (bytes, offset) in bytes.as_chunks_mut::<WIDTH>().0.iter_mut().zip(offsets) {
                    let code = <$code>::from_le_bytes(*bytes);
                    let magnitude = code & (<$code>::MAX >> 1);
                    let index = magnitude + (size & (code >> SIGN).wrapping_neg());
                    let turned = turn::<LOCK>(index, (*offset).into() as $code, span);
                    let negative = <$code>::from(turned >= size);
                    let magnitude = turned - (size & negative.wrapping_neg());
                    *bytes = (magnitude | (negative << SIGN)).to_le_bytes();
                }
            }
        }
    };
}

floats_of_width!(float8, u8, super::byte::turn);
floats_of_width!(float16, u16, super::half::turn);
floats_of_width!(float32, u32, super::word::turn);

/// Two 4-bit codes a byte, the low nibble first.
#[inline(always)]
fn packed<const LOCK: bool, O: Copy + Into<u64>>(
    bytes: &mut [u8],
    offsets: &[O],
    size: u64,
    span: u64,
) {
    let (size, span) = (size as u8, span as u8);
    for (code, [low, high]) in bytes.iter_mut().zip(offsets.as_chunks::<2>().0) {
        let low = nibble::<LOCK>(*code & 15, (*low).into() as u8, size, span);
        let high = nibble::<LOCK>(*code >> 4, (*high).into() as u8, size, span);
        *code = low | (high << 4);
    }
}

#[inline(always)]
fn nibble<const LOCK: bool>(code: u8, offset: u8, size: u8, span: u8) -> u8 {
    let index = (code & 7) + size * (code >> 3);
    let (turned, wraps) = if LOCK {
        let sum = index + offset;
        (sum, sum >= span)
    } else {
        let sum = index + span - offset;
        (sum, sum >= span)
    };
    let turned = turned - span * u8::from(wraps);
    let negative = u8::from(turned >= size);
    (turned - size * negative) | (negative << 3)
}
