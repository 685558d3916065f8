//! A conversation with a model: its cache, and generation from it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand_core::Rng;

use crate::error::RunError;
use crate::forward::Pass;
use crate::kernels::Level;
use crate::kv::{KvCache, KvPool};
use crate::model::Model;
use crate::rope::Rope;
use crate::sampling::Sampling;
use crate::weights::Weights;

/// One sequence of tokens and its keys and values.
pub struct Session {
    model: Arc<Model>,
    weights: Arc<dyn Weights>,
    level: Level,
    rope: Rope,
    cache: KvCache,
    position: usize,
}

/// What to generate.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Tokens to continue; at least one.
    pub prompt: &'a [u32],
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Ids that end the answer; none of them is given out.
    pub stop: &'a [u32],
    /// How tokens are drawn.
    pub sampling: Sampling,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was drawn.
    Stop(u32),
    /// The request's number of tokens was reached.
    Length,
    /// The model's context is full.
    Context,
    /// The receiver of tokens wanted no more.
    Halted,
}

impl Session {
    /// A session at position 0. Blocks of the cache come from `pool`, which must have been made
    /// with this model's [`Model::kv_shape`].
    pub fn new(
        model: Arc<Model>,
        weights: Arc<dyn Weights>,
        pool: Arc<KvPool>,
    ) -> Result<Self, RunError> {
        Self::with_level(model, weights, pool, Level::detect())
    }

    /// As [`Self::new`], with kernels of one instruction set.
    pub fn with_level(
        model: Arc<Model>,
        weights: Arc<dyn Weights>,
        pool: Arc<KvPool>,
        level: Level,
    ) -> Result<Self, RunError> {
        let rope = Rope::new(&model, weights.dense(), level)?;
        Ok(Self {
            model,
            weights,
            level,
            rope,
            cache: KvCache::new(pool),
            position: 0,
        })
    }

    /// Tokens fed so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Feeds tokens and gives the logits after the last, one for each id. They do not depend on
    /// how the tokens are split over calls. After an error the session is at the last position
    /// that was fed whole.
    pub fn feed(&mut self, tokens: &[u32], cancel: &AtomicBool) -> Result<Vec<f32>, RunError> {
        if tokens.is_empty() {
            return Err(RunError::EmptyPrompt);
        }
        let needed = self.position.saturating_add(tokens.len());
        if needed > self.model.context() {
            return Err(RunError::Context {
                needed,
                maximum: self.model.context(),
            });
        }
        let mut logits = None;
        let mut left = tokens.len();
        for chunk in tokens.chunks(CHUNK) {
            left -= chunk.len();
            self.cache.reserve(self.position + chunk.len())?;
            let pass = Pass {
                model: &self.model,
                weights: &*self.weights,
                level: self.level,
                rope: &self.rope,
                cancel,
            };
            logits = pass.run(&mut self.cache, chunk, self.position, left == 0)?;
            self.position += chunk.len();
        }
        Ok(logits.expect("the last chunk gives logits"))
    }

    /// Feeds the prompt and draws tokens, handing each to `receive` as it is drawn.
    ///
    /// `cancel` is looked at before every layer; once set, the run ends with
    /// [`RunError::Cancelled`].
    pub fn generate(
        &mut self,
        request: &Request<'_>,
        rng: &mut impl Rng,
        cancel: &AtomicBool,
        mut receive: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Finish, RunError> {
        let sampling = request.sampling.checked()?;
        let mut logits = self.feed(request.prompt, cancel)?;
        for drawn in 1..=request.max_tokens {
            if cancel.load(Ordering::Relaxed) {
                return Err(RunError::Cancelled);
            }
            let id = sampling.draw(&logits, rng);
            if request.stop.contains(&id) {
                return Ok(Finish::Stop(id));
            }
            if receive(id).is_break() {
                return Ok(Finish::Halted);
            }
            if drawn == request.max_tokens {
                break;
            }
            if self.position == self.model.context() {
                return Ok(Finish::Context);
            }
            logits = self.feed(&[id], cancel)?;
        }
        Ok(Finish::Length)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("position", &self.position)
            .field("level", &self.level.name())
            .finish_non_exhaustive()
    }
}

/// Tokens of one pass: bounds the memory of a long prompt.
const CHUNK: usize = 64;
