//! 16 bytes at once: SSE2, which every x86-64 has, and plain arrays on other machines.

#[cfg(not(target_arch = "x86_64"))]
pub(crate) type Native = [u8; 16];
#[cfg(target_arch = "x86_64")]
pub(crate) type Native = std::arch::x86_64::__m128i;

/// 16 bytes in memory order.
pub(crate) trait Vector: Copy + Send + Sync {
    fn load(bytes: &[u8; 16]) -> Self;
    fn store(self) -> [u8; 16];
    /// The first halves of both, and the second halves, with elements of `N` bytes in turn.
    fn interleave<const N: usize>(self, other: Self) -> (Self, Self);
}

/// `out[i]` holds element `i` of each vector; `L` vectors of `L` elements, `N` bytes each.
#[inline(always)]
pub(crate) fn transpose<V: Vector, const N: usize, const L: usize>(mut square: [V; L]) -> [V; L] {
    const {
        assert!(
            N * L == 16,
            "vectors hold as many elements as there are vectors"
        )
    };
    for _ in 0..L.ilog2() {
        let from = square;
        for i in 0..L / 2 {
            (square[2 * i], square[2 * i + 1]) = from[i].interleave::<N>(from[i + L / 2]);
        }
    }
    square
}

/// Starts to fetch a cache line that will be written; any address will do.
#[inline(always)]
pub(crate) fn fetch_to_write<T>(at: *const T) {
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which changes and reads nothing at any address.
    unsafe {
        sse2::_mm_prefetch::<{ sse2::_MM_HINT_ET0 }>(at.cast());
    }
}

impl Vector for [u8; 16] {
    #[inline(always)]
    fn load(bytes: &[u8; 16]) -> Self {
        *bytes
    }

    #[inline(always)]
    fn store(self) -> [u8; 16] {
        self
    }

    #[inline(always)]
    fn interleave<const N: usize>(self, other: Self) -> (Self, Self) {
        let half = |offset: usize| {
            std::array::from_fn(|at| {
                let (element, byte) = (at / N, at % N);
                let from = if element % 2 == 0 { self } else { other };
                from[offset + element / 2 * N + byte]
            })
        };
        (half(0), half(8))
    }
}

#[cfg(target_arch = "x86_64")]
impl Vector for Native {
    #[inline(always)]
    fn load(bytes: &[u8; 16]) -> Self {
        // SAFETY: 16 bytes are readable, at any alignment.
        unsafe { sse2::_mm_loadu_si128(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self) -> [u8; 16] {
        let mut out = [0; 16];
        // SAFETY: 16 bytes are writable, at any alignment.
        unsafe { sse2::_mm_storeu_si128(out.as_mut_ptr().cast(), self) };
        out
    }

    #[inline(always)]
    fn interleave<const N: usize>(self, other: Self) -> (Self, Self) {
        let (a, b) = (self, other);
        // SAFETY: every x86-64 has SSE2.
        unsafe {
            match N {
                1 => (sse2::_mm_unpacklo_epi8(a, b), sse2::_mm_unpackhi_epi8(a, b)),
                2 => (
                    sse2::_mm_unpacklo_epi16(a, b),
                    sse2::_mm_unpackhi_epi16(a, b),
                ),
                4 => (
                    sse2::_mm_unpacklo_epi32(a, b),
                    sse2::_mm_unpackhi_epi32(a, b),
                ),
                _ => (
                    sse2::_mm_unpacklo_epi64(a, b),
                    sse2::_mm_unpackhi_epi64(a, b),
                ),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64 as sse2;

#[cfg(test)]
mod tests {
    use super::*;

    fn check<V: Vector, const N: usize, const L: usize>() {
        let rows: [[u8; 16]; L] =
            std::array::from_fn(|r| std::array::from_fn(|at| (r * 16 + at) as u8));
        let turned = transpose::<V, N, L>(rows.map(|row| V::load(&row))).map(V::store);
        for (r, row) in rows.iter().enumerate() {
            for (c, element) in row.as_chunks::<N>().0.iter().enumerate() {
                assert_eq!(turned[c].as_chunks::<N>().0[r], *element, "{N} at {r}, {c}");
            }
        }
    }

    #[test]
    fn both_kinds_transpose_squares_of_every_width() {
        check::<Native, 1, 16>();
        check::<Native, 2, 8>();
        check::<Native, 4, 4>();
        check::<Native, 8, 2>();
        check::<[u8; 16], 1, 16>();
        check::<[u8; 16], 2, 8>();
        check::<[u8; 16], 4, 4>();
        check::<[u8; 16], 8, 2>();
    }
}
