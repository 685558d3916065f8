//! One pass of a few tokens through the layers.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;

use crate::error::RunError;
use crate::kernels::{self, Level, Matrix};
use crate::kv::{KvCache, Part};
use crate::model::{Block, Experts, FeedForward, Mlp, Model, Projection, Shape, Slot};
use crate::rope::{Rope, Turns};
use crate::weights::Weights;

/// What a pass reads besides the tokens.
pub(crate) struct Pass<'a> {
    pub model: &'a Model,
    pub weights: &'a dyn Weights,
    pub level: Level,
    pub rope: &'a Rope,
    pub cancel: &'a AtomicBool,
}

impl Pass<'_> {
    /// Feeds `tokens` at positions `start..`, whose keys and values go to `cache` (it has room
    /// for them), and gives the last token's logits when they are wanted.
    pub(crate) fn run(
        &self,
        cache: &mut KvCache,
        tokens: &[u32],
        start: usize,
        want_logits: bool,
    ) -> Result<Option<Vec<f32>>, RunError> {
        let shape = &self.model.shape;
        let dense = self.weights.dense();
        let mut hidden = self.embed(dense, tokens)?;
        let turns = self.rope.turns(start, tokens.len());

        let last = self.model.blocks.len() - 1;
        for (index, block) in self.model.blocks.iter().enumerate() {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(RunError::Cancelled);
            }
            let layer = Layer {
                pass: self,
                block,
                index,
                dense,
                count: tokens.len(),
            };
            // The next pass starts over at block 0.
            let next = if index == last { 0 } else { index + 1 };
            layer.run(cache, &turns, start, next as u32, &mut hidden)?;
            if !hidden.iter().all(|value| value.is_finite()) {
                let place = format!("output of block {index}");
                return Err(RunError::NotFinite { place });
            }
        }
        if !want_logits {
            return Ok(None);
        }

        let state = &hidden[hidden.len() - shape.embd..];
        let norm = &self.model.output_norm;
        let state = self.norm(norm, dense, state)?;
        let head = self.model.output.as_ref().unwrap_or(&self.model.embedding);
        let mut logits = vec![0.0; shape.vocab];
        head.on(dense, &[])?
            .product(self.level, &state, 1, &mut logits);
        if !logits.iter().all(|value| value.is_finite()) {
            let place = format!("product with {:?}", head.name);
            return Err(RunError::NotFinite { place });
        }
        Ok(Some(logits))
    }

    fn embed(&self, dense: &[u8], tokens: &[u32]) -> Result<Vec<f32>, RunError> {
        let shape = &self.model.shape;
        let table = self.model.embedding.on(dense, &[])?;
        let mut hidden = vec![0.0; tokens.len() * shape.embd];
        for (id, out) in tokens.iter().zip(hidden.chunks_exact_mut(shape.embd)) {
            if *id as usize >= shape.vocab {
                return Err(RunError::TokenId {
                    id: *id,
                    size: shape.vocab,
                });
            }
            table.row(self.level, *id as usize, out);
        }
        if shape.embd_scale != 1.0 {
            hidden
                .iter_mut()
                .for_each(|value| *value *= shape.embd_scale);
        }
        Ok(hidden)
    }

    fn norm(&self, slot: &Slot, dense: &[u8], x: &[f32]) -> Result<Vec<f32>, RunError> {
        let weight = self.vector(slot, dense)?;
        let mut out = x.to_vec();
        for x in out.chunks_exact_mut(weight.len()) {
            rms_norm(x, &weight, self.model.shape.rms_eps);
        }
        Ok(out)
    }

    fn vector(&self, slot: &Slot, dense: &[u8]) -> Result<Vec<f32>, RunError> {
        let matrix = slot.on(dense, &[])?;
        let mut values = vec![0.0; matrix.k()];
        matrix.row(self.level, 0, &mut values);
        Ok(values)
    }

    fn product(&self, w: Matrix<'_>, x: &[f32], count: usize) -> Vec<f32> {
        let mut y = vec![0.0; count * w.rows()];
        w.product(self.level, x, count, &mut y);
        y
    }
}

/// One layer of a pass over `count` tokens.
struct Layer<'a> {
    pass: &'a Pass<'a>,
    block: &'a Block,
    index: usize,
    dense: &'a [u8],
    count: usize,
}

impl Layer<'_> {
    fn run(
        &self,
        cache: &mut KvCache,
        turns: &Turns,
        start: usize,
        next: u32,
        hidden: &mut [f32],
    ) -> Result<(), RunError> {
        let weights = self.pass.weights;
        let page = weights
            .block(self.index as u32)
            .map_err(|source| RunError::Weights {
                unit: format!("block {}", self.index),
                source,
            })?;
        if next as usize != self.index {
            weights.prefetch_block(next);
        }
        let bytes = (*page).as_ref();
        let attended = self.attention(bytes, cache, turns, start, hidden)?;
        add(hidden, &attended);

        let x = self.pass.norm(&self.block.ffn_norm, self.dense, hidden)?;
        match &self.block.ffn {
            FeedForward::Dense(mlp) => add(hidden, &self.mlp(mlp, bytes, &x, self.count)?),
            FeedForward::Mixture { router, experts } => {
                let routes = self.route(router, bytes, &x)?;
                let mixed = match experts {
                    Experts::InBlock(experts) => {
                        self.mixture(&routes, &x, |expert, x, count| {
                            self.mlp(&experts[expert], bytes, x, count)
                        })?
                    }
                    Experts::Paged(mlp) => {
                        // The experts' pages may need the room of this one.
                        drop(page);
                        self.paged_mixture(mlp, &routes, &x)?
                    }
                };
                add(hidden, &mixed);
            }
        }
        Ok(())
    }

    fn attention(
        &self,
        page: &[u8],
        cache: &mut KvCache,
        turns: &Turns,
        start: usize,
        hidden: &[f32],
    ) -> Result<Vec<f32>, RunError> {
        let shape = &self.pass.model.shape;
        let x = self.pass.norm(&self.block.attn_norm, self.dense, hidden)?;
        let mut q = self.project(&self.block.q, page, &x)?;
        let mut k = self.project(&self.block.k, page, &x)?;
        let v = self.project(&self.block.v, page, &x)?;
        for (values, norm, heads) in [
            (&mut q, &self.block.q_norm, shape.heads),
            (&mut k, &self.block.k_norm, shape.kv_heads),
        ] {
            if let Some(norm) = norm {
                let weight = self.pass.vector(norm, self.dense)?;
                for x in values.chunks_exact_mut(weight.len()) {
                    rms_norm(x, &weight, shape.rms_eps);
                }
            }
            let width = heads * shape.head_dim;
            for (t, of_token) in values.chunks_exact_mut(width).enumerate() {
                for head in of_token.chunks_exact_mut(shape.head_dim) {
                    turns.apply(t, head);
                }
            }
        }
        let width = shape.kv_heads * shape.head_dim;
        for (t, (k, v)) in k.chunks_exact(width).zip(v.chunks_exact(width)).enumerate() {
            cache.write(self.index, start + t, k, v);
        }
        let mixed = self.attend(shape, cache, &q, start);
        self.project(&self.block.out, page, &mixed)
    }

    /// Softmax attention of every query over its own and all earlier positions.
    fn attend(&self, shape: &Shape, cache: &KvCache, q: &[f32], start: usize) -> Vec<f32> {
        let (level, layer, dim) = (self.pass.level, self.index, shape.head_dim);
        let scale = 1.0 / (dim as f32).sqrt();
        let group = shape.heads / shape.kv_heads;
        let one = |scores: &mut Vec<f32>, i: usize, query: &[f32], out: &mut [f32]| {
            let length = start + i / shape.heads + 1;
            let head = i % shape.heads / group;
            scores.clear();
            scores.resize(length, 0.0);
            let mut rest = &mut scores[..];
            for keys in cache.head(layer, Part::Keys, head, length) {
                let (part, after) = std::mem::take(&mut rest).split_at_mut(keys.len() / dim);
                kernels::scores(level, query, keys, scale, part);
                rest = after;
            }
            softmax(scores);
            let mut rest = &scores[..];
            for values in cache.head(layer, Part::Values, head, length) {
                let (part, after) = rest.split_at(values.len() / dim);
                kernels::mix(level, part, values, out);
                rest = after;
            }
        };
        let mut out = vec![0.0; q.len()];
        if q.len() * (start + self.count) < SERIAL_WORK {
            let mut scores = Vec::new();
            for (i, (query, out)) in q
                .chunks_exact(dim)
                .zip(out.chunks_exact_mut(dim))
                .enumerate()
            {
                one(&mut scores, i, query, out);
            }
        } else {
            q.par_chunks_exact(dim)
                .zip(out.par_chunks_exact_mut(dim))
                .enumerate()
                .for_each_init(Vec::new, |scores, (i, (query, out))| {
                    one(scores, i, query, out)
                });
        }
        out
    }

    fn project(&self, p: &Projection, page: &[u8], x: &[f32]) -> Result<Vec<f32>, RunError> {
        let mut y = self
            .pass
            .product(p.weight.on(self.dense, page)?, x, self.count);
        if let Some(bias) = &p.bias {
            let bias = self.pass.vector(bias, self.dense)?;
            y.chunks_exact_mut(bias.len()).for_each(|y| add(y, &bias));
        }
        Ok(y)
    }

    fn mlp(&self, mlp: &Mlp, page: &[u8], x: &[f32], count: usize) -> Result<Vec<f32>, RunError> {
        let mut gate = self.pass.product(mlp.gate.on(self.dense, page)?, x, count);
        let up = self.pass.product(mlp.up.on(self.dense, page)?, x, count);
        for (gate, up) in gate.iter_mut().zip(&up) {
            *gate = *gate / (1.0 + (-*gate).exp()) * up;
        }
        Ok(self
            .pass
            .product(mlp.down.on(self.dense, page)?, &gate, count))
    }

    /// The experts of each token, with their weights.
    fn route(&self, router: &Slot, page: &[u8], x: &[f32]) -> Result<Vec<Route>, RunError> {
        let shape = &self.pass.model.shape;
        let scores = self
            .pass
            .product(router.on(self.dense, page)?, x, self.count);
        let mut routes = Vec::new();
        for (token, scores) in scores.chunks_exact(shape.experts).enumerate() {
            if !scores.iter().all(|score| score.is_finite()) {
                let place = format!("product with {:?}", router.name);
                return Err(RunError::NotFinite { place });
            }
            let mut shares = scores.to_vec();
            softmax(&mut shares);
            let mut order: Vec<usize> = (0..shares.len()).collect();
            order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
            order.truncate(shape.experts_used);
            let sum: f32 = order.iter().map(|expert| shares[*expert]).sum();
            let whole = if shape.keep_router_weights { 1.0 } else { sum };
            routes.extend(order.into_iter().map(|expert| Route {
                expert,
                token,
                weight: shares[expert] / whole * shape.expert_scale,
            }));
        }
        // Expert by expert: each page is read once, and a token's sum has one order.
        routes.sort_by_key(|route| (route.expert, route.token));
        Ok(routes)
    }

    fn paged_mixture(&self, mlp: &Mlp, routes: &[Route], x: &[f32]) -> Result<Vec<f32>, RunError> {
        let (weights, block) = (self.pass.weights, self.index as u32);
        let mut wanted: Vec<u32> = routes.iter().map(|route| route.expert as u32).collect();
        wanted.dedup();
        weights.prefetch_experts(block, &wanted);
        self.mixture(routes, x, |expert, x, count| {
            let page =
                weights
                    .expert(block, expert as u32)
                    .map_err(|source| RunError::Weights {
                        unit: format!("expert {expert} of block {block}"),
                        source,
                    })?;
            self.mlp(mlp, (*page).as_ref(), x, count)
        })
    }

    /// The weighted sum of the experts' outputs, for every token.
    fn mixture(
        &self,
        routes: &[Route],
        x: &[f32],
        mut run: impl FnMut(usize, &[f32], usize) -> Result<Vec<f32>, RunError>,
    ) -> Result<Vec<f32>, RunError> {
        let embd = self.pass.model.shape.embd;
        let mut out = vec![0.0; x.len()];
        for routes in routes.chunk_by(|a, b| a.expert == b.expert) {
            let inputs: Vec<f32> = routes
                .iter()
                .flat_map(|route| &x[route.token * embd..][..embd])
                .copied()
                .collect();
            let outputs = run(routes[0].expert, &inputs, routes.len())?;
            for (route, output) in routes.iter().zip(outputs.chunks_exact(embd)) {
                for (out, value) in out[route.token * embd..].iter_mut().zip(output) {
                    *out += route.weight * value;
                }
            }
        }
        Ok(out)
    }
}

struct Route {
    expert: usize,
    token: usize,
    weight: f32,
}

fn add(to: &mut [f32], values: &[f32]) {
    for (to, value) in to.iter_mut().zip(values) {
        *to += value;
    }
}

/// `x * weight / sqrt(mean(x^2) + eps)`, the mean in f64.
fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    let squares: f64 = x.iter().map(|value| f64::from(*value).powi(2)).sum();
    let mean = squares / x.len() as f64;
    let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    for (value, weight) in x.iter_mut().zip(weight) {
        *value = *value * scale * weight;
    }
}

fn softmax(values: &mut [f32]) {
    let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = (*value - highest).exp();
        sum += *value;
    }
    values.iter_mut().for_each(|value| *value /= sum);
}

/// Query values times positions below which attention is not worth splitting over threads.
const SERIAL_WORK: usize = 1 << 18;
