//! One folder of weights: its checkpoint, the recipes for its tensors and where they go.

use std::collections::BTreeSet;

use checkpoint::{Checkpoint, Dtype, TensorInfo, TensorSource};
use model_key::SubkeyId;
use weight_lock::Version;
use weight_transform::{Element, Plan, Recipe, Tensor};

use crate::error::SealingError;
use crate::locking::{lock_subkey, lockable};

/// Weights of one folder; the model's own are in the folder "".
pub(crate) struct Component {
    pub folder: String,
    pub checkpoint: Checkpoint,
    pub recipes: Vec<Recipe>,
    pub output: Output,
    /// The lock that its shards get.
    pub lock: Option<Version>,
}

/// Into which files a component's tensors go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    /// `model-%05d-of-%05d.safetensors` and an index.
    Sharded,
    /// The files they came in.
    SameFiles,
    /// One file of this name.
    Single(&'static str),
}

impl Component {
    pub(crate) fn new(
        folder: &str,
        checkpoint: Checkpoint,
        plan: &Plan,
        output: Output,
        lock: Option<Version>,
    ) -> Result<Self, SealingError> {
        let tensors: Vec<Tensor> = checkpoint.tensors().iter().map(tensor).collect();
        Ok(Self {
            folder: folder.to_owned(),
            recipes: plan.recipes(&tensors)?,
            checkpoint,
            output,
            lock,
        })
    }

    /// The source tensor of a recipe.
    pub(crate) fn source(&self, recipe: &Recipe) -> &TensorInfo {
        &self.checkpoint.tensors()[recipe.source()]
    }

    /// A file's path in the directory.
    pub(crate) fn path(&self, file: &str) -> String {
        crate::locking::tensor_id(&self.folder, file)
    }

    /// The subkeys of its lock, whichever slots its experts get.
    pub(crate) fn lock_subkeys(&self, out: &mut Vec<SubkeyId>) -> Result<(), SealingError> {
        let Some(version) = self.lock else {
            return Ok(());
        };
        let mut slots = BTreeSet::new();
        for recipe in self.recipes.iter().filter(|recipe| !recipe.is_kept_aside()) {
            let source = self.source(recipe);
            if lockable(version, source.dtype, recipe.is_packed(), source.bytes).is_none() {
                continue;
            }
            if let Some(name) = recipe.fixed_name() {
                out.push(lock_subkey(version, &self.folder, name)?);
            } else if let Some(slot) = recipe.slots() {
                slots.insert(slot);
            }
        }
        for (before, count, after) in slots {
            for slot in 0..count {
                let name = format!("{before}{slot}{after}");
                out.push(lock_subkey(version, &self.folder, &name)?);
            }
        }
        Ok(())
    }
}

fn tensor(info: &TensorInfo) -> Tensor {
    Tensor {
        name: info.name.clone(),
        element: element(info.dtype),
        shape: info.shape.clone(),
    }
}

/// The transform's view of an element type.
pub(crate) fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::BF16 => Element::Bf16,
        Dtype::F16 => Element::F16,
        Dtype::F32 => Element::F32,
        Dtype::F8_E4M3 => Element::F8E4M3,
        Dtype::F8_E5M2 => Element::F8E5M2,
        Dtype::F8_E8M0 => Element::F8E8M0,
        Dtype::I8 => Element::I8,
        Dtype::I64 => Element::I64,
        _ => Element::Other,
    }
}
