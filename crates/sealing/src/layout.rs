//! Which output file each tensor goes to.

use std::collections::HashMap;

use checkpoint::{CheckpointError, PlannedShard, SHARD_LIMIT, ShardPlan, TensorSpec};
use weight_transform::{Basis, Recipe};

use crate::component::{Component, Output};
use crate::error::SealingError;

/// One file of weights to be written.
pub(crate) struct OutputShard<'a> {
    pub component: &'a Component,
    pub planned: PlannedShard,
    /// The recipe for each tensor of `planned`; `None`: the file is copied whole.
    pub recipes: Option<Vec<&'a Recipe>>,
}

/// Lays out a component's files; the key decides the order of experts. Indexes are added with
/// their path and text.
pub(crate) fn lay_out<'a>(
    component: &'a Component,
    basis: &Basis<'_>,
    shards: &mut Vec<OutputShard<'a>>,
    indexes: &mut Vec<(String, String)>,
) -> Result<(), SealingError> {
    let mut named = Vec::with_capacity(component.recipes.len());
    for recipe in component
        .recipes
        .iter()
        .filter(|recipe| !recipe.is_kept_aside())
    {
        named.push((basis.stored_name(recipe)?, recipe));
    }
    let spec = |name: &str, recipe: &Recipe| {
        let info = component.source(recipe);
        TensorSpec {
            name: name.to_owned(),
            dtype: info.dtype,
            shape: info.shape.clone(),
        }
    };
    let specs = |wanted: &[(String, &Recipe)]| -> Vec<TensorSpec> {
        wanted
            .iter()
            .map(|(name, recipe)| spec(name, recipe))
            .collect()
    };
    let unchanged = named.iter().all(|(_, recipe)| recipe.is_unchanged());
    match component.output {
        Output::Sharded => {
            let plan = ShardPlan::new(specs(&named), SHARD_LIMIT).map_err(CheckpointError::from)?;
            indexes.push((
                component.path("model.safetensors.index.json"),
                plan.index_json(),
            ));
            for planned in plan.shards() {
                shards.push(output_shard(component, planned.clone(), &named));
            }
        }
        Output::Single(file) => {
            let planned = PlannedShard::new(file, specs(&named)).map_err(CheckpointError::from)?;
            shards.push(output_shard(component, planned, &named));
        }
        Output::SameFiles => {
            for (number, shard) in component.checkpoint.shards().iter().enumerate() {
                let own =
                    |(_, recipe): &&(String, &'a Recipe)| component.source(recipe).shard == number;
                let own: Vec<_> = named.iter().filter(own).cloned().collect();
                let planned = if unchanged {
                    let tensors = shard.header().tensors().iter().map(TensorSpec::from);
                    PlannedShard::in_order(shard.name(), tensors.collect())
                } else {
                    PlannedShard::new(shard.name(), specs(&own))
                };
                let planned = planned.map_err(CheckpointError::from)?;
                if unchanged && component.lock.is_none() {
                    shards.push(OutputShard {
                        component,
                        planned,
                        recipes: None,
                    });
                } else {
                    shards.push(output_shard(component, planned, &own));
                }
            }
        }
    }
    Ok(())
}

fn output_shard<'a>(
    component: &'a Component,
    planned: PlannedShard,
    named: &[(String, &'a Recipe)],
) -> OutputShard<'a> {
    let by_name: HashMap<&str, &'a Recipe> = named
        .iter()
        .map(|(name, recipe)| (name.as_str(), *recipe))
        .collect();
    let recipes = planned
        .tensors()
        .iter()
        .map(|info| by_name[info.name.as_str()]);
    OutputShard {
        component,
        recipes: Some(recipes.collect()),
        planned,
    }
}
