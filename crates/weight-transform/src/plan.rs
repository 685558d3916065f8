//! From a configuration and a list of tensors to a recipe for each.

use std::collections::HashMap;

use crate::architecture::Family;
use crate::axis::Axis;
use crate::element::Element;
use crate::error::PlanError;
use crate::recipe::{Covers, Place, Recipe, Rule, Tensor};
use crate::scale::Coverage;

/// The two algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transform {
    /// Permutations, signs and powers of two: exact.
    Perm,
    /// Orthogonal matrices: computed in float64 and rounded.
    Orth,
}

impl Transform {
    /// The name in seal metadata.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Perm => "perm",
            Self::Orth => "orth",
        }
    }

    /// The transform of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "perm" => Some(Self::Perm),
            "orth" => Some(Self::Orth),
            _ => None,
        }
    }
}

/// The rules for one model, or one component of a pipeline.
pub struct Plan {
    family: Box<dyn Family>,
}

impl Plan {
    pub(crate) fn new(family: impl Family + 'static) -> Self {
        Self {
            family: Box::new(family),
        }
    }

    /// The name of the architecture in the rules' messages.
    #[must_use]
    pub fn architecture(&self) -> &'static str {
        self.family.name()
    }

    /// A recipe for each tensor to be written, in the order of writing: the source's, but a scale
    /// right after its weight and a tied head right after the embedding.
    pub fn recipes(&self, tensors: &[Tensor]) -> Result<Vec<Recipe>, PlanError> {
        let lookup = tensors
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.as_str(), i));
        let by_name: HashMap<&str, usize> = lookup.collect();
        let mut recipes = Vec::with_capacity(tensors.len() + 1);
        for (source, tensor) in tensors.iter().enumerate() {
            if self
                .weight_of(&tensor.name)
                .is_some_and(|weight| by_name.contains_key(&*weight))
            {
                continue;
            }
            let rule = self.rule(&tensor.name)?;
            self.check(tensor, &rule)?;
            if let Some(gain) = rule.gain.as_ref().filter(|_| rule.columns.is_dense()) {
                by_name
                    .get(gain.as_str())
                    .ok_or_else(|| PlanError::MissingTensor {
                        tensor: gain.clone(),
                        needed_by: tensor.name.clone(),
                    })?;
            }
            let scales = self.scales(source, tensor, &rule, tensors, &by_name)?;
            recipes.push(Recipe {
                source,
                tensor: tensor.clone(),
                rule,
                covers: None,
            });
            recipes.extend(scales);
            if let Some(head) = self.family.tied_head(&tensor.name)
                && !by_name.contains_key(head)
            {
                recipes.push(self.tied(source, tensor, head)?);
            }
        }
        Ok(recipes)
    }

    fn rule(&self, name: &str) -> Result<Rule, PlanError> {
        let unknown = || PlanError::UnknownTensor {
            tensor: name.to_owned(),
            architecture: self.family.name(),
        };
        let rule = match name.strip_suffix(".input_scale") {
            Some(layer) => {
                let weight = self
                    .family
                    .rule(&format!("{layer}.weight"))
                    .ok_or_else(unknown)?;
                Rule {
                    rows: Axis::Keep,
                    columns: Axis::Keep,
                    gain: None,
                    place: renamed(weight.place, ".weight", ".input_scale"),
                    ..weight
                }
            }
            None => self.family.rule(name).ok_or_else(unknown)?,
        };
        if let Place::Slot {
            experts, expert, ..
        } = &rule.place
            && *expert as usize >= experts.count
        {
            return Err(PlanError::Expert {
                tensor: name.to_owned(),
                expert: *expert,
                count: experts.count,
            });
        }
        Ok(rule)
    }

    fn tied(&self, source: usize, tensor: &Tensor, head: &str) -> Result<Recipe, PlanError> {
        let mut rule = self.rule(head)?;
        rule.place = Place::Named(head.to_owned());
        self.check(tensor, &rule)?;
        Ok(Recipe {
            source,
            tensor: tensor.clone(),
            rule,
            covers: None,
        })
    }

    /// The weight that a scale's name belongs to.
    fn weight_of(&self, name: &str) -> Option<String> {
        self.family.scale_suffixes().iter().find_map(|suffix| {
            let layer = name.strip_suffix(suffix)?;
            Some(format!("{layer}.weight"))
        })
    }

    /// The recipes of a weight's scales; an FP8 weight must have one.
    fn scales(
        &self,
        source: usize,
        weight: &Tensor,
        rule: &Rule,
        tensors: &[Tensor],
        by_name: &HashMap<&str, usize>,
    ) -> Result<Vec<Recipe>, PlanError> {
        let mut recipes = Vec::new();
        let layer = weight.name.strip_suffix(".weight");
        for suffix in layer.iter().flat_map(|_| self.family.scale_suffixes()) {
            let name = format!("{}{suffix}", layer.unwrap_or_default());
            let Some(&at) = by_name.get(name.as_str()) else {
                continue;
            };
            let shape = match weight.shape[..] {
                [rows, columns] => (rows as usize, columns as usize * codes(rule)),
                _ => return Err(shape(weight, "two dimensions under a scale")),
            };
            recipes.push(Recipe {
                source: at,
                tensor: tensors[at].clone(),
                rule: Rule {
                    gain: None,
                    place: renamed(rule.place.clone(), ".weight", suffix),
                    packed: false,
                    ..rule.clone()
                },
                covers: Some(Covers {
                    coverage: self.coverage(&tensors[at], rule, shape)?,
                    shape,
                }),
            });
        }
        if weight.element.is_fp8() && recipes.is_empty() {
            return Err(PlanError::MissingScale {
                tensor: tensors[source].name.clone(),
            });
        }
        Ok(recipes)
    }

    fn coverage(
        &self,
        scale: &Tensor,
        rule: &Rule,
        weight: (usize, usize),
    ) -> Result<Coverage, PlanError> {
        let found: Vec<usize> = scale.shape.iter().map(|d| *d as usize).collect();
        let (row_block, column_block) = self.family.scale_block(rule.packed);
        let blocks = |n: usize, block: usize| n.div_ceil(block.max(1));
        let grid = [blocks(weight.0, row_block), blocks(weight.1, column_block)];
        match found[..] {
            _ if row_block > 0 && found == grid => Ok(Coverage::Blocks(row_block, column_block)),
            [] | [1] | [1, 1] => Ok(Coverage::Whole),
            [rows] | [rows, 1] if rows == weight.0 => Ok(Coverage::Rows),
            _ => Err(shape(
                scale,
                "one scale, one a row, or one a block of its weight",
            )),
        }
    }

    fn check(&self, tensor: &Tensor, rule: &Rule) -> Result<(), PlanError> {
        if rule.rows == Axis::Keep && rule.columns == Axis::Keep {
            return Ok(());
        }
        let dense = rule.rows.is_dense() || rule.columns.is_dense();
        let suitable = match tensor.element {
            Element::I8 => rule.packed,
            Element::I64 => rule.entries.is_some(),
            element => element.has_sign_bit() && (!dense || element.is_dense()),
        };
        if !suitable {
            return Err(PlanError::Element {
                tensor: tensor.name.clone(),
            });
        }
        let fits = |axis: &Axis, at: usize, codes: usize| match axis.length() {
            None => Ok(()),
            Some(length) => match tensor.shape.get(at) {
                Some(found) if *found as usize * codes == length => Ok(()),
                _ => Err(shape(tensor, format!("dimension {at} must hold {length}"))),
            },
        };
        if tensor.shape.iter().any(|d| *d > MAX_DIMENSION) {
            return Err(shape(tensor, "no dimension above 2^31"));
        }
        fits(&rule.rows, 0, 1)?;
        fits(&rule.columns, 1, codes(rule))
    }
}

fn codes(rule: &Rule) -> usize {
    if rule.packed { 2 } else { 1 }
}

fn renamed(place: Place, from: &str, to: &str) -> Place {
    match place {
        Place::Slot {
            experts,
            expert,
            before,
            after,
        } => Place::Slot {
            after: after
                .strip_suffix(from)
                .map_or(after.clone(), |rest| format!("{rest}{to}")),
            experts,
            expert,
            before,
        },
        _ => Place::Same,
    }
}

fn shape(tensor: &Tensor, expected: impl Into<String>) -> PlanError {
    PlanError::Shape {
        tensor: tensor.name.clone(),
        found: tensor.shape.clone(),
        expected: expected.into(),
    }
}

const MAX_DIMENSION: u64 = (1 << 31) - 1;
