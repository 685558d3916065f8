use std::fmt;

use secret::Secret;
use zeroize::Zeroize;

use crate::aes_ctr::AesCtr;
use crate::chacha::{self, BATCH, Batch, NarrowBatch};
use crate::element::{Domain, Element, Version};
use crate::error::LockError;
use crate::implementation::Implementation;
use crate::scan::{check_whole, value_at};
use crate::shift;

/// Locks and unlocks one tensor in place: its stream key and its domain.
///
/// Work can start at any value and be cut anywhere between values; parts are independent, so they
/// may run on several threads.
pub struct Lock {
    stream: Stream,
    domain: Domain,
    draw: Draw,
    implementation: Implementation,
}

enum Stream {
    ChaCha(Secret<32>),
    Aes(AesCtr),
}

/// One instruction set's ways to fill a batch: from the state, the batch's number and the span.
struct Fill<N, S, W> {
    /// With offsets below 2^16.
    narrow: N,
    /// With offsets.
    scaled: S,
    /// With the stream's words.
    words: W,
}

/// How a value's offset is drawn from its words.
#[derive(Clone, Copy)]
enum Draw {
    /// As [`Draw::Scaled`], for codes of at most 16 bits.
    Narrow,
    /// One word: `(w * span) >> 32`.
    Scaled,
    /// Two words, low first: their low 63 bits modulo the span.
    Reduced(Reduction),
}

/// Division by a span of at most 32 bits, by multiplication.
#[derive(Clone, Copy)]
struct Reduction {
    span: u64,
    /// floor(2^64 / span)
    reciprocal: u64,
}

impl Lock {
    /// The lock of a tensor. `key` is the subkey of label `lock/<version>/<tensor id>`.
    #[must_use]
    pub fn new(version: Version, key: &Secret<32>, domain: Domain) -> Self {
        Self::with(Implementation::best(), version, key, domain)
    }

    /// A lock on one implementation, which must be among [`Implementation::available`]; others
    /// fall back to the best one.
    #[must_use]
    pub fn with(
        implementation: Implementation,
        version: Version,
        key: &Secret<32>,
        domain: Domain,
    ) -> Self {
        let implementation = if Implementation::available().contains(&implementation) {
            implementation
        } else {
            Implementation::best()
        };
        let span = domain.span();
        let reduced = match version {
            Version::V1 => domain.element() == Element::F32,
            Version::V2 => span > 1 << 31,
        };
        Self {
            stream: match version {
                Version::V1 => Stream::Aes(AesCtr::new(implementation, key)),
                Version::V2 => Stream::ChaCha(Secret::fill_with(|bytes| {
                    bytes.copy_from_slice(key.expose())
                })),
            },
            domain,
            draw: if reduced {
                Draw::Reduced(Reduction::new(span))
            } else if domain.element().width() <= 2 {
                Draw::Narrow
            } else {
                Draw::Scaled
            },
            implementation,
        }
    }

    /// The domain, for the record.
    #[must_use]
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// Locks, in place, the part of the tensor that starts at its byte `at`. Every value must be in
    /// the domain. After an error the slice holds neither form.
    pub fn lock(&self, at: u64, bytes: &mut [u8]) -> Result<(), LockError> {
        self.run::<true>(at, bytes)
    }

    /// Unlocks, in place, the part of the tensor that starts at its byte `at`. A value outside the
    /// domain is an error, after which the slice holds neither form.
    pub fn unlock(&self, at: u64, bytes: &mut [u8]) -> Result<(), LockError> {
        self.run::<false>(at, bytes)
    }

    fn run<const LOCK: bool>(&self, at: u64, bytes: &mut [u8]) -> Result<(), LockError> {
        let element = self.domain.element();
        check_whole(element, at, bytes.len())?;
        let values = value_at(element, bytes.len() as u64);
        let end = value_at(element, at).saturating_add(values);
        if end > STREAM_WORDS / self.draw.words() {
            return Err(LockError::StreamEnd);
        }
        #[cfg(target_arch = "x86_64")]
        match self.implementation {
            // SAFETY: `with` keeps only an available implementation, so the features are there.
            Implementation::Avx512 => return unsafe { self.run_avx512::<LOCK>(at, bytes) },
            // SAFETY: as above.
            Implementation::Avx2 => return unsafe { self.run_avx2::<LOCK>(at, bytes) },
            Implementation::Portable => {}
        }
        let fill = Fill {
            narrow: chacha::portable::fill_narrow,
            scaled: chacha::portable::fill::<true>,
            words: chacha::portable::fill::<false>,
        };
        self.run_with::<LOCK>(at, bytes, &fill)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    fn run_avx512<const LOCK: bool>(&self, at: u64, bytes: &mut [u8]) -> Result<(), LockError> {
        let fill = Fill {
            narrow: |state: &_, batch, span, out: &mut _| {
                chacha::avx512::fill_narrow(state, batch, span, out);
            },
            scaled: |state: &_, batch, span, out: &mut _| {
                chacha::avx512::fill::<true>(state, batch, span, out);
            },
            words: |state: &_, batch, span, out: &mut _| {
                chacha::avx512::fill::<false>(state, batch, span, out);
            },
        };
        self.run_with::<LOCK>(at, bytes, &fill)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn run_avx2<const LOCK: bool>(&self, at: u64, bytes: &mut [u8]) -> Result<(), LockError> {
        let fill = Fill {
            narrow: |state: &_, batch, span, out: &mut _| {
                chacha::avx2::fill_narrow(state, batch, span, out);
            },
            scaled: |state: &_, batch, span, out: &mut _| {
                chacha::avx2::fill::<true>(state, batch, span, out);
            },
            words: |state: &_, batch, span, out: &mut _| {
                chacha::avx2::fill::<false>(state, batch, span, out);
            },
        };
        self.run_with::<LOCK>(at, bytes, &fill)
    }

    /// The work itself, inlined into a function that has the instruction set's features.
    #[inline(always)]
    fn run_with<const LOCK: bool>(
        &self,
        at: u64,
        bytes: &mut [u8],
        fill: &Fill<
            impl Fn(&[u32; 16], u32, u32, &mut NarrowBatch),
            impl Fn(&[u32; 16], u32, u32, &mut Batch),
            impl Fn(&[u32; 16], u32, u32, &mut Batch),
        >,
    ) -> Result<(), LockError> {
        let (domain, element) = (self.domain, self.domain.element());
        let per_batch = BATCH as u64 / self.draw.words();
        let mut state = match &self.stream {
            Stream::ChaCha(key) => chacha::initial_state(key.expose()),
            Stream::Aes(_) => [0; 16],
        };
        let mut batch = Batch([0; BATCH]);
        let mut narrow = NarrowBatch([0; BATCH]);
        let mut value = value_at(element, at);
        let mut rest = bytes;
        let mut result = Ok(());
        while !rest.is_empty() {
            let skip = value % per_batch;
            let units = (per_batch - skip) / element.values_per_unit();
            let length = (units as usize * element.width()).min(rest.len());
            let (part, after) = rest.split_at_mut(length);
            rest = after;
            // Checked before anything is changed, so that an error can say which value it was.
            if shift::largest(element, part) >= domain.size() {
                result = Err(self.outside::<LOCK>(part, value));
                break;
            }
            let number = value / per_batch;
            // `run` checked that ChaCha20's batches are below 2^28.
            let short = number as u32;
            let span = domain.span() as u32;
            let drawn = skip as usize..per_batch as usize;
            match (&self.stream, self.draw) {
                (Stream::ChaCha(_), Draw::Narrow) => {
                    (fill.narrow)(&state, short, span, &mut narrow);
                }
                (Stream::ChaCha(_), Draw::Scaled) => {
                    (fill.scaled)(&state, short, span, &mut batch);
                }
                (Stream::ChaCha(_), Draw::Reduced(_)) => {
                    (fill.words)(&state, short, span, &mut batch);
                }
                (Stream::Aes(stream), Draw::Narrow) => {
                    stream.fill_narrow(number, span, &mut narrow);
                }
                (Stream::Aes(stream), Draw::Scaled) => {
                    stream.fill::<true>(number, span, &mut batch);
                }
                (Stream::Aes(stream), Draw::Reduced(_)) => {
                    stream.fill::<false>(number, span, &mut batch);
                }
            }
            if let Draw::Reduced(by) = self.draw {
                by.reduce(&mut batch);
            }
            if let Draw::Narrow = self.draw {
                shift::shift::<LOCK, _>(domain, part, &narrow.0[drawn]);
            } else {
                shift::shift::<LOCK, _>(domain, part, &batch.0[drawn]);
            }
            value += per_batch - skip;
        }
        narrow.zeroize();
        batch.zeroize();
        state.zeroize();
        result
    }

    #[cold]
    fn outside<const LOCK: bool>(&self, part: &[u8], first: u64) -> LockError {
        let (of, domain) = (self.domain.element(), self.domain.size());
        let within = shift::first_outside(of, part, domain).unwrap_or_default();
        let not_finite = shift::first_outside(of, part, of.top() + 1) == Some(within);
        let element = first + within;
        if LOCK && not_finite {
            LockError::NotFinite { element, of }
        } else {
            LockError::Outside {
                element,
                domain,
                of,
            }
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("domain", &self.domain)
            .field("implementation", &self.implementation)
            .finish_non_exhaustive()
    }
}

impl Draw {
    /// Words of the stream that one value takes.
    fn words(self) -> u64 {
        match self {
            Self::Narrow | Self::Scaled => 1,
            Self::Reduced(_) => 2,
        }
    }
}

impl Reduction {
    fn new(span: u64) -> Self {
        let reciprocal = ((1_u128 << 64) / u128::from(span)) as u64;
        Self { span, reciprocal }
    }

    /// Turns the batch's 128 pairs of words into offsets, at its start.
    #[inline(always)]
    fn reduce(self, batch: &mut Batch) {
        for pair in 0..BATCH / 2 {
            let (low, high) = (batch.0[2 * pair], batch.0[2 * pair + 1]);
            let value = (u64::from(low) | (u64::from(high) << 32)) & (u64::MAX >> 1);
            batch.0[pair] = self.remainder(value) as u32;
        }
    }

    /// `value` modulo the span, for a value below 2^63: the quotient by the rounded reciprocal is
    /// short by at most `value / 2^64 + 1`, less than 2, so by at most one.
    #[inline(always)]
    fn remainder(self, value: u64) -> u64 {
        let quotient = ((u128::from(value) * u128::from(self.reciprocal)) >> 64) as u64;
        let remainder = value - quotient * self.span;
        if remainder >= self.span {
            remainder - self.span
        } else {
            remainder
        }
    }
}

/// Words of a ChaCha20 stream with a 32-bit block counter.
const STREAM_WORDS: u64 = 1 << 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_by_multiplication_are_exact() {
        for span in [
            2,
            3,
            1 << 24,
            0x7F00_0000 << 1,
            (1 << 31) + 1,
            0xFF00_0000,
            u64::from(u32::MAX),
        ] {
            let by = Reduction::new(span);
            let top = u64::MAX >> 1;
            let around = (0..70).map(|bit| top.checked_shr(bit).unwrap_or_default());
            let multiples = (0..70_u64).map(|n| (top / span).saturating_sub(n * 12_345) * span);
            for value in around.chain(multiples) {
                for value in [value.saturating_sub(1), value, (value + 1).min(top)] {
                    assert_eq!(by.remainder(value), value % span, "{value} % {span}");
                }
            }
        }
    }
}
