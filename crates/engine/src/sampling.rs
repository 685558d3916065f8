//! From logits to a token.

use rand_core::Rng;

use crate::error::RunError;

/// How the next token is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampling {
    /// The likeliest; of equals the lowest id.
    Greedy,
    /// Drawn by chance.
    Random {
        /// Divides the logits; above 0.
        temperature: f32,
        /// Only this many of the likeliest; 0 for all.
        top_k: u32,
        /// Only the likeliest that together have this probability; in (0, 1].
        top_p: f32,
    },
}

impl Sampling {
    /// Refuses settings out of range. A temperature of 0 means [`Sampling::Greedy`].
    pub fn checked(self) -> Result<Self, RunError> {
        let Self::Random {
            temperature, top_p, ..
        } = self
        else {
            return Ok(self);
        };
        let refuse = |field, reason| Err(RunError::Sampling { field, reason });
        if !temperature.is_finite() || temperature < 0.0 {
            return refuse("temperature", "must be a finite number of at least 0");
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return refuse("top_p", "must be above 0 and at most 1");
        }
        Ok(if temperature == 0.0 {
            Self::Greedy
        } else {
            self
        })
    }

    /// Draws a token. `logits` is one finite value an id; at least one.
    pub(crate) fn draw(self, logits: &[f32], rng: &mut impl Rng) -> u32 {
        match self {
            Self::Greedy => greedy(logits),
            Self::Random {
                temperature,
                top_k,
                top_p,
            } => random(logits, temperature, top_k as usize, top_p, rng),
        }
    }
}

fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (id, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = id;
        }
    }
    best as u32
}

fn random(logits: &[f32], temperature: f32, top_k: usize, top_p: f32, rng: &mut impl Rng) -> u32 {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let likelier = |a: &u32, b: &u32| {
        let (x, y) = (logits[*a as usize], logits[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    if top_k > 0 && top_k < order.len() {
        order.select_nth_unstable_by(top_k - 1, likelier);
        order.truncate(top_k);
    }
    order.sort_unstable_by(likelier);

    let highest = f64::from(logits[order[0] as usize]);
    let mut total = 0.0;
    let mut weights: Vec<f64> = order
        .iter()
        .map(|id| {
            let weight =
                ((f64::from(logits[*id as usize]) - highest) / f64::from(temperature)).exp();
            total += weight;
            weight
        })
        .collect();
    if top_p < 1.0 {
        let wanted = f64::from(top_p) * total;
        let mut sum = 0.0;
        let enough = weights.iter().position(|weight| {
            sum += weight;
            sum >= wanted
        });
        weights.truncate(enough.map_or(weights.len(), |last| last + 1));
        total = weights.iter().sum();
    }
    // 53 random bits: a uniform number in [0, 1).
    let uniform = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let mut left = uniform * total;
    for (id, weight) in order.iter().zip(&weights) {
        left -= weight;
        if left < 0.0 {
            return *id;
        }
    }
    order[weights.len() - 1]
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng;

    use super::*;

    #[test]
    fn greedy_takes_the_lowest_of_equals() {
        let mut rng = ChaCha20Rng::seed_from_u64(0);
        assert_eq!(Sampling::Greedy.draw(&[1.0, 3.0, 3.0, 2.0], &mut rng), 1);
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let logits = [0.0, (3.0f32).ln(), f32::MIN];
        let sampling = Sampling::Random {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
        };
        let draw = |seed| {
            let mut rng = ChaCha20Rng::seed_from_u64(seed);
            (0..4000)
                .map(|_| sampling.draw(&logits, &mut rng))
                .collect::<Vec<_>>()
        };
        let draws = draw(1);
        assert_eq!(draws, draw(1));
        assert_ne!(draws, draw(2));
        let ones = draws.iter().filter(|id| **id == 1).count();
        assert!(
            (2880..3120).contains(&ones),
            "three in four of 4000, got {ones}"
        );
        assert!(!draws.contains(&2));
    }

    #[test]
    fn top_k_and_top_p_leave_the_likeliest() {
        let logits = [1.0, 4.0, 3.0, 2.0];
        let mut rng = ChaCha20Rng::seed_from_u64(5);
        let mut seen = |top_k, top_p| {
            let sampling = Sampling::Random {
                temperature: 2.0,
                top_k,
                top_p,
            };
            let mut ids: Vec<u32> = (0..500).map(|_| sampling.draw(&logits, &mut rng)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        assert_eq!(seen(2, 1.0), [1, 2]);
        assert_eq!(seen(0, 0.01), [1]);
        assert_eq!(seen(0, 1.0), [0, 1, 2, 3]);
        assert_eq!(seen(99, 0.999_999), [0, 1, 2, 3]);
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let random = |temperature, top_p| Sampling::Random {
            temperature,
            top_k: 0,
            top_p,
        };
        assert_eq!(random(0.0, 1.0).checked().unwrap(), Sampling::Greedy);
        for (temperature, top_p, field) in [
            (f32::NAN, 1.0, "temperature"),
            (-1.0, 1.0, "temperature"),
            (1.0, 0.0, "top_p"),
            (1.0, f32::NAN, "top_p"),
        ] {
            let error = random(temperature, top_p).checked().unwrap_err();
            assert!(matches!(error, RunError::Sampling { field: f, .. } if f == field));
        }
    }
}
