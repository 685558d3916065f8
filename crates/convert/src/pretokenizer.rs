//! Pre-tokenizers to pre ops (spec: container, C.5).

use jlm::{PreOp, PreOpKind};
use serde_json::Value;

use crate::error::ConvertError;

/// The steps of a byte-pair tokenizer's `pre_tokenizer`.
pub(crate) fn pre_ops(pre_tokenizer: &Value) -> Result<Vec<PreOp>, ConvertError> {
    flatten(pre_tokenizer, "pretokenizers")
        .into_iter()
        .map(pre_op)
        .collect()
}

/// The members of a `Sequence`, and of those inside it; nothing for null.
pub(crate) fn flatten<'a>(step: &'a Value, members: &str) -> Vec<&'a Value> {
    match (kind(step), step[members].as_array()) {
        (Some("Sequence"), Some(steps)) => steps
            .iter()
            .flat_map(|step| flatten(step, members))
            .collect(),
        _ if step.is_null() => Vec::new(),
        _ => vec![step],
    }
}

pub(crate) fn kind(step: &Value) -> Option<&str> {
    step["type"].as_str()
}

fn pre_op(step: &Value) -> Result<PreOp, ConvertError> {
    match kind(step) {
        Some("Split") => split(step),
        Some("ByteLevel") => Ok(PreOp {
            use_regex: step["use_regex"].as_bool().unwrap_or(true),
            add_prefix_space: step["add_prefix_space"].as_bool().unwrap_or(false),
            ..PreOp::new(PreOpKind::ByteLevel)
        }),
        Some("Digits") => Ok(PreOp {
            individual: step["individual_digits"].as_bool().unwrap_or(false),
            ..PreOp::new(PreOpKind::Digits)
        }),
        Some("Punctuation") => Ok(PreOp {
            behavior: step["behavior"].as_str().unwrap_or("Isolated").to_owned(),
            ..PreOp::new(PreOpKind::Punctuation)
        }),
        other => {
            let reason = format!("step {:?} has no form in a container", other.unwrap_or("?"));
            Err(ConvertError::tokenizer("pre_tokenizer", reason))
        }
    }
}

fn split(step: &Value) -> Result<PreOp, ConvertError> {
    let Some(pattern) = step["pattern"]["Regex"].as_str() else {
        let reason = "a Split without a regex has no form in a container";
        return Err(ConvertError::tokenizer("pre_tokenizer", reason));
    };
    let isolated = matches!(step["behavior"].as_str(), None | Some("Isolated"))
        && !step["invert"].as_bool().unwrap_or(false);
    if !isolated {
        let reason = format!("the Split {pattern:?} is not Isolated and not inverted");
        return Err(ConvertError::tokenizer("pre_tokenizer", reason));
    }
    match pattern {
        "[0-9][0-9][0-9]" => return Ok(PreOp::new(PreOpKind::DigitTriples)),
        r"\p{N}{1,3}" => return Ok(PreOp::new(PreOpKind::DigitGroups)),
        _ => {}
    }
    if !known_patterns().any(|known| known == pattern) {
        let reason = format!("the Split regex {pattern:?} is not one that is known here");
        return Err(ConvertError::tokenizer("pre_tokenizer", reason));
    }
    Ok(by_substrings(pattern))
}

/// The parameters of a word split, recognised as the reference writer does.
fn by_substrings(pattern: &str) -> PreOp {
    let has = |part| pattern.contains(part);
    let case_fold = has("(?i:'s") || has("'(?i:[sdmt]");
    PreOp {
        contractions: case_fold || has("'[sS]"),
        case_fold,
        digit_group: if has(r"\p{N}{1,3}") { 3 } else { 1 },
        letter_marks: has(r"[\p{L}\p{M}]"),
        case_runs: has(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
        suffix_contract: has("'d)?") || has("'D)?"),
        punct_slash: has(r"[\r\n/]*"),
        punct_no_newline: has(r" ?[^\s\p{L}\p{N}\r\n]+|"),
        ..PreOp::new(PreOpKind::Split)
    }
}

/// Word-split regexes whose meaning the parameters give exactly: the family of cl100k (Llama 3,
/// Qwen) and that of o200k. Any other is refused, rather than stored as something else.
fn known_patterns() -> impl Iterator<Item = String> {
    let contractions = [
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|",
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|",
    ];
    let letters = [r"\p{L}+", r"[\p{L}\p{M}]+"];
    let digits = [r"\p{N}", r"\p{N}{1,3}"];
    let cl100k = contractions.into_iter().flat_map(move |contractions| {
        letters.into_iter().flat_map(move |letters| {
            digits.into_iter().map(move |digits| {
                let marks = if letters.contains('M') { r"\p{M}" } else { "" };
                [
                    contractions,
                    r"[^\r\n\p{L}\p{N}]?",
                    letters,
                    "|",
                    digits,
                    r"| ?[^\s\p{L}",
                    marks,
                    r"\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                ]
                .concat()
            })
        })
    });
    let o200k = digits.into_iter().map(|digits| {
        let suffix = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
        let (upper, lower) = (
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
        );
        let lead = r"[^\r\n\p{L}\p{N}]?";
        let rest = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        format!("{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{digits}{rest}")
    });
    cl100k.chain(o200k)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn regex(pattern: &str) -> Result<Vec<PreOp>, ConvertError> {
        pre_ops(&json!({"type": "Split", "pattern": {"Regex": pattern},
            "behavior": "Isolated", "invert": false}))
    }

    #[test]
    fn an_unknown_regex_is_refused_and_named() {
        let error = regex(r"\w+|\s").unwrap_err().to_string();
        assert!(error.contains(r"\\w+|\\s"), "{error}");
    }

    #[test]
    fn the_o200k_split_sets_its_four_parameters() {
        let pattern = known_patterns().last().unwrap();
        let op = regex(&pattern).unwrap().remove(0);
        assert!(op.case_runs && op.suffix_contract && op.punct_slash && op.contractions);
        assert_eq!(op.digit_group, 3);
    }

    #[test]
    fn byte_level_has_the_references_defaults() {
        let op = pre_ops(&json!({"type": "ByteLevel"})).unwrap().remove(0);
        assert!(op.use_regex && !op.add_prefix_space);
    }
}
