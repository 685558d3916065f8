//! The ids, texts and renderings of the fixtures' tokenizers, from a vocab record alone.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::path::{Path, PathBuf};

use jlm::{AddedToken, PreOp, PreOpKind, SpecialIds, Template, TokenKind, Vocab, VocabKind};
use serde_json::Value;
use text::{ChatTemplate, Markers, RenderLimits, StreamDecoder, Tokenizer};

fn fixtures() -> Option<PathBuf> {
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../shared/fixtures"
    ));
    if path.is_dir() {
        return Some(path.to_owned());
    }
    eprintln!("skipped: {} is absent", path.display());
    None
}

fn json(path: impl AsRef<Path>) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// The record that a conversion of the model folder holds.
fn vocab(model: &Path) -> Vocab {
    let tokenizer = json(model.join("tokenizer.json"));
    let config = json(model.join("tokenizer_config.json"));
    let rows = json(model.join("config.json"))["vocab_size"]
        .as_u64()
        .unwrap() as usize;
    let mut tokens: Vec<String> = (0..rows).map(|i| format!("[PAD{i}]")).collect();
    let mut kinds = vec![TokenKind::Unused; rows];
    for (text, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as usize;
        tokens[id] = text.clone();
        kinds[id] = TokenKind::Normal;
    }
    let added: Vec<AddedToken> = tokenizer["added_tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| AddedToken {
            id: entry["id"].as_i64().unwrap() as i32,
            content: entry["content"].as_str().unwrap().to_owned(),
            special: entry["special"].as_bool().unwrap(),
            lstrip: entry["lstrip"].as_bool().unwrap(),
            rstrip: entry["rstrip"].as_bool().unwrap(),
            normalized: entry["normalized"].as_bool().unwrap(),
            single_word: entry["single_word"].as_bool().unwrap(),
        })
        .collect();
    for token in &added {
        tokens[token.id as usize] = token.content.clone();
        kinds[token.id as usize] = TokenKind::Control;
    }
    let merges = tokenizer["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| match pair {
            Value::String(pair) => pair.split_once(' ').unwrap(),
            pair => (pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        })
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect();
    let id = |key: &str| {
        let text = config[key].as_str();
        text.and_then(|text| tokens.iter().position(|token| token == text))
            .map_or(-1, |id| id as i32)
    };
    let special = SpecialIds {
        bos: id("bos_token"),
        eos: id("eos_token"),
        unk: id("unk_token"),
        pad: id("pad_token"),
        sep: -1,
        mask: -1,
    };
    let split = PreOp {
        contractions: true,
        case_fold: true,
        digit_group: 1,
        ..PreOp::new(PreOpKind::Split)
    };
    Vocab {
        kind: VocabKind::Bpe,
        tokens,
        scores: Vec::new(),
        kinds,
        merges,
        added,
        special,
        add_bos: false,
        add_eos: false,
        add_space_prefix: false,
        byte_fallback: false,
        ignore_merges: false,
        pre_ops: vec![split, PreOp::new(PreOpKind::ByteLevel)],
        pre_name: "tokenizer.json".to_owned(),
        templates: vec![Template {
            name: String::new(),
            body: config["chat_template"].as_str().unwrap().to_owned(),
        }],
        stop: vec![2000],
    }
}

/// Gives every regular token another id, as a sealed model's tokenizer has it.
fn permuted(vocab: &Vocab, regular: usize) -> (Vocab, Vec<u32>) {
    let step = 1237; // prime, and no divisor of 2000
    let new_id = |id: usize| {
        if id < regular {
            (id * step + 11) % regular
        } else {
            id
        }
    };
    let mut out = vocab.clone();
    let mut map = Vec::new();
    for (id, text) in vocab.tokens.iter().enumerate() {
        out.tokens[new_id(id)].clone_from(text);
        map.push(new_id(id) as u32);
    }
    (out, map)
}

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().unwrap();
    list.iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn texts_have_the_source_tokenizers_ids_and_come_back() {
    let Some(fixtures) = fixtures() else { return };
    let vocab = vocab(&fixtures.join("models/tiny-qwen3"));
    let tokenizer = Tokenizer::new(&vocab).unwrap();
    let (shuffled, map) = permuted(&vocab, 2000);
    let shuffled = Tokenizer::new(&shuffled).unwrap();
    let vectors = json(fixtures.join("vectors/tokenizer.json"));
    for case in vectors["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let expected = ids(&case["ids"]);
        let got = tokenizer.encode(text, Markers::Recognise).unwrap();
        assert_eq!(got, expected, "{text:?}");
        assert_eq!(
            tokenizer.decode(&got, false).unwrap(),
            case["decoded"],
            "{text:?}"
        );
        assert_eq!(
            tokenizer.decode(&got, true).unwrap(),
            case["decoded_without_special"],
            "{text:?}"
        );
        let moved: Vec<u32> = expected.iter().map(|id| map[*id as usize]).collect();
        assert_eq!(
            shuffled.encode(text, Markers::Recognise).unwrap(),
            moved,
            "{text:?} over other ids"
        );
        assert_eq!(shuffled.decode(&moved, false).unwrap(), case["decoded"]);
    }
}

#[test]
fn arbitrary_ids_decode_alike_at_once_and_streamed() {
    let Some(fixtures) = fixtures() else { return };
    let tokenizer = Tokenizer::new(&vocab(&fixtures.join("models/tiny-qwen3"))).unwrap();
    let vectors = json(fixtures.join("vectors/tokenizer.json"));
    let cases = vectors["arbitrary"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let ids = ids(&case["ids"]);
        let whole = tokenizer.decode(&ids, false).unwrap();
        assert_eq!(whole, case["decoded"], "{ids:?}");
        let mut stream = StreamDecoder::new(false);
        let mut streamed = String::new();
        for id in &ids {
            streamed.push_str(&stream.push(&tokenizer, *id).unwrap());
        }
        streamed.push_str(&stream.finish());
        assert_eq!(streamed, whole, "{ids:?}");
    }
}

#[test]
fn a_character_of_several_tokens_comes_out_whole() {
    let Some(fixtures) = fixtures() else { return };
    let tokenizer = Tokenizer::new(&vocab(&fixtures.join("models/tiny-qwen3"))).unwrap();
    let ids = tokenizer.encode("é😀", Markers::Plain).unwrap();
    let mut stream = StreamDecoder::new(true);
    let pieces: Vec<String> = ids
        .iter()
        .map(|id| stream.push(&tokenizer, *id).unwrap())
        .filter(|piece| !piece.is_empty())
        .collect();
    assert_eq!(pieces, ["é", "😀"]);
    assert_eq!(stream.finish(), "");
}

#[test]
fn models_prompts_have_their_references_ids() {
    let Some(fixtures) = fixtures() else { return };
    for model in ["tiny-qwen3", "tiny-qwen2", "tiny-llama3", "tiny-qwen3-moe"] {
        let tokenizer = Tokenizer::new(&vocab(&fixtures.join("models").join(model))).unwrap();
        let reference = json(fixtures.join(format!("models/{model}.reference.json")));
        for prompt in reference["prompts"].as_array().unwrap() {
            let text = prompt["text"].as_str().unwrap();
            let got = tokenizer.encode_input(text, Markers::Recognise).unwrap();
            assert_eq!(got, ids(&prompt["input_ids"]), "{model}: {text:?}");
            let greedy = ids(&prompt["greedy_ids"]);
            assert_eq!(
                tokenizer.decode(&greedy, false).unwrap(),
                prompt["greedy_text"]
            );
        }
    }
}

#[test]
fn chats_are_written_as_the_source_writes_them() {
    let Some(fixtures) = fixtures() else { return };
    let vocab = vocab(&fixtures.join("models/tiny-qwen3"));
    let tokenizer = Tokenizer::new(&vocab).unwrap();
    let template = ChatTemplate::new(&vocab, &tokenizer, "", RenderLimits::default()).unwrap();
    let vectors = json(fixtures.join("vectors/tokenizer.json"));
    let chats = vectors["chats"].as_array().unwrap();
    assert!(!chats.is_empty());
    for chat in chats {
        let messages = chat["messages"].as_array().unwrap();
        let prompt = chat["add_generation_prompt"].as_bool().unwrap_or(true);
        let text = template
            .render(messages, prompt, &serde_json::Map::new())
            .unwrap();
        assert_eq!(text, chat["text"].as_str().unwrap());
        assert_eq!(
            tokenizer.encode(&text, Markers::Recognise).unwrap(),
            ids(&chat["ids"])
        );
    }
}

#[test]
fn a_users_text_cannot_write_a_marker() {
    let Some(fixtures) = fixtures() else { return };
    let tokenizer = Tokenizer::new(&vocab(&fixtures.join("models/tiny-qwen3"))).unwrap();
    let text = "x<|im_end|>y";
    assert!(
        tokenizer
            .encode(text, Markers::Recognise)
            .unwrap()
            .contains(&2002)
    );
    let plain = tokenizer.encode(text, Markers::Plain).unwrap();
    assert!(!plain.contains(&2002));
    assert_eq!(tokenizer.decode(&plain, true).unwrap(), text);
    assert_eq!(tokenizer.stop_ids(), [2002, 2000]);
}
