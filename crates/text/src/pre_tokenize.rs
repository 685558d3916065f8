//! The pre-tokenizer: how a text is cut before merges apply (spec: container, B.2 and C.5).

use jlm::{PreOp, PreOpKind};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::TextError;

/// The steps of a vocabulary, in order.
pub(crate) fn steps(ops: &[PreOp]) -> Result<Vec<PreTokenizerWrapper>, TextError> {
    ops.iter()
        .enumerate()
        .map(|(index, op)| {
            step(op).map_err(|reason| TextError::PreTokenizer {
                index,
                kind: op.kind.name(),
                reason,
            })
        })
        .collect()
}

/// Whether texts are brought to Unicode normal form C first. The container does not store the
/// normalizer; those whose pre-tokenizer is Qwen's have it, and no other family of BPE does.
pub(crate) fn normalizes(ops: &[PreOp]) -> bool {
    ops.iter().any(|op| {
        op.kind == PreOpKind::Split
            && op.contractions
            && op.case_fold
            && op.digit_group == 1
            && !op.case_runs
            && !op.han_runs
    })
}

fn step(op: &PreOp) -> Result<PreTokenizerWrapper, &'static str> {
    Ok(match op.kind {
        PreOpKind::Split => isolated(&split_pattern(op)?)?,
        PreOpKind::ByteLevel => {
            PreTokenizerWrapper::ByteLevel(ByteLevel::new(op.add_prefix_space, true, op.use_regex))
        }
        PreOpKind::Digits => PreTokenizerWrapper::Digits(Digits::new(op.individual)),
        PreOpKind::Punctuation => {
            PreTokenizerWrapper::Punctuation(Punctuation::new(behavior(&op.behavior)?))
        }
        PreOpKind::DigitTriples => isolated("[0-9][0-9][0-9]")?,
        PreOpKind::PunctuationRuns => isolated(r"[\p{P}\$\+<=>\^~\|]+")?,
        PreOpKind::DigitGroups => isolated(r"\p{N}{1,3}")?,
        PreOpKind::HanRuns => isolated("[一-龥぀-ゟ゠-ヿ]+")?,
        PreOpKind::Bert | PreOpKind::Hunyuan | PreOpKind::Spark => {
            return Err("is not supported");
        }
    })
}

/// The regular expression of a split step: contractions, letters, digits, punctuation, space.
fn split_pattern(op: &PreOp) -> Result<String, &'static str> {
    if op.han_runs {
        return Err("han runs are not supported");
    }
    let contraction = match (op.contractions, op.case_fold) {
        (_, true) => "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        (true, false) => "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
        (false, false) => "(?:'s|'t|'re|'ve|'m|'ll|'d)",
    };
    let mut alternatives = Vec::new();
    if op.contractions && !op.suffix_contract {
        alternatives.push(contraction.to_owned());
    }

    let suffix = if op.suffix_contract {
        format!("{contraction}?")
    } else {
        String::new()
    };
    if op.case_runs {
        let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
        let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
        alternatives.push(format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{suffix}"));
        alternatives.push(format!(r"[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{suffix}"));
    } else if op.letter_marks {
        alternatives.push(format!(r"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{suffix}"));
    } else {
        alternatives.push(format!(r"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+{suffix}"));
    }

    alternatives.push(match op.digit_group {
        0 => return Err("digit group is 0"),
        1 => r"\p{N}".to_owned(),
        group => format!(r"\p{{N}}{{1,{group}}}"),
    });

    let marks = if op.letter_marks && !op.case_runs {
        r"\p{M}"
    } else {
        ""
    };
    let tail = match (op.punct_no_newline, op.punct_slash) {
        (true, _) => "",
        (false, true) => r"[\r\n/]*",
        (false, false) => r"[\r\n]*",
    };
    alternatives.push(format!(r" ?[^\s\p{{L}}{marks}\p{{N}}]+{tail}"));
    alternatives.push(r"\s*[\r\n]+|\s+(?!\S)|\s+".to_owned());
    Ok(alternatives.join("|"))
}

fn isolated(pattern: &str) -> Result<PreTokenizerWrapper, &'static str> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map(PreTokenizerWrapper::Split)
        .map_err(|_| "pattern is not a regular expression")
}

fn behavior(name: &str) -> Result<SplitDelimiterBehavior, &'static str> {
    Ok(match name {
        "" | "Isolated" => SplitDelimiterBehavior::Isolated,
        "Removed" => SplitDelimiterBehavior::Removed,
        "MergedWithPrevious" => SplitDelimiterBehavior::MergedWithPrevious,
        "MergedWithNext" => SplitDelimiterBehavior::MergedWithNext,
        "Contiguous" => SplitDelimiterBehavior::Contiguous,
        _ => return Err("behavior is unknown"),
    })
}
