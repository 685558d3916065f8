//! Which token ids the vocabulary permutation moves.

use std::collections::BTreeSet;

use model_key::{Component, DrawError, Scoped, SubkeySource, inverse};
use serde_json::Value;

use crate::axis::Tokens;
use crate::error::PlanError;
use crate::lane::token_order;

/// The ids `start..regular` of a tokenizer move; the others keep their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vocabulary {
    /// The first id that may move: the added tokens before it stand at the very start.
    pub start: usize,
    /// Entries of the tokenizer's `model.vocab`.
    pub regular: usize,
}

impl Vocabulary {
    /// Reads a `tokenizer.json`. Its ids must be contiguous from 0, and no added token may sit
    /// inside the regular vocabulary but in a run at its start.
    pub fn of_tokenizer(tokenizer: &Value) -> Result<Self, PlanError> {
        let problem = |problem: String| PlanError::Tokenizer { problem };
        let vocab = tokenizer
            .pointer("/model/vocab")
            .and_then(Value::as_object)
            .ok_or_else(|| problem("model.vocab is not an object".into()))?;
        let mut seen = vec![false; vocab.len()];
        for id in vocab.values() {
            let slot = id
                .as_u64()
                .and_then(|id| seen.get_mut(usize::try_from(id).ok()?));
            match slot {
                Some(slot) if !*slot => *slot = true,
                Some(_) => {
                    return Err(problem(format!("model.vocab gives id {id} to two tokens")));
                }
                None => {
                    return Err(problem(format!(
                        "model.vocab's ids are not contiguous from 0: {id} of {}",
                        vocab.len()
                    )));
                }
            }
        }
        let regular = vocab.len();
        let inside = added_ids(tokenizer)
            .map_err(problem)?
            .into_iter()
            .filter(|id| *id < regular as u64)
            .collect::<BTreeSet<_>>();
        let start = (0_u64..)
            .zip(&inside)
            .take_while(|(i, id)| i == *id)
            .count();
        if let Some(id) = inside.iter().nth(start) {
            return Err(problem(format!(
                "added token {id} sits inside the regular vocabulary of {regular}"
            )));
        }
        Ok(Self { start, regular })
    }

    /// The protected id of each canonical one, below `regular`.
    pub fn protected_ids(
        self,
        keys: &dyn SubkeySource,
        component: Component,
    ) -> Result<Vec<u32>, DrawError> {
        let order = token_order(
            &Scoped::new(keys, component),
            &Tokens {
                component,
                start: self.start,
                regular: self.regular,
                size: self.regular,
            },
        )?;
        Ok(inverse(&order))
    }

    pub(crate) fn tokens(self, component: Component, size: usize) -> Result<Tokens, PlanError> {
        if self.start > self.regular || self.regular > size {
            return Err(PlanError::Tokenizer {
                problem: format!(
                    "model.vocab has {} entries, more than vocab_size {size}",
                    self.regular
                ),
            });
        }
        Ok(Tokens {
            component,
            start: self.start,
            regular: self.regular,
            size,
        })
    }
}

fn added_ids(tokenizer: &Value) -> Result<Vec<u64>, String> {
    let Some(added) = tokenizer
        .get("added_tokens")
        .filter(|added| !added.is_null())
    else {
        return Ok(Vec::new());
    };
    let added = added.as_array().ok_or("added_tokens is not a list")?;
    let id = |token: &Value| token.get("id").and_then(Value::as_u64);
    added
        .iter()
        .enumerate()
        .map(|(k, token)| id(token).ok_or_else(|| format!("added_tokens[{k}] has no id")))
        .collect()
}
