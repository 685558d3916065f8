//! Rotary position embedding.

use crate::error::RunError;
use crate::kernels::Level;
use crate::model::Model;

/// Angular steps of a model's pairs.
#[derive(Debug)]
pub(crate) struct Rope {
    steps: Vec<f32>,
    factor: f32,
    neox: bool,
}

/// Cosines and sines of consecutive positions.
#[derive(Debug)]
pub(crate) struct Turns {
    /// `[pairs, positions]`.
    turns: Vec<(f32, f32)>,
    pairs: usize,
    neox: bool,
}

impl Rope {
    /// Steps in f32, operation by operation as the reference computes them:
    /// `1 / base^(2i / rot)`, then the divisors of role 61 and the linear scaling.
    pub(crate) fn new(model: &Model, dense: &[u8], level: Level) -> Result<Self, RunError> {
        let shape = &model.shape;
        let pairs = shape.rot / 2;
        let mut divisors = vec![1.0; pairs];
        if let Some(slot) = &model.rope_freqs {
            slot.on(dense, &[])?.row(level, 0, &mut divisors);
        }
        let steps: Vec<f32> = divisors
            .iter()
            .enumerate()
            .map(|(i, divisor)| {
                let exponent = (2 * i) as f32 / shape.rot as f32;
                let power = f64::from(shape.rope_base).powf(f64::from(exponent)) as f32;
                1.0 / power / divisor / shape.rope_linear
            })
            .collect();
        if !steps.iter().all(|step| step.is_finite()) {
            let place = "rotary step".to_owned();
            return Err(RunError::NotFinite { place });
        }
        Ok(Self {
            steps,
            factor: shape.attn_factor,
            neox: shape.neox,
        })
    }

    pub(crate) fn turns(&self, start: usize, count: usize) -> Turns {
        let positions = start..start + count;
        let turns = positions.flat_map(|position| {
            self.steps.iter().map(move |step| {
                let angle = f64::from(position as f32 * step);
                let (sin, cos) = angle.sin_cos();
                (cos as f32 * self.factor, sin as f32 * self.factor)
            })
        });
        Turns {
            turns: turns.collect(),
            pairs: self.steps.len(),
            neox: self.neox,
        }
    }
}

impl Turns {
    /// Turns one head's values of token `token` of the pass.
    pub(crate) fn apply(&self, token: usize, head: &mut [f32]) {
        let turns = &self.turns[token * self.pairs..][..self.pairs];
        for (i, (cos, sin)) in turns.iter().enumerate() {
            let (a, b) = if self.neox {
                (i, i + self.pairs)
            } else {
                (2 * i, 2 * i + 1)
            };
            let (x, y) = (head[a], head[b]);
            head[a] = x * cos - y * sin;
            head[b] = y * cos + x * sin;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pairings_turn_by_the_same_angles() {
        let rope = |neox| Rope {
            steps: vec![1.0, 0.5],
            factor: 1.0,
            neox,
        };
        let mut head = [1.0, 2.0, 3.0, 4.0];
        rope(true).turns(3, 2).apply(1, &mut head);
        let mut paired = [1.0, 3.0, 2.0, 4.0];
        rope(false).turns(4, 1).apply(0, &mut paired);
        assert_eq!([head[0], head[2], head[1], head[3]], paired);
        let (sin, cos) = 4f64.sin_cos();
        assert!((f64::from(head[0]) - (cos - 3.0 * sin)).abs() < 1e-6);
        assert!((f64::from(head[2]) - (3.0 * cos + sin)).abs() < 1e-6);
    }
}
