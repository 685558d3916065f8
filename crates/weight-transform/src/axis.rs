//! What happens along one axis of a tensor, in symbols: sizes and derivation paths, no key.
//!
//! Each [`Axis`] knows its length, so that a tensor's shape is checked before anything is drawn,
//! and the subkeys that drawing it takes.

use std::num::NonZeroUsize;

use model_key::{
    Component, DrawError, Exponents, Part, Path, Scope, ScopedSite, Site, SubkeyId, blocks_ids,
    pairs_ids, permutation_id, signed_permutation_ids, stream_id,
};

/// What happens along one axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Axis {
    /// Nothing.
    Keep,
    /// A residual stream, read (columns) or written (rows).
    Residual(Residual),
    /// A residual stream's unsigned positions: a norm gain. Ones where the gain is folded.
    Gain(Residual),
    /// The latent basis B: `W B^T` along columns, `B W` along rows.
    LatentBasis {
        /// Side of the basis.
        width: usize,
    },
    /// Token ids.
    Tokens(Tokens),
    /// The experts of a layer.
    Experts(Experts),
    /// Query or key heads, gathered, each turned in its rotary planes.
    Turned(Heads),
    /// A gain over one head's positions, which follow the turns.
    TurnedGain(Turns),
    /// Value heads, each rotated, gathered.
    Rotated(Values),
    /// An MLP's hidden dimension.
    Hidden(Mlp, Role),
    /// Packed `[q, k, v]` per head: turned with a signed pass-through, and rotated.
    Packed {
        /// The heads.
        heads: Heads,
        /// The value rotation.
        values: Values,
    },
    /// A permutation, each of whose positions stands for `run` neighbours.
    Permuted(Permuted),
    /// Parts one after another.
    Concat(Vec<Axis>),
}

/// A residual stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Residual {
    pub component: Component,
    pub width: usize,
    pub form: ResidualForm,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ResidualForm {
    /// The signed permutation S(site, width, blocks).
    Signed { site: Site, blocks: Vec<usize> },
    /// The matrix Orthogonal("residual", width).
    Orthogonal,
}

/// The vocabulary: ids below `start` and from `regular` on stay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Tokens {
    pub component: Component,
    pub start: usize,
    pub regular: usize,
    pub size: usize,
}

/// The experts of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Experts {
    pub component: Component,
    pub scope: Scope,
    pub count: usize,
}

/// Heads that move whole, in groups.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Heads {
    pub turns: Turns,
    pub site: ScopedSite,
    /// Groups that are permuted.
    pub groups: usize,
    /// Heads in a group, which keep their order.
    pub group: usize,
}

/// The rotary planes (j, j + planes) of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Turns {
    pub component: Component,
    pub scope: Scope,
    pub head_dim: usize,
    /// Rotary planes; positions from 2 * planes on pass through a signed permutation.
    pub planes: usize,
}

/// Value heads with a rotation for each group.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Values {
    pub component: Component,
    pub scope: Scope,
    pub site: ScopedSite,
    pub groups: usize,
    pub group: usize,
    pub head_dim: usize,
    pub orthogonal: bool,
}

/// An MLP's hidden dimension.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Mlp {
    pub component: Component,
    pub scope: Scope,
    pub site: ScopedSite,
    pub width: usize,
    pub block: usize,
    pub scales: Scales,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scales {
    /// Signed powers of two.
    Powers,
    /// Signed powers of two, one exponent for a block of the MLP's block size.
    BlockPowers,
    /// Signs of the same stream; exponents are zero.
    PowerSigns,
    /// Signs of a stream of their own, taken through the permutation.
    Signs,
}

/// Which projection of an MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Gate,
    Up,
    Down,
}

/// A plain permutation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Permuted {
    pub component: Component,
    pub site: Site,
    pub width: usize,
    /// Whether neighbours (2k, 2k + 1) stay together.
    pub pairs: bool,
    /// How often the permutation repeats, one copy after another.
    pub copies: usize,
    /// How many neighbours each position stands for.
    pub run: usize,
}

impl Axis {
    /// Elements along the axis; `None`: any number.
    pub(crate) fn length(&self) -> Option<usize> {
        Some(match self {
            Self::Keep => return None,
            Self::Residual(residual) | Self::Gain(residual) => residual.width,
            Self::LatentBasis { width } => *width,
            Self::Tokens(tokens) => tokens.size,
            Self::Experts(experts) => experts.count,
            Self::Turned(heads) => heads.groups * heads.group * heads.turns.head_dim,
            Self::TurnedGain(turns) => turns.head_dim,
            Self::Rotated(values) => values.groups * values.group * values.head_dim,
            Self::Hidden(mlp, _) => mlp.width,
            Self::Packed { heads, .. } => 3 * heads.groups * heads.group * heads.turns.head_dim,
            Self::Permuted(permuted) => permuted.width * permuted.copies * permuted.run,
            Self::Concat(parts) => return parts.iter().map(Self::length).sum(),
        })
    }

    /// Whether values mix along the axis, so that they change in floating point.
    pub(crate) fn is_dense(&self) -> bool {
        match self {
            Self::Residual(residual) => residual.form == ResidualForm::Orthogonal,
            Self::LatentBasis { .. } => true,
            Self::Rotated(values) => values.orthogonal,
            Self::Packed { values, .. } => values.orthogonal,
            Self::Concat(parts) => parts.iter().any(Self::is_dense),
            _ => false,
        }
    }

    /// Adds the subkeys that drawing the axis takes.
    pub(crate) fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        match self {
            Self::Keep => {}
            Self::Residual(residual) => residual.ids(out)?,
            Self::Gain(residual) => {
                if residual.form != ResidualForm::Orthogonal {
                    residual.ids(out)?;
                }
            }
            Self::LatentBasis { .. } => out.push(stream_id(
                Component::ZImageLatent,
                &Path::new(Site::LatentBasis),
            )),
            Self::Tokens(tokens) => {
                out.push(permutation_id(tokens.component, &Path::new(Site::Vocab)));
            }
            Self::Experts(experts) => out.push(experts.id()),
            Self::Turned(heads) => heads.ids(out)?,
            Self::TurnedGain(turns) => turns.ids(out)?,
            Self::Rotated(values) => values.ids(out)?,
            Self::Hidden(mlp, role) => mlp.ids(*role, out)?,
            Self::Packed { heads, values } => {
                heads.ids(out)?;
                values.ids(out)?;
            }
            Self::Permuted(permuted) => permuted.ids(out)?,
            Self::Concat(parts) => parts.iter().try_for_each(|part| part.ids(out))?,
        }
        Ok(())
    }
}

impl Residual {
    fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        match &self.form {
            ResidualForm::Signed { site, blocks } => out.extend(signed_permutation_ids(
                self.component,
                &Path::new(*site),
                self.width,
                blocks,
            )?),
            ResidualForm::Orthogonal => {
                out.push(stream_id(self.component, &Path::new(Site::Residual)));
            }
        }
        Ok(())
    }
}

impl Experts {
    pub(crate) fn path(&self) -> Path {
        Path::scoped(self.scope, ScopedSite::Experts)
    }

    pub(crate) fn id(&self) -> SubkeyId {
        permutation_id(self.component, &self.path())
    }
}

impl Heads {
    pub(crate) fn path(&self) -> Path {
        Path::scoped(self.turns.scope, self.site)
    }

    fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        out.push(permutation_id(self.turns.component, &self.path()));
        self.turns.ids(out)
    }
}

impl Turns {
    pub(crate) fn path(&self) -> Path {
        Path::scoped(self.scope, ScopedSite::Turns)
    }

    pub(crate) fn pass_path(&self) -> Path {
        Path::scoped(self.scope, ScopedSite::Pass)
    }

    /// Positions that are not rotated.
    pub(crate) fn pass(&self) -> usize {
        self.head_dim - 2 * self.planes
    }

    fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        out.push(stream_id(self.component, &self.path()));
        if self.pass() > 0 {
            let path = self.pass_path();
            out.extend(signed_permutation_ids(
                self.component,
                &path,
                self.pass(),
                &[],
            )?);
        }
        Ok(())
    }
}

impl Values {
    pub(crate) fn order_path(&self) -> Path {
        Path::scoped(self.scope, self.site)
    }

    pub(crate) fn matrix_path(&self) -> Path {
        Path::scoped(self.scope, ScopedSite::V)
    }

    pub(crate) fn head_path(&self, head: u32) -> Path {
        Path::scoped(self.scope, ScopedSite::VPerm(head))
    }

    fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        out.push(permutation_id(self.component, &self.order_path()));
        if self.orthogonal {
            out.push(stream_id(self.component, &self.matrix_path()));
            return Ok(());
        }
        for head in 0..self.groups as u32 {
            let path = self.head_path(head);
            out.extend(signed_permutation_ids(
                self.component,
                &path,
                self.head_dim,
                &[],
            )?);
        }
        Ok(())
    }
}

impl Mlp {
    pub(crate) fn path(&self) -> Path {
        Path::scoped(self.scope, self.site)
    }

    /// The block sizes of the permutation.
    pub(crate) fn blocks(&self) -> [usize; 1] {
        [self.block]
    }

    /// How exponents lie, where the scales are powers of two.
    pub(crate) fn exponents(&self) -> Option<Exponents> {
        match self.scales {
            Scales::Powers => Some(Exponents::Each),
            Scales::BlockPowers => {
                Some(NonZeroUsize::new(self.block).map_or(Exponents::Zero, Exponents::PerBlock))
            }
            Scales::PowerSigns => Some(Exponents::Zero),
            Scales::Signs => None,
        }
    }

    fn ids(&self, role: Role, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        let path = self.path();
        out.extend(blocks_ids(
            self.component,
            &path,
            self.width,
            &self.blocks(),
        )?);
        if role != Role::Gate {
            let part = match self.scales {
                Scales::Signs => Part::SignStream,
                _ => Part::ScaleStream,
            };
            out.push(stream_id(self.component, &path.then(part)));
        }
        Ok(())
    }
}

impl Permuted {
    fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), DrawError> {
        let path = Path::new(self.site);
        if self.pairs {
            out.extend(pairs_ids(self.component, &path, self.width, None)?);
        } else {
            out.push(permutation_id(self.component, &path));
        }
        Ok(())
    }
}
