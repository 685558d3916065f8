//! Text to ids and back.

use jlm::{TokenKind, Vocab, VocabKind};
use tokenizers::models::bpe::{BPE, Vocab as TokenIds};
use tokenizers::normalizers::NFC;
use tokenizers::tokenizer::{AddedToken, AddedVocabulary, Model, Normalizer, OffsetType};
use tokenizers::{OffsetReferential, PreTokenizer, PreTokenizerWrapper};

use crate::byte_level::Bytes;
use crate::error::TextError;
use crate::pre_tokenize::{normalizes, steps};

/// What the text of a special token means inside a text to encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Markers {
    /// It is that token: for text a chat template wrote.
    Recognise,
    /// It is ordinary text: for text of a user, who must not write a turn of another role.
    Plain,
}

/// A byte-level BPE tokenizer made from a container's vocab record.
pub struct Tokenizer {
    model: BPE,
    steps: Vec<PreTokenizerWrapper>,
    normalizer: Option<NFC>,
    recognising: AddedVocabulary,
    plain: AddedVocabulary,
    tokens: Vec<TokenText>,
    specials: Specials,
    stop: Vec<u32>,
}

struct TokenText {
    text: String,
    /// What the token adds to a decoded text.
    bytes: Vec<u8>,
    special: bool,
}

#[derive(Debug, Clone, Copy)]
struct Specials {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    pad: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

impl Tokenizer {
    /// Builds the tokenizer. Fails on a vocabulary of another kind than BPE, on a pre-tokenizer
    /// step without an implementation, and on ids or merges that name no token.
    pub fn new(vocab: &Vocab) -> Result<Self, TextError> {
        if vocab.kind != VocabKind::Bpe {
            return Err(TextError::Kind {
                kind: vocab.kind.name(),
            });
        }
        let steps = steps(&vocab.pre_ops)?;
        let added = added_tokens(vocab)?;
        let tokens = token_texts(vocab, &added)?;
        let specials = specials(vocab)?;

        let model = BPE::builder()
            .vocab_and_merges(token_ids(vocab, &added), vocab.merges.clone())
            .ignore_merges(vocab.ignore_merges)
            .byte_fallback(vocab.byte_fallback)
            .cache_capacity(0)
            .build()
            .map_err(TextError::Merges)?;
        let normalizer = normalizes(&vocab.pre_ops).then_some(NFC);
        let recognising = added_vocabulary(&added, &model, normalizer.as_ref())?;
        let mut plain = added_vocabulary(&added, &model, normalizer.as_ref())?;
        plain.set_encode_special_tokens(true);

        let mut stop: Vec<u32> = specials.eos.into_iter().collect();
        for id in &vocab.stop {
            let id = token_id(vocab, "stop", *id)?;
            if !stop.contains(&id) {
                stop.push(id);
            }
        }
        Ok(Self {
            model,
            steps,
            normalizer,
            recognising,
            plain,
            tokens,
            specials,
            stop,
        })
    }

    /// The ids of a text, without begin and end tokens.
    pub fn encode(&self, text: &str, markers: Markers) -> Result<Vec<u32>, TextError> {
        if text.len() > MAX_TEXT {
            return Err(TextError::TooLong {
                length: text.len(),
                maximum: MAX_TEXT,
            });
        }
        let added = match markers {
            Markers::Recognise => &self.recognising,
            Markers::Plain => &self.plain,
        };
        let mut pieces = added.extract_and_normalize(self.normalizer.as_ref(), text);
        for step in &self.steps {
            step.pre_tokenize(&mut pieces).map_err(TextError::Encode)?;
        }
        pieces
            .tokenize(|piece| self.model.tokenize(piece.get()))
            .map_err(TextError::Encode)?;
        let mut ids = Vec::with_capacity(text.len() / 3 + 1);
        for (piece, _, tokens) in pieces.get_splits(OffsetReferential::Normalized, OffsetType::None)
        {
            let tokens = tokens.as_deref().unwrap_or_default();
            let covered: usize = tokens.iter().map(|token| token.value.len()).sum();
            if covered != piece.len() {
                return Err(TextError::Uncovered);
            }
            ids.extend(tokens.iter().map(|token| token.id));
        }
        Ok(ids)
    }

    /// The ids of a whole input: [`Self::encode`] between the begin and end tokens that the
    /// vocabulary says to add.
    pub fn encode_input(&self, text: &str, markers: Markers) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode(text, markers)?;
        if let Some(bos) = self.specials.bos.filter(|_| self.specials.add_bos) {
            ids.insert(0, bos);
        }
        ids.extend(self.specials.eos.filter(|_| self.specials.add_eos));
        Ok(ids)
    }

    /// The text of ids; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TextError> {
        let mut bytes = Vec::new();
        for &id in ids {
            let token = self.get(id)?;
            if !(skip_special && token.special) {
                bytes.extend_from_slice(&token.bytes);
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes that an id adds to a text.
    pub fn bytes(&self, id: u32) -> Result<&[u8], TextError> {
        Ok(&self.get(id)?.bytes)
    }

    /// A token as the vocabulary writes it.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<&str> {
        Some(&self.get(id).ok()?.text)
    }

    /// Whether an id is a special token (control tokens and those added as special).
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.get(id).is_ok_and(|token| token.special)
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the vocabulary has no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The ids that end an answer: the end token and the further stop ids.
    #[must_use]
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop
    }

    /// The begin token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.specials.bos
    }

    /// The end token.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.specials.eos
    }

    /// The unknown token.
    #[must_use]
    pub fn unknown(&self) -> Option<u32> {
        self.specials.unknown
    }

    /// The padding token.
    #[must_use]
    pub fn pad(&self) -> Option<u32> {
        self.specials.pad
    }

    fn get(&self, id: u32) -> Result<&TokenText, TextError> {
        self.tokens.get(id as usize).ok_or(TextError::Id {
            id,
            size: self.tokens.len(),
        })
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("tokens", &self.tokens.len())
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

/// The added tokens with their ids. A vocabulary without a list (from GGUF) says by its token
/// kinds which are matched whole.
fn added_tokens(vocab: &Vocab) -> Result<Vec<(u32, AddedToken)>, TextError> {
    if vocab.added.is_empty() {
        let whole = (0..).zip(vocab.tokens.iter().zip(&vocab.kinds));
        return Ok(whole
            .filter(|(_, (_, kind))| matches!(kind, TokenKind::Control | TokenKind::UserDefined))
            .map(|(id, (text, kind))| {
                let special = *kind == TokenKind::Control;
                (
                    id,
                    AddedToken::from(text.as_str(), special).normalized(false),
                )
            })
            .collect());
    }
    let entries = vocab.added.iter().map(|added| {
        let token = AddedToken::from(added.content.as_str(), added.special)
            .lstrip(added.lstrip)
            .rstrip(added.rstrip)
            .single_word(added.single_word)
            .normalized(added.normalized);
        Ok((token_id(vocab, "added token", added.id)?, token))
    });
    entries.collect()
}

fn token_texts(vocab: &Vocab, added: &[(u32, AddedToken)]) -> Result<Vec<TokenText>, TextError> {
    if u32::try_from(vocab.tokens.len()).is_err() {
        return Err(TextError::Vocab {
            field: "tokens",
            reason: "are more than ids".to_owned(),
        });
    }
    let alphabet = Bytes::new();
    let mut tokens: Vec<TokenText> = vocab
        .tokens
        .iter()
        .enumerate()
        .map(|(at, text)| {
            let kind = vocab.kinds.get(at).copied().unwrap_or(TokenKind::Normal);
            let whole = matches!(kind, TokenKind::Control | TokenKind::UserDefined);
            let bytes = if whole { None } else { alphabet.of(text) };
            TokenText {
                bytes: bytes.unwrap_or_else(|| text.as_bytes().to_vec()),
                text: text.clone(),
                special: kind == TokenKind::Control,
            }
        })
        .collect();
    for (id, token) in added {
        let entry = &mut tokens[*id as usize];
        entry.text.clone_from(&token.content);
        entry.bytes = token.content.as_bytes().to_vec();
        entry.special = token.special;
    }
    Ok(tokens)
}

/// Every token's id by its text. Rows without a token are left out; of two tokens of one text
/// the added one counts, else the first.
fn token_ids(vocab: &Vocab, added: &[(u32, AddedToken)]) -> TokenIds {
    let is_used = |at: usize| vocab.kinds.get(at) != Some(&TokenKind::Unused);
    let tokens = (0u32..).zip(&vocab.tokens).enumerate();
    let mut ids = TokenIds::default();
    for (at, (id, text)) in tokens {
        if is_used(at) && !text.is_empty() {
            ids.entry(text.clone()).or_insert(id);
        }
    }
    ids.extend(added.iter().map(|(id, token)| (token.content.clone(), *id)));
    ids
}

fn added_vocabulary<N: Normalizer>(
    added: &[(u32, AddedToken)],
    model: &BPE,
    normalizer: Option<&N>,
) -> Result<AddedVocabulary, TextError> {
    let mut vocabulary = AddedVocabulary::new();
    let tokens = added.iter().map(|(_, token)| token.clone());
    vocabulary
        .add_tokens(tokens, model, normalizer)
        .map_err(TextError::Encode)?;
    Ok(vocabulary)
}

fn specials(vocab: &Vocab) -> Result<Specials, TextError> {
    let optional = |field, id: i32| match id {
        ..0 => Ok(None),
        id => token_id(vocab, field, id).map(Some),
    };
    Ok(Specials {
        bos: optional("BOS", vocab.special.bos)?,
        eos: optional("EOS", vocab.special.eos)?,
        unknown: optional("Unk", vocab.special.unk)?,
        pad: optional("Pad", vocab.special.pad)?,
        add_bos: vocab.add_bos,
        add_eos: vocab.add_eos,
    })
}

fn token_id(vocab: &Vocab, field: &'static str, id: i32) -> Result<u32, TextError> {
    u32::try_from(id)
        .ok()
        .filter(|id| (*id as usize) < vocab.tokens.len())
        .ok_or_else(|| TextError::Vocab {
            field,
            reason: format!("id {id} is outside the {} tokens", vocab.tokens.len()),
        })
}

/// Bytes of one text; far above any context window.
const MAX_TEXT: usize = 16 << 20;
