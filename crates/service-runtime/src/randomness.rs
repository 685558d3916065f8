use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};

use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};
use rand_core::{Rng, TryCryptoRng, TryRng};

/// Random bytes. The only way a service gets any.
pub trait Randomness: Send + Sync + 'static {
    /// Fills `out`.
    fn fill(&self, out: &mut [u8]);
}

impl dyn Randomness {
    /// As a generator for functions that take one.
    #[must_use]
    pub fn rng(&self) -> RandomnessRng<'_> {
        RandomnessRng(self)
    }

    /// `N` random bytes.
    #[must_use]
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }
}

/// The operating system's randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, out: &mut [u8]) {
        SysRng
            .try_fill_bytes(out)
            .expect("the operating system gives random bytes");
    }
}

/// Randomness that a test can repeat.
pub struct SeededRandomness(Mutex<StdRng>);

impl SeededRandomness {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Randomness for SeededRandomness {
    fn fill(&self, out: &mut [u8]) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fill_bytes(out);
    }
}

/// A [`Randomness`] as a cryptographic generator.
#[derive(Clone, Copy)]
pub struct RandomnessRng<'a>(&'a dyn Randomness);

impl TryRng for RandomnessRng<'_> {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.0.bytes()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.0.bytes()))
    }

    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Infallible> {
        self.0.fill(out);
        Ok(())
    }
}

impl TryCryptoRng for RandomnessRng<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_the_system_does_not() {
        let seeded: [&dyn Randomness; 2] = [&SeededRandomness::new(7), &SeededRandomness::new(7)];
        assert_eq!(seeded[0].bytes::<32>(), seeded[1].bytes::<32>());
        let system: &dyn Randomness = &SystemRandomness;
        assert_ne!(system.bytes::<32>(), system.bytes::<32>());
        assert_ne!(system.rng().next_u64(), system.rng().next_u64());
    }
}
