//! What becomes of one tensor: first in symbols ([`Recipe`]), then drawn from a key
//! ([`Prepared`]), then applied to bytes.

use std::collections::BTreeSet;
use std::sync::Arc;

use model_key::{SubkeyId, SubkeySource};

use crate::axis::{Axis, Experts};
use crate::dense;
use crate::element::{Element, widen};
use crate::error::{ApplyError, PlanError};
use crate::gather::{Layout, gather};
use crate::lane::{Drawer, Lane};
use crate::scale::{Coverage, rearrange};

/// A tensor of a checkpoint, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub element: Element,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
}

/// What a rule says about a tensor, before its shape is looked at.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub rows: Axis,
    pub columns: Axis,
    pub gain: Option<String>,
    pub place: Place,
    pub entries: Option<Experts>,
    pub packed: bool,
    pub kept_aside: bool,
}

/// The name that a tensor is stored under.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Same,
    Named(String),
    Slot {
        experts: Experts,
        expert: u32,
        before: String,
        after: String,
    },
}

/// What becomes of one source tensor. No key has been used yet.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub(crate) source: usize,
    pub(crate) tensor: Tensor,
    pub(crate) rule: Rule,
    pub(crate) covers: Option<Covers>,
}

/// The weight that a scale tensor belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Covers {
    pub coverage: Coverage,
    pub shape: (usize, usize),
}

impl Recipe {
    /// The source tensor's position in the list that the plan was given.
    #[must_use]
    pub fn source(&self) -> usize {
        self.source
    }

    /// The source tensor. The sealed one has the same element type and shape.
    #[must_use]
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// The norm gain that is folded in, which [`Prepared::apply`] needs.
    #[must_use]
    pub fn gain(&self) -> Option<&str> {
        self.rule.gain.as_deref().filter(|_| self.is_dense())
    }

    /// Whether values change in floating point, not only in place, sign and by powers of two.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.rule.rows.is_dense() || self.rule.columns.is_dense()
    }

    /// Whether the tensor is left as it is.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.rule.rows == Axis::Keep
            && self.rule.columns == Axis::Keep
            && self.rule.entries.is_none()
    }

    /// Whether the scheme keeps the tensor out of the weights, in the trusted blob.
    #[must_use]
    pub fn is_kept_aside(&self) -> bool {
        self.rule.kept_aside
    }

    /// Whether each byte holds two 4-bit codes.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.rule.packed && self.covers.is_none()
    }

    /// Where the tensor goes to one of several names that only a key decides between: the text
    /// before the slot's number, how many slots there are, and the text after it.
    #[must_use]
    pub fn slots(&self) -> Option<(&str, usize, &str)> {
        match &self.rule.place {
            Place::Slot {
                experts,
                before,
                after,
                ..
            } => Some((before, experts.count, after)),
            Place::Same | Place::Named(_) => None,
        }
    }

    /// The name that the tensor is stored under, where no key decides it.
    #[must_use]
    pub fn fixed_name(&self) -> Option<&str> {
        match &self.rule.place {
            Place::Same => Some(&self.tensor.name),
            Place::Named(name) => Some(name),
            Place::Slot { .. } => None,
        }
    }

    fn ids(&self, out: &mut Vec<SubkeyId>) -> Result<(), PlanError> {
        self.rule.rows.ids(out)?;
        self.rule.columns.ids(out)?;
        if let Some(experts) = &self.rule.entries {
            out.push(experts.id());
        }
        if let Place::Slot { experts, .. } = &self.rule.place {
            out.push(experts.id());
        }
        Ok(())
    }
}

/// Every subkey that drawing these recipes takes, sorted and without repetition.
pub fn subkeys(recipes: &[Recipe]) -> Result<Vec<SubkeyId>, PlanError> {
    let mut all = BTreeSet::new();
    let mut ids = Vec::new();
    for recipe in recipes {
        recipe.ids(&mut ids)?;
        all.extend(ids.drain(..));
    }
    Ok(all.into_iter().collect())
}

/// Draws recipes from a key, keeping what many tensors share.
pub struct Basis<'a> {
    drawer: Drawer<'a>,
}

impl<'a> Basis<'a> {
    /// A basis under the model key behind `keys`.
    #[must_use]
    pub fn new(keys: &'a dyn SubkeySource) -> Self {
        Self {
            drawer: Drawer::new(keys),
        }
    }

    /// The name that a recipe's tensor is stored under.
    pub fn stored_name(&self, recipe: &Recipe) -> Result<String, PlanError> {
        Ok(match &recipe.rule.place {
            Place::Same => recipe.tensor.name.clone(),
            Place::Named(name) => name.clone(),
            Place::Slot {
                experts,
                expert,
                before,
                after,
            } => {
                let order = self.drawer.lane(&Axis::Experts(experts.clone()))?;
                let slot = order.index.iter().position(|canonical| canonical == expert);
                let slot = slot.expect("an expert below the count has a slot");
                format!("{before}{slot}{after}")
            }
        })
    }

    /// Draws a recipe.
    pub fn prepare<'r>(&self, recipe: &'r Recipe) -> Result<Prepared<'r>, ApplyError> {
        let entries = match &recipe.rule.entries {
            Some(experts) => Some(self.drawer.lane(&Axis::Experts(experts.clone()))?),
            None => None,
        };
        Ok(Prepared {
            recipe,
            rows: self.drawer.lane(&recipe.rule.rows)?,
            columns: self.drawer.lane(&recipe.rule.columns)?,
            entries,
        })
    }
}

/// A recipe drawn from a key.
pub struct Prepared<'r> {
    recipe: &'r Recipe,
    rows: Arc<Lane>,
    columns: Arc<Lane>,
    entries: Option<Arc<Lane>>,
}

impl Prepared<'_> {
    /// Writes the sealed tensor. `source` and `out` hold the tensor's bytes, row-major and
    /// little-endian; `gain` is the tensor that [`Recipe::gain`] names. Runs on the current rayon
    /// pool; beside its arguments it holds a few hundred float64 rows at most.
    pub fn apply(
        &self,
        source: &[u8],
        gain: Option<(Element, &[u8])>,
        out: &mut [u8],
    ) -> Result<(), ApplyError> {
        let recipe = self.recipe;
        if source.len() != out.len() {
            return Err(self.length(source.len(), out.len()));
        }
        if recipe.is_unchanged() {
            out.copy_from_slice(source);
            return Ok(());
        }
        if let Some(covers) = &recipe.covers {
            return rearrange(
                recipe.tensor.element,
                covers.coverage,
                covers.shape,
                &self.rows,
                &self.columns,
                source,
                out,
            )
            .ok_or_else(|| ApplyError::BlockNotConstant {
                tensor: recipe.tensor.name.clone(),
            });
        }
        let (layout, run) = self.layout();
        let expected = layout.rows * layout.row_bytes();
        if source.len() != expected {
            return Err(self.length(source.len(), expected));
        }
        let expanded = (run > 1).then(|| Lane::clone(&self.columns).expand(run));
        let columns = expanded.as_ref().unwrap_or(&self.columns);
        if recipe.is_dense() {
            let gain = match recipe.gain() {
                Some(_) => Some(self.widen_gain(gain, layout.columns)?),
                None => None,
            };
            dense::transform(&layout, &self.rows, columns, gain.as_deref(), source, out);
        } else {
            gather(&layout, &self.rows, columns, source, out);
        }
        match &self.entries {
            Some(experts) => self.rename_entries(&experts.index, out),
            None => Ok(()),
        }
    }

    /// The tensor as a matrix, and how many neighbours of a row move together.
    fn layout(&self) -> (Layout, usize) {
        let tensor = &self.recipe.tensor;
        let dimension = |d: &u64| *d as usize;
        let rows = tensor.shape.first().map_or(1, dimension);
        let second = tensor.shape.get(1).map_or(1, dimension);
        let run: usize = tensor.shape.iter().skip(2).map(dimension).product();
        let packed = self.recipe.rule.packed;
        let layout = Layout {
            element: tensor.element,
            rows,
            columns: second * run * if packed { 2 } else { 1 },
            packed,
        };
        (layout, run)
    }

    fn widen_gain(
        &self,
        gain: Option<(Element, &[u8])>,
        columns: usize,
    ) -> Result<Vec<f64>, ApplyError> {
        let (element, bytes) = gain.unwrap_or((Element::F32, &[]));
        let width = element.width().unwrap_or(1);
        if !element.is_dense() || bytes.len() != columns * width {
            return Err(ApplyError::Gain {
                tensor: self.recipe.tensor.name.clone(),
                found: bytes.len() / width,
                expected: columns,
            });
        }
        let values = bytes.chunks_exact(width);
        Ok(values.map(|value| widen(element, value)).collect())
    }

    /// Replaces each canonical expert in a table by its slot.
    fn rename_entries(&self, order: &[u32], table: &mut [u8]) -> Result<(), ApplyError> {
        for cell in table.as_chunks_mut::<8>().0 {
            let expert = i64::from_le_bytes(*cell);
            let slot = order
                .iter()
                .position(|canonical| i64::from(*canonical) == expert)
                .ok_or_else(|| ApplyError::Entry {
                    tensor: self.recipe.tensor.name.clone(),
                    expert,
                    count: order.len(),
                })?;
            *cell = (slot as i64).to_le_bytes();
        }
        Ok(())
    }

    fn length(&self, found: usize, expected: usize) -> ApplyError {
        ApplyError::Length {
            tensor: self.recipe.tensor.name.clone(),
            found,
            expected,
        }
    }
}
