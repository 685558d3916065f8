//! JSON files that are rewritten under a key.

use checkpoint::json::{Style, Value, write};
use model_key::SubkeySource;

use crate::error::SealingError;
use crate::scheme::Tokens;

/// `tokenizer.json` with the ids of `model.vocab` through Pi's inverse.
pub(crate) fn tokenizer(
    value: &Value,
    tokens: Tokens,
    keys: &dyn SubkeySource,
) -> Result<String, SealingError> {
    let ids = tokens.vocabulary.protected_ids(keys, tokens.component)?;
    let mut value = value.clone();
    if let Some(vocab) = value
        .get_mut("model")
        .and_then(|model| model.get_mut("vocab"))
    {
        protect("tokenizer.json", vocab, &ids)?;
    }
    Ok(write(&value, Style::Utf8))
}

/// `vocab.json` with its ids through Pi's inverse.
pub(crate) fn vocabulary(
    file: &str,
    value: &Value,
    tokens: Tokens,
    keys: &dyn SubkeySource,
) -> Result<String, SealingError> {
    let ids = tokens.vocabulary.protected_ids(keys, tokens.component)?;
    let mut value = value.clone();
    protect(file, &mut value, &ids)?;
    Ok(write(&value, Style::Utf8))
}

/// Gathers every `latents_mean` and `latents_std` list of as many entries as `order`.
pub(crate) fn latent_statistics(value: &Value, order: &[u32]) -> String {
    let mut value = value.clone();
    gather_statistics(&mut value, order);
    write(&value, Style::Indented)
}

fn gather_statistics(value: &mut Value, order: &[u32]) {
    match value {
        Value::Object(entries) => {
            for (name, entry) in entries {
                match entry {
                    Value::Array(items)
                        if matches!(name.as_str(), "latents_mean" | "latents_std")
                            && items.len() == order.len() =>
                    {
                        let gathered = order.iter().map(|i| items[*i as usize].clone());
                        *items = gathered.collect();
                    }
                    entry => gather_statistics(entry, order),
                }
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| gather_statistics(item, order)),
        _ => {}
    }
}

fn protect(file: &str, vocab: &mut Value, ids: &[u32]) -> Result<(), SealingError> {
    let Value::Object(entries) = vocab else {
        return Err(SealingError::File {
            file: file.to_owned(),
            problem: "the vocabulary is not an object".to_owned(),
        });
    };
    for (_, value) in entries {
        let id = value.as_u64().ok_or_else(|| SealingError::File {
            file: file.to_owned(),
            problem: "an id is not a whole number".to_owned(),
        })?;
        if let Some(protected) = usize::try_from(id).ok().and_then(|id| ids.get(id)) {
            *value = u64::from(*protected).into();
        }
    }
    Ok(())
}
