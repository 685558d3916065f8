//! Attention of one query over the keys and values of one KV block.

use super::simd::{LANES, Simd};

/// `scores[i] = scale * (query . keys[i])`; `keys` is `[query.len(), scores.len()]`.
#[inline(always)]
pub(crate) fn scores<S: Simd>(s: S, query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32]) {
    for (key, score) in keys.chunks_exact(query.len()).zip(scores) {
        *score = dot(s, query, key) * scale;
    }
}

/// `out += sum of weights[i] * values[i]`; `values` is `[out.len(), weights.len()]`.
#[inline(always)]
pub(crate) fn mix<S: Simd>(s: S, weights: &[f32], values: &[f32], out: &mut [f32]) {
    let width = out.len();
    let whole = width - width % LANES;
    let mut at = 0;
    while at < whole {
        let out: &mut [f32; LANES] = out[at..].first_chunk_mut().expect("a whole chunk");
        let mut sum = s.load(out);
        for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
            let value = s.load(value[at..].first_chunk().expect("a whole chunk"));
            sum = s.fma(s.splat(*weight), value, sum);
        }
        *out = s.to_array(sum);
        at += LANES;
    }
    if at < width {
        for (weight, value) in weights.iter().zip(values.chunks_exact(width)) {
            for (out, value) in out[at..].iter_mut().zip(&value[at..]) {
                *out += weight * value;
            }
        }
    }
}

#[inline(always)]
fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    let whole = a.len() - a.len() % LANES;
    let mut sum = s.zero();
    let mut at = 0;
    while at < whole {
        let a = s.load(a[at..].first_chunk().expect("a whole chunk"));
        let b = s.load(b[at..].first_chunk().expect("a whole chunk"));
        sum = s.fma(a, b, sum);
        at += LANES;
    }
    let rest: f32 = a[at..].iter().zip(&b[at..]).map(|(a, b)| a * b).sum();
    s.sum(sum) + rest
}
