//! `tokenizer.json` and its neighbours to the vocab record (spec: container, C.5).

use std::collections::HashMap;

use jlm::{AddedToken, SpecialIds, Template, TokenKind, Vocab, VocabKind};
use serde_json::Value;

use crate::error::ConvertError;
use crate::files::{GENERATION_CONFIG, Parsed, TOKENIZER_CONFIG};
use crate::plan::Warning;
use crate::pretokenizer::{flatten, kind, pre_ops};

/// The vocab of `size` rows, and what it could not hold.
pub(crate) fn vocab(files: &Parsed, size: u32) -> Result<(Vocab, Vec<Warning>), ConvertError> {
    let json = &files.tokenizer;
    let model = &json["model"];
    if kind(model) != Some("BPE") {
        return Err(ConvertError::tokenizer("model.type", "is not BPE"));
    }
    let normalizer = Normalizer::new(&json["normalizer"])?;
    let byte_fallback = model["byte_fallback"].as_bool().unwrap_or(false);
    let metaspace = Metaspace::new(&json["pre_tokenizer"]);
    let spaces_marked = normalizer.marks_spaces || metaspace.is_some();
    let splits = metaspace.is_none() && !json["pre_tokenizer"].is_null();
    let spm = byte_fallback && !splits && spaces_marked;

    let mut vocab = Vocab::new(if spm { VocabKind::Spm } else { VocabKind::Bpe });
    let regular = tokens(model, size as usize, &mut vocab)?;
    added(&json["added_tokens"], regular, &mut vocab)?;
    let merges = merges(model)?;
    if spm {
        vocab.scores = scores(&vocab.tokens, &merges);
        for (token, kind) in vocab.tokens.iter().zip(&mut vocab.kinds) {
            if *kind == TokenKind::Normal && is_byte_token(token) {
                *kind = TokenKind::Byte;
            }
        }
        vocab.add_space_prefix =
            normalizer.prepends || metaspace.is_some_and(|metaspace| metaspace.prepends);
    } else {
        if normalizer.marks_spaces {
            let reason = "marks spaces for a tokenizer that splits before its merges";
            return Err(ConvertError::tokenizer("normalizer", reason));
        }
        vocab.merges = merges;
        vocab.pre_ops = pre_ops(&json["pre_tokenizer"])?;
    }
    vocab.pre_name = "tokenizer.json".to_owned();
    vocab.byte_fallback = byte_fallback;
    vocab.ignore_merges = model["ignore_merges"].as_bool().unwrap_or(false);
    vocab.special = special_ids(&files.tokenizer_config, model, &vocab.tokens);
    (vocab.add_bos, vocab.add_eos) = added_ends(json, &files.tokenizer_config);
    vocab.templates = templates(files)?;
    vocab.stop = stop_ids(files, &vocab)?;
    let warnings = normalizer.dropped.then_some(Warning::NormalizerDropped);
    Ok((vocab, warnings.into_iter().collect()))
}

/// What a normalizer does that matters here.
struct Normalizer {
    /// Text is changed in a way that the container does not hold (NFC).
    dropped: bool,
    /// Spaces become U+2581.
    marks_spaces: bool,
    /// U+2581 is put before the text.
    prepends: bool,
}

impl Normalizer {
    fn new(json: &Value) -> Result<Self, ConvertError> {
        let mut normalizer = Self {
            dropped: false,
            marks_spaces: false,
            prepends: false,
        };
        for step in flatten(json, "normalizers") {
            match kind(step) {
                Some("NFC") => normalizer.dropped = true,
                Some("Prepend") if step["prepend"].as_str() == Some(SPACE_MARK) => {
                    normalizer.marks_spaces = true;
                    normalizer.prepends = true;
                }
                Some("Replace")
                    if step["content"].as_str() == Some(SPACE_MARK)
                        && step["pattern"]["String"].as_str() == Some(" ") =>
                {
                    normalizer.marks_spaces = true;
                }
                other => {
                    let reason =
                        format!("step {:?} has no form in a container", other.unwrap_or("?"));
                    return Err(ConvertError::tokenizer("normalizer", reason));
                }
            }
        }
        Ok(normalizer)
    }
}

/// A `Metaspace` pre-tokenizer that marks spaces and does not split.
#[derive(Clone, Copy)]
struct Metaspace {
    prepends: bool,
}

impl Metaspace {
    fn new(json: &Value) -> Option<Self> {
        let steps = flatten(json, "pretokenizers");
        let [step] = steps[..] else { return None };
        let keeps_whole = step["split"].as_bool() == Some(false);
        if kind(step) != Some("Metaspace") || !keeps_whole {
            return None;
        }
        let prepends = match step["prepend_scheme"].as_str() {
            Some(scheme) => matches!(scheme, "first" | "always"),
            None => step["add_prefix_space"].as_bool().unwrap_or(true),
        };
        Some(Self { prepends })
    }
}

/// Fills the token table; gives the number of the model's own tokens.
fn tokens(model: &Value, size: usize, vocab: &mut Vocab) -> Result<usize, ConvertError> {
    let refuse = |reason: String| Err(ConvertError::tokenizer("model.vocab", reason));
    let Some(map) = model["vocab"].as_object() else {
        return refuse("is not an object".to_owned());
    };
    let regular = map.len();
    if regular > size {
        return refuse(format!("has {regular} tokens, vocab_size is {size}"));
    }
    if size > MAX_VOCAB {
        return Err(ConvertError::config("vocab_size", "is above 16777216"));
    }
    let mut texts: Vec<Option<&str>> = vec![None; regular];
    for (text, id) in map {
        let slot = id
            .as_u64()
            .and_then(|id| texts.get_mut(usize::try_from(id).ok()?));
        match slot {
            Some(slot @ None) => *slot = Some(text),
            _ => return refuse(format!("does not number its tokens 0 to {regular} - 1")),
        }
    }
    vocab.tokens = texts.into_iter().flatten().map(str::to_owned).collect();
    vocab.kinds = vec![TokenKind::Normal; regular];
    for id in regular..size {
        vocab.tokens.push(format!("[PAD{id}]"));
        vocab.kinds.push(TokenKind::Unused);
    }
    Ok(regular)
}

fn added(json: &Value, regular: usize, vocab: &mut Vocab) -> Result<(), ConvertError> {
    let refuse = |reason: String| Err(ConvertError::tokenizer("added_tokens", reason));
    for token in json.as_array().map(Vec::as_slice).unwrap_or_default() {
        let id = token["id"].as_u64().and_then(|id| usize::try_from(id).ok());
        let (Some(id), Some(content)) = (id, token["content"].as_str()) else {
            return refuse("has an entry without an id or content".to_owned());
        };
        if id >= vocab.tokens.len() {
            return refuse(format!("has id {id}, vocab_size is {}", vocab.tokens.len()));
        }
        let is = |field: &str| token[field].as_bool().unwrap_or(false);
        vocab.added.push(AddedToken {
            id: id as i32,
            content: content.to_owned(),
            special: is("special"),
            lstrip: is("lstrip"),
            rstrip: is("rstrip"),
            normalized: is("normalized"),
            single_word: is("single_word"),
        });
        vocab.kinds[id] = if is("special") {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        };
        if id >= regular {
            content.clone_into(&mut vocab.tokens[id]);
        }
    }
    Ok(())
}

fn merges(model: &Value) -> Result<Vec<(String, String)>, ConvertError> {
    let refuse = |reason| ConvertError::tokenizer("model.merges", reason);
    let Some(merges) = model["merges"].as_array() else {
        return Err(refuse("is not a list"));
    };
    let pair = |merge: &Value| {
        let (left, right) = match merge {
            Value::String(text) => text.split_once(' ')?,
            Value::Array(pair) => match &pair[..] {
                [left, right] => (left.as_str()?, right.as_str()?),
                _ => return None,
            },
            _ => return None,
        };
        (!left.is_empty() && !right.is_empty()).then(|| (left.to_owned(), right.to_owned()))
    };
    merges
        .iter()
        .map(|merge| pair(merge).ok_or_else(|| refuse("has an entry that is not two texts")))
        .collect()
}

/// SentencePiece scores: the negated rank of the first merge that makes the token.
fn scores(tokens: &[String], merges: &[(String, String)]) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (left, right)) in merges.iter().enumerate() {
        ranks.entry(format!("{left}{right}")).or_insert(rank + 1);
    }
    tokens
        .iter()
        .map(|token| ranks.get(token).map_or(-f32::MAX, |rank| -(*rank as f32)))
        .collect()
}

/// `<0xNN>`.
fn is_byte_token(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn special_ids(config: &Value, model: &Value, tokens: &[String]) -> SpecialIds {
    let id_of = |text: &str| {
        let at = tokens.iter().position(|token| token == text);
        at.map_or(-1, |at| at as i32)
    };
    let id = |field: &str| {
        let token = &config[field];
        token
            .as_str()
            .or(token["content"].as_str())
            .map_or(-1, id_of)
    };
    let unk = match id("unk_token") {
        -1 => model["unk_token"].as_str().map_or(-1, id_of),
        found => found,
    };
    SpecialIds {
        bos: id("bos_token"),
        eos: id("eos_token"),
        unk,
        pad: id("pad_token"),
        sep: id("sep_token"),
        mask: id("mask_token"),
    }
}

/// Whether encoding adds the BOS and the EOS token.
fn added_ends(tokenizer: &Value, config: &Value) -> (bool, bool) {
    let (mut bos, mut eos) = (false, false);
    for step in flatten(&tokenizer["post_processor"], "processors") {
        if kind(step) != Some("TemplateProcessing") {
            continue;
        }
        let single = step["single"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let is_special = |piece: &Value| piece.get("SpecialToken").is_some();
        bos = single.first().is_some_and(is_special);
        eos = single.len() > 1 && single.last().is_some_and(is_special);
    }
    if config["tokenizer_class"].as_str() != Some("PreTrainedTokenizerFast") {
        bos = config["add_bos_token"].as_bool().unwrap_or(bos);
        eos = config["add_eos_token"].as_bool().unwrap_or(eos);
    }
    (bos, eos)
}

fn templates(files: &Parsed) -> Result<Vec<Template>, ConvertError> {
    let refuse = || ConvertError::Field {
        file: TOKENIZER_CONFIG,
        field: "chat_template",
        reason: "is neither text nor a list of named texts".to_owned(),
    };
    let only = |body: &str| {
        vec![Template {
            name: String::new(),
            body: body.to_owned(),
        }]
    };
    match &files.tokenizer_config["chat_template"] {
        Value::Null => Ok(files.chat_template.as_deref().map_or(Vec::new(), only)),
        Value::String(body) => Ok(only(body)),
        Value::Array(named) => {
            let mut templates = named
                .iter()
                .map(|entry| {
                    Some(Template {
                        name: entry["name"].as_str()?.to_owned(),
                        body: entry["template"].as_str()?.to_owned(),
                    })
                })
                .collect::<Option<Vec<_>>>()
                .ok_or_else(refuse)?;
            templates.sort_by(|left, right| left.name.cmp(&right.name));
            Ok(templates)
        }
        _ => Err(refuse()),
    }
}

/// Ids that end generation besides EOS: of generation_config.json, or of config.json where the
/// former does not exist.
fn stop_ids(files: &Parsed, vocab: &Vocab) -> Result<Vec<i32>, ConvertError> {
    let config = &files.config;
    let (json, file) = match &files.generation_config {
        Some(generation) => (&generation["eos_token_id"], GENERATION_CONFIG),
        None if config["eos_token_id"].is_null() => {
            (&config["text_config"]["eos_token_id"], crate::files::CONFIG)
        }
        None => (&config["eos_token_id"], crate::files::CONFIG),
    };
    let ids = match json {
        Value::Null => &[][..],
        Value::Array(ids) => ids,
        id => std::slice::from_ref(id),
    };
    let mut stop = Vec::new();
    for id in ids {
        let id = id
            .as_u64()
            .filter(|id| *id < vocab.tokens.len() as u64)
            .ok_or_else(|| ConvertError::Field {
                file,
                field: "eos_token_id",
                reason: "is not an id of the token table".to_owned(),
            })? as i32;
        if id != vocab.special.eos && !stop.contains(&id) {
            stop.push(id);
        }
    }
    Ok(stop)
}

const SPACE_MARK: &str = "\u{2581}";
const MAX_VOCAB: usize = 1 << 24;
