//! Permutations drawn from key streams (spec: sealed checkpoint, section 2).
//!
//! Every permutation `p` is "protected `i` holds canonical `p[i]`". Beside each draw stands the
//! list of subkeys that it asks its source for, which is the same for every key.

use std::num::NonZeroU64;

use crate::error::DrawError;
use crate::label::{Component, Label, Part, Path, SubkeyId};
use crate::source::{Scoped, Subkey};
use crate::stream::{KeyStream, signs, stream_id};

/// A permutation with a sign for each position: as a matrix, `M[index[j], j] = sign[j]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedPermutation {
    /// Protected position `i` holds canonical position `index[i]`.
    pub index: Vec<u32>,
    /// -1 or +1 for each protected position.
    pub sign: Vec<i8>,
}

/// `permutation(path, n)`.
pub fn permutation(source: &Scoped<'_>, path: &Path, n: usize) -> Result<Vec<u32>, DrawError> {
    DrawError::check_length(path, n)?;
    let mut out = ascending(0, n);
    draw(source, path, &mut out)?;
    Ok(out)
}

/// What [`permutation`] asks its source for.
#[must_use]
pub fn permutation_id(component: Component, path: &Path) -> SubkeyId {
    SubkeyId {
        component,
        label: Label::Permutation(path.clone()),
    }
}

/// `grouped(path, n, group)`: groups of `group` in order, each permuted on its own; the last may
/// be shorter. Without a group it is [`permutation`].
pub fn grouped(
    source: &Scoped<'_>,
    path: &Path,
    n: usize,
    group: Option<usize>,
) -> Result<Vec<u32>, DrawError> {
    let Some(size) = group else {
        return permutation(source, path, n);
    };
    check_group(path, n, size)?;
    let mut out = ascending(0, n);
    for (k, part) in out.chunks_mut(size).enumerate() {
        draw(source, &path.then(Part::Group((k * size) as u64)), part)?;
    }
    Ok(out)
}

/// What [`grouped`] asks its source for.
pub fn grouped_ids(
    component: Component,
    path: &Path,
    n: usize,
    group: Option<usize>,
) -> Result<Vec<SubkeyId>, DrawError> {
    let Some(size) = group else {
        return Ok(vec![permutation_id(component, path)]);
    };
    check_group(path, n, size)?;
    Ok(group_ids(component, path, n, size))
}

/// `pairs(path, n, group)`: neighbours (2k, 2k + 1) stay together and in order; groups of
/// gcd(n, `group`) (`None`: all of n) are permuted on their own.
pub fn pairs(
    source: &Scoped<'_>,
    path: &Path,
    n: usize,
    group: Option<usize>,
) -> Result<Vec<u32>, DrawError> {
    let size = pair_group(path, n, group)?;
    let mut out = Vec::with_capacity(n);
    for start in (0..n).step_by(size) {
        let mut order = ascending(0, size / 2);
        draw(source, &path.then(Part::Group(start as u64)), &mut order)?;
        let first = start as u32;
        out.extend(
            order
                .iter()
                .flat_map(|q| [first + 2 * q, first + 2 * q + 1]),
        );
    }
    Ok(out)
}

/// What [`pairs`] asks its source for.
pub fn pairs_ids(
    component: Component,
    path: &Path,
    n: usize,
    group: Option<usize>,
) -> Result<Vec<SubkeyId>, DrawError> {
    let size = pair_group(path, n, group)?;
    Ok(group_ids(component, path, n, size))
}

/// `blocks(path, n, blocks)`: blocks of the first size move whole, their insides in blocks of the
/// next size, and so on. Zero sizes count as absent; with none left it is [`permutation`].
pub fn blocks(
    source: &Scoped<'_>,
    path: &Path,
    n: usize,
    blocks: &[usize],
) -> Result<Vec<u32>, DrawError> {
    let sizes = block_sizes(path, n, blocks)?;
    let mut out = Vec::with_capacity(n);
    append_blocks(source, path, 0, n, &sizes, &mut out)?;
    Ok(out)
}

/// What [`blocks`] asks its source for.
pub fn blocks_ids(
    component: Component,
    path: &Path,
    n: usize,
    blocks: &[usize],
) -> Result<Vec<SubkeyId>, DrawError> {
    let sizes = block_sizes(path, n, blocks)?;
    let mut out = Vec::new();
    append_block_ids(component, path, n, &sizes, &mut out);
    Ok(out)
}

/// The signed permutation S(path, n, blocks).
pub fn signed_permutation(
    source: &Scoped<'_>,
    path: &Path,
    n: usize,
    blocks: &[usize],
) -> Result<SignedPermutation, DrawError> {
    Ok(SignedPermutation {
        index: self::blocks(source, path, n, blocks)?,
        sign: signs(source, &path.then(Part::Sign), n)?,
    })
}

/// What [`signed_permutation`] asks its source for.
pub fn signed_permutation_ids(
    component: Component,
    path: &Path,
    n: usize,
    blocks: &[usize],
) -> Result<Vec<SubkeyId>, DrawError> {
    let mut ids = blocks_ids(component, path, n, blocks)?;
    ids.push(stream_id(component, &path.then(Part::Sign)));
    Ok(ids)
}

/// The inverse of a permutation: `inverse(p)[p[i]] = i`.
///
/// # Panics
/// If `p` holds a value that is not below its length.
#[must_use]
pub fn inverse(p: &[u32]) -> Vec<u32> {
    let mut out = vec![0; p.len()];
    for (i, &to) in p.iter().enumerate() {
        out[to as usize] = i as u32;
    }
    out
}

/// Shuffles `values` in place by the draws of a subkey, from the last position down.
pub fn shuffle(subkey: &Subkey, values: &mut [u32]) {
    let mut stream = KeyStream::new(subkey);
    for i in (1..values.len()).rev() {
        let bound = NonZeroU64::new(i as u64 + 1).expect("i + 1 is positive");
        values.swap(i, stream.below(bound) as usize);
    }
}

fn draw(source: &Scoped<'_>, path: &Path, values: &mut [u32]) -> Result<(), DrawError> {
    shuffle(&source.subkey(Label::Permutation(path.clone()))?, values);
    Ok(())
}

fn append_blocks(
    source: &Scoped<'_>,
    path: &Path,
    start: u32,
    n: usize,
    sizes: &[usize],
    out: &mut Vec<u32>,
) -> Result<(), DrawError> {
    let Some((&size, inner)) = sizes.split_first() else {
        let mut part = ascending(start, n);
        draw(source, path, &mut part)?;
        out.extend_from_slice(&part);
        return Ok(());
    };
    let mut order = ascending(0, n / size);
    draw(source, &path.then(Part::Blocks), &mut order)?;
    for block in order {
        let inside = path.then(Part::In(u64::from(block)));
        append_blocks(
            source,
            &inside,
            start + block * size as u32,
            size,
            inner,
            out,
        )?;
    }
    Ok(())
}

fn append_block_ids(
    component: Component,
    path: &Path,
    n: usize,
    sizes: &[usize],
    out: &mut Vec<SubkeyId>,
) {
    let Some((&size, inner)) = sizes.split_first() else {
        out.push(permutation_id(component, path));
        return;
    };
    out.push(permutation_id(component, &path.then(Part::Blocks)));
    for block in 0..n / size {
        let inside = path.then(Part::In(block as u64));
        append_block_ids(component, &inside, size, inner, out);
    }
}

fn group_ids(component: Component, path: &Path, n: usize, size: usize) -> Vec<SubkeyId> {
    (0..n)
        .step_by(size)
        .map(|start| permutation_id(component, &path.then(Part::Group(start as u64))))
        .collect()
}

fn ascending(start: u32, n: usize) -> Vec<u32> {
    (start..).take(n).collect()
}

fn check_group(path: &Path, n: usize, size: usize) -> Result<(), DrawError> {
    DrawError::check_length(path, n)?;
    if size == 0 {
        return Err(DrawError::NotMultiple {
            path: path.to_string(),
            n,
            block: 0,
        });
    }
    Ok(())
}

fn pair_group(path: &Path, n: usize, group: Option<usize>) -> Result<usize, DrawError> {
    DrawError::check_length(path, n)?;
    let size = group.map_or(n, |group| gcd(n, group));
    if n == 0 || !n.is_multiple_of(2) || !size.is_multiple_of(2) {
        return Err(DrawError::OddPairs {
            path: path.to_string(),
            n,
            group: size,
        });
    }
    Ok(size)
}

fn block_sizes(path: &Path, n: usize, blocks: &[usize]) -> Result<Vec<usize>, DrawError> {
    DrawError::check_length(path, n)?;
    let sizes: Vec<usize> = blocks.iter().copied().filter(|size| *size != 0).collect();
    let mut length = n;
    for &block in &sizes {
        if !length.is_multiple_of(block) {
            return Err(DrawError::NotMultiple {
                path: path.to_string(),
                n: length,
                block,
            });
        }
        length = block;
    }
    Ok(sizes)
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
