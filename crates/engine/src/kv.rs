//! The key-value cache: blocks of positions from a pool with a byte budget.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::RunError;

/// Positions of a block.
pub(crate) const BLOCK_TOKENS: usize = 32;

/// What one position keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Key-value heads of a layer.
    pub heads: usize,
    /// Values of a head.
    pub head_dim: usize,
}

impl KvShape {
    /// f32 values of a block: keys and values of every layer and head.
    fn block_len(self) -> usize {
        self.layers * 2 * self.heads * BLOCK_TOKENS * self.head_dim
    }

    /// Bytes of a block of 32 positions.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        (self.block_len() * size_of::<f32>()) as u64
    }
}

/// Blocks of one model, shared by its sessions; never more bytes than the budget.
#[derive(Debug)]
pub struct KvPool {
    shape: KvShape,
    budget: u64,
    state: Mutex<PoolState>,
}

#[derive(Debug, Default)]
struct PoolState {
    made: u64,
    free: Vec<Box<[f32]>>,
}

impl KvPool {
    /// A pool that has made no block yet.
    #[must_use]
    pub fn new(shape: KvShape, budget: u64) -> Arc<Self> {
        Arc::new(Self {
            shape,
            budget,
            state: Mutex::default(),
        })
    }

    /// Positions that fit the budget.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let blocks = self.budget / self.shape.block_bytes().max(1);
        usize::try_from(blocks)
            .unwrap_or(usize::MAX)
            .saturating_mul(BLOCK_TOKENS)
    }

    /// Bytes of the blocks that sessions hold.
    #[must_use]
    pub fn held(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.made - state.free.len() as u64) * self.shape.block_bytes()
    }

    fn take(&self) -> Result<Box<[f32]>, RunError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(block) = state.free.pop() {
            return Ok(block);
        }
        let next = (state.made + 1).checked_mul(self.shape.block_bytes());
        if next.is_none_or(|bytes| bytes > self.budget) {
            return Err(RunError::KvBudget {
                budget: self.budget,
            });
        }
        state.made += 1;
        Ok(vec![0.0; self.shape.block_len()].into_boxed_slice())
    }

    /// Takes a block back, without what it held.
    fn give_back(&self, mut block: Box<[f32]>) {
        block.fill(0.0);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.free.push(block);
    }
}

/// Keys and values of one session's positions.
#[derive(Debug)]
pub(crate) struct KvCache {
    pool: Arc<KvPool>,
    blocks: Vec<Box<[f32]>>,
}

impl KvCache {
    pub(crate) fn new(pool: Arc<KvPool>) -> Self {
        Self {
            pool,
            blocks: Vec::new(),
        }
    }

    /// Makes room for positions `..length`.
    pub(crate) fn reserve(&mut self, length: usize) -> Result<(), RunError> {
        while self.blocks.len() * BLOCK_TOKENS < length {
            self.blocks.push(self.pool.take()?);
        }
        Ok(())
    }

    /// Writes one position: `key` and `value` hold every head's values.
    pub(crate) fn write(&mut self, layer: usize, position: usize, key: &[f32], value: &[f32]) {
        let dim = self.pool.shape.head_dim;
        for (part, values) in [(Part::Keys, key), (Part::Values, value)] {
            for (head, values) in values.chunks_exact(dim).enumerate() {
                let start = self.start(layer, part, head) + position % BLOCK_TOKENS * dim;
                self.blocks[position / BLOCK_TOKENS][start..][..dim].copy_from_slice(values);
            }
        }
    }

    /// Keys or values of one head for positions `..length`, block by block: each slice is
    /// `[head_dim, positions]`.
    pub(crate) fn head(
        &self,
        layer: usize,
        part: Part,
        head: usize,
        length: usize,
    ) -> impl Iterator<Item = &[f32]> {
        let start = self.start(layer, part, head);
        let dim = self.pool.shape.head_dim;
        self.blocks.iter().enumerate().map_while(move |(i, block)| {
            let positions = length.saturating_sub(i * BLOCK_TOKENS).min(BLOCK_TOKENS);
            (positions > 0).then(|| &block[start..][..positions * dim])
        })
    }

    fn start(&self, layer: usize, part: Part, head: usize) -> usize {
        let shape = self.pool.shape;
        let of_layer = layer * 2 + part as usize;
        (of_layer * shape.heads + head) * BLOCK_TOKENS * shape.head_dim
    }
}

impl Drop for KvCache {
    fn drop(&mut self) {
        for block in self.blocks.drain(..) {
            self.pool.give_back(block);
        }
    }
}

/// Which half of the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Keys = 0,
    Values = 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape {
        layers: 2,
        heads: 2,
        head_dim: 3,
    };

    #[test]
    fn positions_come_back_by_layer_and_head() {
        let mut cache = KvCache::new(KvPool::new(SHAPE, 1 << 20));
        cache.reserve(40).unwrap();
        for position in 0..40 {
            for layer in 0..2 {
                let key: [f32; 6] =
                    std::array::from_fn(|i| (position * 100 + layer * 10 + i) as f32);
                cache.write(layer, position, &key, &key.map(|v| -v));
            }
        }
        let keys: Vec<f32> = cache
            .head(1, Part::Keys, 1, 34)
            .flatten()
            .copied()
            .collect();
        assert_eq!(keys.len(), 34 * 3);
        assert_eq!(keys[33 * 3..], [3313.0, 3314.0, 3315.0]);
        let values: Vec<&[f32]> = cache.head(0, Part::Values, 0, 33).collect();
        assert_eq!(values.len(), 2);
        assert_eq!(values[1], [-3200.0, -3201.0, -3202.0]);
    }

    #[test]
    fn blocks_are_reused_wiped_and_bounded() {
        let pool = KvPool::new(SHAPE, 2 * SHAPE.block_bytes());
        assert_eq!(pool.capacity(), 64);
        let mut cache = KvCache::new(pool.clone());
        cache.reserve(64).unwrap();
        cache.write(0, 63, &[1.0; 6], &[1.0; 6]);
        assert_eq!(pool.held(), 2 * SHAPE.block_bytes());
        assert!(matches!(cache.reserve(65), Err(RunError::KvBudget { .. })));
        drop(cache);
        assert_eq!(pool.held(), 0);
        let mut cache = KvCache::new(pool);
        cache.reserve(64).unwrap();
        assert!(
            cache
                .blocks
                .iter()
                .flat_map(|block| block.iter())
                .all(|v| *v == 0.0)
        );
    }
}
