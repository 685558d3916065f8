//! A GGUF file's tokenizer to the vocab record (spec: container, D.3).

use gguf::Gguf;
use jlm::{PreOp, PreOpKind, SpecialIds, Template, TokenKind, Vocab, VocabKind};

use crate::error::ConvertError;

/// The vocab record; `None` when the file has no tokenizer.
pub(crate) fn vocab(file: &Gguf) -> Result<Option<Vocab>, ConvertError> {
    let Some(model) = file.text("tokenizer.ggml.model")? else {
        return Ok(None);
    };
    let kind = match model {
        "llama" => VocabKind::Spm,
        "gpt2" => VocabKind::Bpe,
        "bert" => VocabKind::Wpm,
        "gemma4" => VocabKind::BpeSpm,
        other => {
            let reason = format!("{other:?} is not converted");
            return Err(ConvertError::key("tokenizer.ggml.model", reason));
        }
    };
    let mut vocab = Vocab::new(kind);
    vocab.tokens = file
        .texts("tokenizer.ggml.tokens")?
        .ok_or_else(|| ConvertError::key("tokenizer.ggml.tokens", "is missing"))?
        .to_vec();
    let scores = file.floats("tokenizer.ggml.scores")?.unwrap_or_default();
    vocab.scores = scores.iter().map(|score| *score as f32).collect();
    let kinds = file.ints("tokenizer.ggml.token_type")?.unwrap_or_default();
    let kind_of = |code: &i64| u8::try_from(*code).ok().and_then(TokenKind::from_code);
    vocab.kinds = kinds
        .iter()
        .map(|code| kind_of(code).unwrap_or(TokenKind::Normal))
        .collect();
    for (key, length) in [
        ("tokenizer.ggml.scores", vocab.scores.len()),
        ("tokenizer.ggml.token_type", vocab.kinds.len()),
    ] {
        if length != 0 && length != vocab.tokens.len() {
            return Err(ConvertError::key(key, "is not as long as the token list"));
        }
    }
    let merges = file.texts("tokenizer.ggml.merges")?.unwrap_or_default();
    // A merge without a space is no merge: the reference skips it too.
    vocab.merges = merges
        .iter()
        .filter_map(|merge| merge.split_once(' '))
        .map(|(left, right)| (left.to_owned(), right.to_owned()))
        .collect();
    vocab.special = special_ids(file)?;
    kind_defaults(file, &mut vocab)?;
    let flag = |key: &str| file.bool(&format!("tokenizer.ggml.{key}"));
    vocab.add_bos = flag("add_bos_token")?.unwrap_or(vocab.add_bos);
    vocab.add_eos = flag("add_eos_token")?.unwrap_or(false);
    vocab.add_space_prefix = flag("add_space_prefix")?.unwrap_or(vocab.add_space_prefix);
    vocab.stop = stop_ids(file, &vocab)?;
    vocab.templates = templates(file)?;
    Ok(Some(vocab))
}

fn special_ids(file: &Gguf) -> Result<SpecialIds, ConvertError> {
    let id = |name: &str| id(file, name).map(|id| id.unwrap_or(-1));
    Ok(SpecialIds {
        bos: id("bos")?,
        eos: id("eos")?,
        unk: id("unknown")?,
        pad: id("padding")?,
        // The key is spelled so.
        sep: id("seperator")?,
        mask: id("mask")?,
    })
}

fn kind_defaults(file: &Gguf, vocab: &mut Vocab) -> Result<(), ConvertError> {
    match vocab.kind {
        VocabKind::Spm => {
            vocab.byte_fallback = true;
            vocab.add_space_prefix = true;
            vocab.add_bos = true;
        }
        VocabKind::Bpe => {
            let name = file.text(PRE)?.unwrap_or("default");
            let llama3 = name == "llama-bpe";
            vocab.pre_ops = pre_ops(name)?;
            name.clone_into(&mut vocab.pre_name);
            vocab.add_bos = llama3;
            vocab.ignore_merges = llama3;
        }
        VocabKind::Wpm => vocab.pre_ops = vec![PreOp::new(PreOpKind::Bert)],
        VocabKind::BpeSpm => {}
    }
    Ok(())
}

/// The pipelines of the pre-tokenizer names that are known here. Another name is refused: an
/// empty pipeline, which the reference gives to names it does not know, would tokenize otherwise.
fn pre_ops(name: &str) -> Result<Vec<PreOp>, ConvertError> {
    let byte_level = |use_regex| PreOp {
        use_regex,
        ..PreOp::new(PreOpKind::ByteLevel)
    };
    let words = |digit_group| PreOp {
        contractions: true,
        case_fold: true,
        digit_group,
        ..PreOp::new(PreOpKind::Split)
    };
    match name {
        "qwen2" => Ok(vec![words(1), byte_level(false)]),
        "llama-bpe" => Ok(vec![words(3), byte_level(false)]),
        "default" => Ok(vec![
            PreOp::new(PreOpKind::PunctuationRuns),
            byte_level(true),
            PreOp::new(PreOpKind::Digits),
            PreOp::new(PreOpKind::DigitTriples),
        ]),
        other => {
            let reason = format!("{other:?} is no pre-tokenizer that is known here");
            Err(ConvertError::key(PRE, reason))
        }
    }
}

/// Tokens that end generation besides EOS.
fn stop_ids(file: &Gguf, vocab: &Vocab) -> Result<Vec<i32>, ConvertError> {
    let mut stop = Vec::new();
    for name in ["eot", "eom", "fim_pad", "fim_rep", "fim_sep"] {
        let Some(id) = id(file, name)? else { continue };
        if usize::try_from(id).map_or(true, |id| id >= vocab.tokens.len()) {
            let key = format!("tokenizer.ggml.{name}_token_id");
            return Err(ConvertError::key(&key, "is not an id of the token list"));
        }
        if id != vocab.special.eos && !stop.contains(&id) {
            stop.push(id);
        }
    }
    Ok(stop)
}

fn id(file: &Gguf, name: &str) -> Result<Option<i32>, ConvertError> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    file.int(&key)?
        .map(|id| i32::try_from(id).map_err(|_| ConvertError::key(&key, "is not a token id")))
        .transpose()
}

/// The plain template, or the named ones with the plain one as `default`.
fn templates(file: &Gguf) -> Result<Vec<Template>, ConvertError> {
    let plain = file.text(TEMPLATE)?;
    let mut templates = Vec::new();
    for key in file.keys() {
        if let Some(name) = key.strip_prefix("tokenizer.chat_template.") {
            let body = file.text(key)?.unwrap_or_default().to_owned();
            let name = name.to_owned();
            templates.push(Template { name, body });
        }
    }
    let name = if templates.is_empty() { "" } else { "default" };
    templates.extend(plain.map(|body| Template {
        name: name.to_owned(),
        body: body.to_owned(),
    }));
    templates.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(templates)
}

const PRE: &str = "tokenizer.ggml.pre";
const TEMPLATE: &str = "tokenizer.chat_template";
