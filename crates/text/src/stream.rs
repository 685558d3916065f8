//! Text from ids as they are drawn.

use crate::error::TextError;
use crate::tokenizer::Tokenizer;

/// Turns ids into text one at a time. Bytes of a character that is not complete yet are held
/// back, so that what was given out is never a broken character; bytes that can never become one
/// are given as U+FFFD, as the source tokenizer's decoder does.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    held: Vec<u8>,
    skip_special: bool,
}

impl StreamDecoder {
    /// A decoder at the start of a text; `skip_special` leaves special tokens out of it.
    #[must_use]
    pub fn new(skip_special: bool) -> Self {
        Self {
            held: Vec::new(),
            skip_special,
        }
    }

    /// The text that is certain once `id` is known: empty while a character is incomplete.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, TextError> {
        let bytes = tokenizer.bytes(id)?;
        if self.skip_special && tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.held.extend_from_slice(bytes);
        let mut out = String::new();
        let mut rest = self.held.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(good));
                    let Some(length) = error.error_len() else {
                        rest = bad;
                        break;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    rest = &bad[length..];
                }
            }
        }
        self.held = rest.to_vec();
        Ok(out)
    }

    /// What is left when the text ends: a character cut short becomes U+FFFD.
    #[must_use]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }
}
