//! The vocab record: tokenizer and chat templates (spec: container, B.2).

use std::fmt;

use codec::{DecodeError, Fault, Reader, Writer};

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident, $label:literal { $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $code,)*
        }

        impl $name {
            /// The value with this code.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let before = r.clone();
                let code = r.u8($label)?;
                Self::from_code(code).ok_or_else(|| {
                    before.error($label, Fault::Invalid(format!("{code} is not known")))
                })
            }
        }
    };
}

codes! {
    /// How text becomes tokens.
    VocabKind, "vocab kind" {
        /// SentencePiece: merges by score.
        Spm = 1 "spm",
        /// Byte-pair encoding: merges by rank.
        Bpe = 2 "bpe",
        /// WordPiece.
        Wpm = 3 "wpm",
        /// Byte-pair encoding over SentencePiece text.
        BpeSpm = 4 "bpe-spm",
    }
}

codes! {
    /// What a token is.
    TokenKind, "token kind" {
        /// A piece of text.
        Normal = 1 "normal",
        /// The unknown token.
        Unknown = 2 "unknown",
        /// A control token.
        Control = 3 "control",
        /// A token added by a user.
        UserDefined = 4 "user-defined",
        /// A row without a token.
        Unused = 5 "unused",
        /// A raw byte.
        Byte = 6 "byte",
    }
}

codes! {
    /// A step of pre-tokenization.
    PreOpKind, "pre op kind" {
        /// Split into words.
        Split = 1 "split",
        /// Map bytes to printable characters.
        ByteLevel = 2 "byte level",
        /// Split off digits.
        Digits = 3 "digits",
        /// Split off punctuation.
        Punctuation = 4 "punctuation",
        /// BERT's splits.
        Bert = 5 "bert",
        /// Digits in triples.
        DigitTriples = 6 "digit triples",
        /// Runs of punctuation.
        PunctuationRuns = 7 "punctuation runs",
        /// Groups of digits.
        DigitGroups = 8 "digit groups",
        /// Runs of kana and han characters.
        HanRuns = 9 "han runs",
        /// Hunyuan's splits.
        Hunyuan = 10 "hunyuan split",
        /// Spark's splits.
        Spark = 11 "spark split",
    }
}

/// One step of pre-tokenization and its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the format's own names")]
pub struct PreOp {
    pub kind: PreOpKind,
    pub contractions: bool,
    pub case_fold: bool,
    pub letter_marks: bool,
    pub digit_group: u8,
    pub use_regex: bool,
    pub add_prefix_space: bool,
    pub individual: bool,
    pub behavior: String,
    pub case_runs: bool,
    pub suffix_contract: bool,
    pub punct_slash: bool,
    pub han_runs: bool,
    pub punct_no_newline: bool,
}

impl PreOp {
    /// A step with no parameter set.
    #[must_use]
    pub const fn new(kind: PreOpKind) -> Self {
        Self {
            kind,
            contractions: false,
            case_fold: false,
            letter_marks: false,
            digit_group: 0,
            use_regex: false,
            add_prefix_space: false,
            individual: false,
            behavior: String::new(),
            case_runs: false,
            suffix_contract: false,
            punct_slash: false,
            han_runs: false,
            punct_no_newline: false,
        }
    }
}

/// A token that is matched in the text before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedToken {
    /// Token id.
    pub id: i32,
    /// Its text.
    pub content: String,
    /// Whether decoding skips it.
    pub special: bool,
    /// Whether it takes white space before it.
    pub lstrip: bool,
    /// Whether it takes white space after it.
    pub rstrip: bool,
    /// Whether it is matched in normalized text.
    pub normalized: bool,
    /// Whether it must be a whole word.
    pub single_word: bool,
}

/// A chat template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Its name; empty for the only one.
    pub name: String,
    /// Jinja source.
    pub body: String,
}

/// Ids of special tokens, -1 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the format's own names")]
pub struct SpecialIds {
    pub bos: i32,
    pub eos: i32,
    pub unk: i32,
    pub pad: i32,
    pub sep: i32,
    pub mask: i32,
}

impl Default for SpecialIds {
    fn default() -> Self {
        Self {
            bos: -1,
            eos: -1,
            unk: -1,
            pad: -1,
            sep: -1,
            mask: -1,
        }
    }
}

/// A tokenizer and its chat templates. `Debug` prints counts only: in a sealed container the
/// table is secret.
#[derive(Clone, PartialEq)]
pub struct Vocab {
    /// How text becomes tokens.
    pub kind: VocabKind,
    /// Texts of the tokens, by id.
    pub tokens: Vec<String>,
    /// Scores by id; empty, or as long as `tokens`.
    pub scores: Vec<f32>,
    /// Kinds by id; empty, or as long as `tokens`.
    pub kinds: Vec<TokenKind>,
    /// Merges, by rank.
    pub merges: Vec<(String, String)>,
    /// Added tokens, in the source's order.
    pub added: Vec<AddedToken>,
    /// Ids of special tokens.
    pub special: SpecialIds,
    /// Whether encoding starts with the BOS token.
    pub add_bos: bool,
    /// Whether encoding ends with the EOS token.
    pub add_eos: bool,
    /// Whether a space is put before the text.
    pub add_space_prefix: bool,
    /// Whether unknown text becomes byte tokens.
    pub byte_fallback: bool,
    /// Whether a word that is a token is taken whole.
    pub ignore_merges: bool,
    /// Pre-tokenization, in order.
    pub pre_ops: Vec<PreOp>,
    /// Name of the pre-tokenizer in its source.
    pub pre_name: String,
    /// Chat templates.
    pub templates: Vec<Template>,
    /// Ids that end generation, besides EOS.
    pub stop: Vec<i32>,
}

impl fmt::Debug for Vocab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocab")
            .field("kind", &self.kind)
            .field("tokens", &self.tokens.len())
            .field("merges", &self.merges.len())
            .field("added", &self.added.len())
            .field("templates", &self.templates.len())
            .finish_non_exhaustive()
    }
}

impl Vocab {
    /// A vocab with no tokens.
    #[must_use]
    pub fn new(kind: VocabKind) -> Self {
        Self {
            kind,
            tokens: Vec::new(),
            scores: Vec::new(),
            kinds: Vec::new(),
            merges: Vec::new(),
            added: Vec::new(),
            special: SpecialIds::default(),
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
            byte_fallback: false,
            ignore_merges: false,
            pre_ops: Vec::new(),
            pre_name: String::new(),
            templates: Vec::new(),
            stop: Vec::new(),
        }
    }

    /// Decodes a vocab section.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let r = &mut reader;
        let mut vocab = Self {
            tokens: Vec::new(),
            ..Self::new(VocabKind::read(r)?)
        };
        vocab.tokens = list(r, "tokens", 4, |r| text(r, "token"))?;
        let n = vocab.tokens.len();
        vocab.scores = table(r, "scores", 4, n, |r| r.f32("score"))?;
        vocab.kinds = table(r, "kinds", 1, n, TokenKind::read)?;
        vocab.merges = list(r, "merges", 8, |r| {
            Ok((text(r, "merge")?, text(r, "merge")?))
        })?;
        vocab.added = list(r, "added tokens", 13, AddedToken::read)?;
        vocab.special = SpecialIds {
            bos: r.i32("BOS")?,
            eos: r.i32("EOS")?,
            unk: r.i32("Unk")?,
            pad: r.i32("Pad")?,
            sep: r.i32("Sep")?,
            mask: r.i32("Mask")?,
        };
        vocab.add_bos = r.bool("AddBOS")?;
        vocab.add_eos = r.bool("AddEOS")?;
        vocab.add_space_prefix = r.bool("AddSpacePrefix")?;
        vocab.byte_fallback = r.bool("ByteFallback")?;
        vocab.ignore_merges = r.bool("IgnoreMerges")?;
        vocab.pre_ops = list(r, "pre ops", 16, PreOp::read)?;
        vocab.pre_name = text(r, "pre_name")?;
        vocab.templates = list(r, "templates", 8, |r| {
            Ok(Template {
                name: text(r, "template name")?,
                body: text(r, "template body")?,
            })
        })?;
        vocab.read_tails(r)?;
        reader.finish("vocab")?;
        Ok(vocab)
    }

    /// The section's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        let o = &mut out;
        o.u8(self.kind as u8);
        write_list(o, &self.tokens, |o, token| write_text(o, token));
        write_list(o, &self.scores, |o, score| o.f32(*score));
        write_list(o, &self.kinds, |o, kind| o.u8(*kind as u8));
        write_list(o, &self.merges, |o, (left, right)| {
            write_text(o, left);
            write_text(o, right);
        });
        write_list(o, &self.added, |o, added| added.write(o));
        let ids = &self.special;
        for id in [ids.bos, ids.eos, ids.unk, ids.pad, ids.sep, ids.mask] {
            o.i32(id);
        }
        for flag in [
            self.add_bos,
            self.add_eos,
            self.add_space_prefix,
            self.byte_fallback,
            self.ignore_merges,
        ] {
            o.bool(flag);
        }
        write_list(o, &self.pre_ops, |o, op| op.write(o));
        write_text(o, &self.pre_name);
        write_list(o, &self.templates, |o, template| {
            write_text(o, &template.name);
            write_text(o, &template.body);
        });
        if !self.stop.is_empty() || self.pre_ops.iter().any(|op| op.punct_no_newline) {
            write_list(o, &self.pre_ops, |o, op| o.bool(op.punct_no_newline));
        }
        if !self.stop.is_empty() {
            write_list(o, &self.stop, |o, id| o.i32(*id));
        }
        out.into_bytes()
    }

    fn read_tails(&mut self, r: &mut Reader<'_>) -> Result<(), DecodeError> {
        if r.left() == 0 {
            return Ok(());
        }
        let before = r.clone();
        let flags = list(r, "punct_no_newline", 1, |r| r.bool("punct_no_newline"))?;
        if flags.len() != self.pre_ops.len() {
            let fault = Fault::Invalid("is not one for each pre op".to_owned());
            return Err(before.error("punct_no_newline", fault));
        }
        for (op, flag) in self.pre_ops.iter_mut().zip(flags) {
            op.punct_no_newline = flag;
        }
        if r.left() == 0 {
            return Ok(());
        }
        let before = r.clone();
        self.stop = list(r, "stop ids", 4, |r| r.i32("stop id"))?;
        let inside = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < self.tokens.len());
        if !self.stop.iter().all(inside) {
            let fault = Fault::Invalid("has an id outside the table".to_owned());
            return Err(before.error("stop ids", fault));
        }
        Ok(())
    }
}

impl AddedToken {
    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            id: r.i32("added id")?,
            content: text(r, "added content")?,
            special: r.bool("special")?,
            lstrip: r.bool("lstrip")?,
            rstrip: r.bool("rstrip")?,
            normalized: r.bool("normalized")?,
            single_word: r.bool("single_word")?,
        })
    }

    fn write(&self, out: &mut Writer) {
        out.i32(self.id);
        write_text(out, &self.content);
        for flag in [
            self.special,
            self.lstrip,
            self.rstrip,
            self.normalized,
            self.single_word,
        ] {
            out.bool(flag);
        }
    }
}

impl PreOp {
    fn read(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            kind: PreOpKind::read(r)?,
            contractions: r.bool("contractions")?,
            case_fold: r.bool("case_fold")?,
            letter_marks: r.bool("letter_marks")?,
            digit_group: r.u8("digit_group")?,
            use_regex: r.bool("use_regex")?,
            add_prefix_space: r.bool("add_prefix_space")?,
            individual: r.bool("individual")?,
            behavior: text(r, "behavior")?,
            case_runs: r.bool("case_runs")?,
            suffix_contract: r.bool("suffix_contract")?,
            punct_slash: r.bool("punct_slash")?,
            han_runs: r.bool("han_runs")?,
            punct_no_newline: false,
        })
    }

    fn write(&self, out: &mut Writer) {
        out.u8(self.kind as u8);
        out.bool(self.contractions);
        out.bool(self.case_fold);
        out.bool(self.letter_marks);
        out.u8(self.digit_group);
        out.bool(self.use_regex);
        out.bool(self.add_prefix_space);
        out.bool(self.individual);
        write_text(out, &self.behavior);
        out.bool(self.case_runs);
        out.bool(self.suffix_contract);
        out.bool(self.punct_slash);
        out.bool(self.han_runs);
    }
}

/// A list whose elements take at least `element` bytes each.
fn list<T>(
    r: &mut Reader<'_>,
    field: &'static str,
    element: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let count = r.count(field, element, MAX_LIST)?;
    (0..count).map(|_| read(r)).collect()
}

/// A list that is empty or has an element for each token.
fn table<T>(
    r: &mut Reader<'_>,
    field: &'static str,
    element: usize,
    tokens: usize,
    read: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let before = r.clone();
    let values = list(r, field, element, read)?;
    if values.is_empty() || values.len() == tokens {
        return Ok(values);
    }
    let fault = Fault::Invalid(format!("{} values for {tokens} tokens", values.len()));
    Err(before.error(field, fault))
}

fn text(r: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
    let length = r.count(field, 1, MAX_TEXT)?;
    r.text(field, length, MAX_TEXT).map(str::to_owned)
}

fn write_list<T>(out: &mut Writer, values: &[T], mut write: impl FnMut(&mut Writer, &T)) {
    out.u32(values.len() as u32);
    values.iter().for_each(|value| write(out, value));
}

fn write_text(out: &mut Writer, text: &str) {
    out.u32(text.len() as u32);
    out.bytes(text.as_bytes());
}

/// Largest number of tokens, merges or other list elements.
const MAX_LIST: usize = 1 << 24;
/// Largest text in bytes: a chat template.
const MAX_TEXT: usize = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_token() {
        let mut vocab = Vocab::new(VocabKind::Bpe);
        vocab.tokens.push("MARKER".to_owned());
        assert!(!format!("{vocab:?}").contains("MARKER"));
    }

    #[test]
    fn stop_ids_bring_the_first_tail_along() {
        let mut vocab = Vocab::new(VocabKind::Bpe);
        vocab.tokens = vec!["a".to_owned(), "b".to_owned()];
        let plain = vocab.encode().len();
        vocab.stop = vec![1];
        let bytes = vocab.encode();
        assert_eq!(bytes.len(), plain + 4 + 8);
        assert_eq!(Vocab::decode(&bytes).unwrap(), vocab);
        vocab.stop = vec![2];
        assert!(Vocab::decode(&vocab.encode()).is_err());
    }
}
