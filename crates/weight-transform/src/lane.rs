//! An axis drawn from a key: for each output position, what it takes from the source.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use faer::MatRef;
use model_key::{
    Component, DrawError, Orthogonal, Path, Scoped, Site, SubkeySource, blocks, high_signs,
    orthogonal, pairs, permutation, scales, signed_permutation, turns,
};

use crate::axis::{
    Axis, Heads, Mlp, Permuted, Residual, ResidualForm, Role, Tokens, Turns, Values,
};

/// A drawn axis.
///
/// Output position `i` takes source position `index[i]`, negated where `flip[i]`, times
/// `2^exponent[i]`. Empty vectors stand for the identity, no flips and no scaling. Inside a
/// [`Mix`], the positions so taken are then multiplied by its matrix.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lane {
    pub index: Vec<u32>,
    pub flip: Vec<bool>,
    pub exponent: Vec<i8>,
    pub zeros: Vec<Zero>,
    pub mixes: Vec<Mix>,
    /// Norm gains along this axis are written as ones.
    pub ones: bool,
}

/// How the sign of a zero comes about at one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zero {
    /// It flips as any value does.
    Follow,
    /// A sum that starts at +0: it becomes +0.
    Positive,
    /// A quarter turn adds a zero times the partner position: the result is -0 only where both
    /// are. The partner's sign counts negated where `flip`.
    Partner { index: u32, flip: bool },
}

/// Output positions `start..start + side` are the taken ones times a square matrix.
#[derive(Debug, Clone)]
pub(crate) struct Mix {
    pub start: usize,
    pub matrix: Matrix,
}

/// A square matrix M: `out[o] = sum over k of taken[k] * M[k][o]`.
#[derive(Debug, Clone)]
pub(crate) struct Matrix {
    drawn: Arc<Orthogonal>,
    which: usize,
    transposed: bool,
}

impl Matrix {
    /// Rows, and columns.
    pub(crate) fn side(&self) -> usize {
        self.drawn.n()
    }

    pub(crate) fn view(&self) -> MatRef<'_, f64> {
        let view =
            MatRef::from_row_major_slice(self.drawn.matrix(self.which), self.side(), self.side());
        if self.transposed {
            view.transpose()
        } else {
            view
        }
    }
}

impl Lane {
    /// Whether every position keeps its place, sign and magnitude.
    pub(crate) fn is_identity(&self) -> bool {
        self.index.is_empty() && self.mixes.is_empty() && !self.ones
    }

    /// The source position that output position `i` takes.
    pub(crate) fn source(&self, i: usize) -> usize {
        self.index.get(i).map_or(i, |index| *index as usize)
    }

    /// -1 or 1.
    pub(crate) fn sign(&self, i: usize) -> f64 {
        if self.flip.get(i).copied().unwrap_or(false) {
            -1.0
        } else {
            1.0
        }
    }

    /// The exponent at output position `i`.
    pub(crate) fn power(&self, i: usize) -> i8 {
        self.exponent.get(i).copied().unwrap_or(0)
    }

    /// Appends a lane over source positions from `offset` on, `length` long.
    fn append(&mut self, other: Self, offset: usize, length: usize) {
        let at = self.index.len();
        let shift = offset as u32;
        if other.index.is_empty() {
            self.index.extend((0..length as u32).map(|i| i + shift));
        } else {
            self.index.extend(other.index.iter().map(|i| i + shift));
        }
        extend_or(&mut self.flip, other.flip, at, length, false);
        extend_or(&mut self.exponent, other.exponent, at, length, 0);
        let zeros = other.zeros.into_iter().map(|zero| match zero {
            Zero::Partner { index, flip } => Zero::Partner {
                index: index + shift,
                flip,
            },
            zero => zero,
        });
        extend_or(&mut self.zeros, zeros.collect(), at, length, Zero::Follow);
        self.mixes.extend(other.mixes.into_iter().map(|mix| Mix {
            start: mix.start + at,
            ..mix
        }));
    }

    /// Each position standing for `run` neighbours.
    pub(crate) fn expand(self, run: usize) -> Self {
        if run == 1 || self.index.is_empty() {
            return self;
        }
        let each = |n: usize| 0..n as u32;
        Self {
            index: self
                .index
                .iter()
                .flat_map(|i| each(run).map(move |j| i * run as u32 + j))
                .collect(),
            flip: repeat(&self.flip, run),
            exponent: repeat(&self.exponent, run),
            zeros: repeat(&self.zeros, run),
            mixes: self.mixes,
            ones: self.ones,
        }
    }
}

fn repeat<T: Copy>(values: &[T], run: usize) -> Vec<T> {
    values
        .iter()
        .flat_map(|value| std::iter::repeat_n(*value, run))
        .collect()
}

fn extend_or<T: Copy>(out: &mut Vec<T>, values: Vec<T>, at: usize, length: usize, default: T) {
    if values.is_empty() {
        if !out.is_empty() {
            out.resize(at + length, default);
        }
        return;
    }
    out.resize(at, default);
    out.extend(values);
}

/// Draws axes and keeps those that many tensors share.
pub(crate) struct Drawer<'a> {
    keys: &'a dyn SubkeySource,
    shared: Mutex<HashMap<Axis, Arc<Lane>>>,
}

impl<'a> Drawer<'a> {
    pub(crate) fn new(keys: &'a dyn SubkeySource) -> Self {
        Self {
            keys,
            shared: Mutex::default(),
        }
    }

    /// The drawn axis.
    pub(crate) fn lane(&self, axis: &Axis) -> Result<Arc<Lane>, DrawError> {
        let shared = matches!(
            axis,
            Axis::Residual(_)
                | Axis::Gain(_)
                | Axis::Tokens(_)
                | Axis::Experts(_)
                | Axis::LatentBasis { .. }
        );
        if !shared {
            return Ok(Arc::new(self.draw(axis)?));
        }
        let mut held = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = held.get(axis) {
            return Ok(Arc::clone(lane));
        }
        let lane = Arc::new(self.draw(axis)?);
        held.insert(axis.clone(), Arc::clone(&lane));
        Ok(lane)
    }

    fn draw(&self, axis: &Axis) -> Result<Lane, DrawError> {
        match axis {
            Axis::Keep => Ok(Lane::default()),
            Axis::Residual(residual) => self.residual(residual),
            Axis::Gain(residual) => match residual.form {
                ResidualForm::Orthogonal => Ok(Lane {
                    ones: true,
                    ..Lane::default()
                }),
                ResidualForm::Signed { .. } => Ok(Lane {
                    index: self.residual(residual)?.index,
                    ..Lane::default()
                }),
            },
            Axis::LatentBasis { width } => self.latent_basis(*width),
            Axis::Tokens(tokens) => self.tokens(tokens).map(moves),
            Axis::Experts(experts) => {
                let scoped = Scoped::new(self.keys, experts.component);
                permutation(&scoped, &experts.path(), experts.count).map(moves)
            }
            Axis::Turned(heads) => self.turned(heads),
            Axis::TurnedGain(turns) => {
                let head = self.turned_head(turns)?;
                Ok(moves(head.index))
            }
            Axis::Rotated(values) => self.rotated(values),
            Axis::Hidden(mlp, role) => self.hidden(mlp, *role),
            Axis::Packed { heads, values } => self.packed(heads, values),
            Axis::Permuted(permuted) => self.permuted(permuted),
            Axis::Concat(parts) => self.concat(parts),
        }
    }

    fn residual(&self, residual: &Residual) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, residual.component);
        match &residual.form {
            ResidualForm::Signed { site, blocks } => {
                let drawn = signed_permutation(&scoped, &Path::new(*site), residual.width, blocks)?;
                Ok(signed(drawn.index, &drawn.sign))
            }
            ResidualForm::Orthogonal => {
                let path = Path::new(Site::Residual);
                let drawn = Arc::new(orthogonal(&scoped, &path, residual.width, 1)?);
                Ok(mixed(drawn, 0, false))
            }
        }
    }

    fn latent_basis(&self, width: usize) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, Component::ZImageLatent);
        let basis = orthogonal(&scoped, &Path::new(Site::LatentBasis), width, 1)?;
        Ok(mixed(Arc::new(basis), 0, true))
    }

    fn tokens(&self, tokens: &Tokens) -> Result<Vec<u32>, DrawError> {
        let scoped = Scoped::new(self.keys, tokens.component);
        token_order(&scoped, tokens)
    }

    fn turned(&self, heads: &Heads) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, heads.turns.component);
        let order = permutation(&scoped, &heads.path(), heads.groups)?;
        let head = self.turned_head(&heads.turns)?;
        let dim = heads.turns.head_dim;
        let mut lane = Lane::default();
        for group in order {
            for member in 0..heads.group {
                let from = (group as usize * heads.group + member) * dim;
                lane.append(head.clone(), from, dim);
            }
        }
        Ok(lane)
    }

    /// One head: plane (j, j + planes) turned by t quarters gives
    /// (a cos - b sin, b cos + a sin); the rest passes through its signed permutation.
    fn turned_head(&self, turns: &Turns) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, turns.component);
        let quarters = self::turns(&scoped, &turns.path(), turns.planes)?;
        let planes = turns.planes as u32;
        let mut lane = Lane::default();
        for upper in [false, true] {
            for (j, quarter) in (0_u32..).zip(&quarters) {
                let (own, other) = if upper {
                    (j + planes, j)
                } else {
                    (j, j + planes)
                };
                let odd = quarter % 2 == 1;
                // cos and sin are 1, 0, -1, 0 and 0, 1, 0, -1. One of them is a zero: +0 for the
                // sums, so the lower half subtracts it and the upper half adds it.
                let (taken, partner) = if odd { (other, own) } else { (own, other) };
                let flip = matches!((quarter, upper), (1, false) | (2, _) | (3, true));
                lane.index.push(taken);
                lane.flip.push(flip);
                lane.zeros.push(Zero::Partner {
                    index: partner,
                    // Lower: a cos - b sin, where sin = 0 gives -(b * 0) and cos = 0 gives a * 0.
                    flip: !upper && !odd,
                });
            }
        }
        if turns.pass() > 0 {
            let drawn = signed_permutation(&scoped, &turns.pass_path(), turns.pass(), &[])?;
            let offset = 2 * turns.planes;
            lane.append(signed(drawn.index, &drawn.sign), offset, turns.pass());
        }
        Ok(lane)
    }

    fn rotated(&self, values: &Values) -> Result<Lane, DrawError> {
        let rotations = self.rotations(values)?;
        let scoped = Scoped::new(self.keys, values.component);
        let order = permutation(&scoped, &values.order_path(), values.groups)?;
        let mut lane = Lane::default();
        for group in order {
            for member in 0..values.group {
                let from = (group as usize * values.group + member) * values.head_dim;
                lane.append(rotations[group as usize].clone(), from, values.head_dim);
            }
        }
        Ok(lane)
    }

    /// One head's rotation for each group.
    fn rotations(&self, values: &Values) -> Result<Vec<Lane>, DrawError> {
        let scoped = Scoped::new(self.keys, values.component);
        let dim = values.head_dim;
        if values.orthogonal {
            let all = Arc::new(orthogonal(
                &scoped,
                &values.matrix_path(),
                dim,
                values.groups,
            )?);
            return Ok((0..values.groups)
                .map(|group| mixed(Arc::clone(&all), group, false))
                .collect());
        }
        (0..values.groups as u32)
            .map(|head| {
                let drawn = signed_permutation(&scoped, &values.head_path(head), dim, &[])?;
                Ok(Lane {
                    zeros: vec![Zero::Positive; dim],
                    ..signed(drawn.index, &drawn.sign)
                })
            })
            .collect()
    }

    fn hidden(&self, mlp: &Mlp, role: Role) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, mlp.component);
        let path = mlp.path();
        let index = blocks(&scoped, &path, mlp.width, &mlp.blocks())?;
        if role == Role::Gate {
            return Ok(moves(index));
        }
        let at = |i: &u32| *i as usize;
        let Some(exponents) = mlp.exponents() else {
            let sign = high_signs(&scoped, &path, mlp.width)?;
            let flip = index.iter().map(|i| sign[at(i)] < 0).collect();
            return Ok(Lane {
                index,
                flip,
                ..Lane::default()
            });
        };
        let drawn = scales(&scoped, &path, mlp.width, exponents)?;
        let turn = if role == Role::Down { -1 } else { 1 };
        Ok(Lane {
            flip: index.iter().map(|i| drawn.sign[at(i)] < 0).collect(),
            exponent: index.iter().map(|i| turn * drawn.exponent[at(i)]).collect(),
            index,
            ..Lane::default()
        })
    }

    fn packed(&self, heads: &Heads, values: &Values) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, heads.turns.component);
        let order = permutation(&scoped, &heads.path(), heads.groups)?;
        let turned = self.turned_head(&heads.turns)?;
        let rotations = self.rotations(values)?;
        let dim = heads.turns.head_dim;
        let mut lane = Lane::default();
        for head in order {
            let from = 3 * head as usize * dim;
            lane.append(turned.clone(), from, dim);
            lane.append(turned.clone(), from + dim, dim);
            lane.append(rotations[head as usize].clone(), from + 2 * dim, dim);
        }
        Ok(lane)
    }

    fn permuted(&self, permuted: &Permuted) -> Result<Lane, DrawError> {
        let scoped = Scoped::new(self.keys, permuted.component);
        let path = Path::new(permuted.site);
        let one = if permuted.pairs {
            pairs(&scoped, &path, permuted.width, None)?
        } else {
            permutation(&scoped, &path, permuted.width)?
        };
        let index = (0..permuted.copies as u32)
            .flat_map(|copy| one.iter().map(move |i| i + copy * permuted.width as u32))
            .collect();
        Ok(moves(index).expand(permuted.run))
    }

    fn concat(&self, parts: &[Axis]) -> Result<Lane, DrawError> {
        let mut lane = Lane::default();
        for part in parts {
            let length = part.length().unwrap_or_default();
            let offset = lane.index.len();
            lane.append((*self.lane(part)?).clone(), offset, length);
        }
        Ok(lane)
    }
}

/// Pi: `order[id]` is the canonical id whose row protected `id` holds.
pub(crate) fn token_order(scoped: &Scoped<'_>, tokens: &Tokens) -> Result<Vec<u32>, DrawError> {
    let regular = tokens.regular - tokens.start;
    let drawn = permutation(scoped, &Path::new(Site::Vocab), regular)?;
    let start = tokens.start as u32;
    Ok((0..start)
        .chain(drawn.into_iter().map(|i| i + start))
        .chain(tokens.regular as u32..tokens.size as u32)
        .collect())
}

fn moves(index: Vec<u32>) -> Lane {
    Lane {
        index,
        ..Lane::default()
    }
}

fn signed(index: Vec<u32>, sign: &[i8]) -> Lane {
    Lane {
        index,
        flip: sign.iter().map(|sign| *sign < 0).collect(),
        ..Lane::default()
    }
}

fn mixed(drawn: Arc<Orthogonal>, which: usize, transposed: bool) -> Lane {
    Lane {
        index: (0..drawn.n() as u32).collect(),
        mixes: vec![Mix {
            start: 0,
            matrix: Matrix {
                drawn,
                which,
                transposed,
            },
        }],
        ..Lane::default()
    }
}
