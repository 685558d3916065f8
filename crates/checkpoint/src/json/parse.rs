use super::Value;

/// The deepest nesting accepted.
pub const MAX_DEPTH: usize = 128;

/// Text that is not JSON, or that goes beyond the reader's bounds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not JSON at byte {at}: {reason}")]
pub struct JsonError {
    /// Offset in the text.
    pub at: usize,
    /// What was wrong.
    pub reason: &'static str,
}

/// Reads one value and nothing after it, as Python's `json.loads` does. Memory is bounded by the
/// text's length, recursion by [`MAX_DEPTH`].
pub fn parse(text: &[u8]) -> Result<Value, JsonError> {
    let text = std::str::from_utf8(text).map_err(|error| JsonError {
        at: error.valid_up_to(),
        reason: "not UTF-8",
    })?;
    let mut parser = Parser { text, at: 0 };
    parser.skip_space();
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(parser.error("text follows the value"));
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn value(&mut self, depth: usize) -> Result<Value, JsonError> {
        if depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'0'..=b'9') => self.number(),
            Some(b'-') if !self.text[self.at..].starts_with("-Infinity") => self.number(),
            _ => self.word(),
        }
    }

    fn word(&mut self) -> Result<Value, JsonError> {
        let words = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];
        for (word, value) in words {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.error("expected a value"))
    }

    fn object(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut entries = Vec::new();
        self.skip_space();
        if self.take(b'}') {
            return Ok(Value::Object(entries));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a name"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(b':') {
                return Err(self.error("expected a colon"));
            }
            self.skip_space();
            entries.push((name, self.value(depth + 1)?));
            self.skip_space();
            if self.take(b'}') {
                break;
            }
            if !self.take(b',') {
                return Err(self.error("expected a comma or a closing brace"));
            }
        }
        Ok(Value::Object(keep_last_value_at_first_place(entries)))
    }

    fn array(&mut self, depth: usize) -> Result<Value, JsonError> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            if !self.take(b',') {
                return Err(self.error("expected a comma or a closing bracket"));
            }
        }
    }

    fn number(&mut self) -> Result<Value, JsonError> {
        let start = self.at;
        self.take(b'-');
        let digits = self.at;
        self.digits("expected a digit")?;
        if self.at - digits > 1 && self.text.as_bytes()[digits] == b'0' {
            return Err(self.error("a number starts with 0"));
        }
        let integer = self.at;
        if self.take(b'.') {
            self.digits("expected a digit after the point")?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits("expected a digit of the exponent")?;
        }
        let lexeme = &self.text[start..self.at];
        if self.at == integer {
            // Python's int has no negative zero.
            let digits = if lexeme == "-0" { "0" } else { lexeme };
            return Ok(Value::Integer(digits.to_owned()));
        }
        let value = lexeme.parse().map_err(|_| self.error("not a number"))?;
        Ok(Value::Float(value))
    }

    fn digits(&mut self, reason: &'static str) -> Result<(), JsonError> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.error(reason));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, JsonError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let plain = rest
                .iter()
                .position(|&byte| byte == b'"' || byte == b'\\' || byte < b' ')
                .ok_or_else(|| self.error("a text does not end"))?;
            out.push_str(&self.text[self.at..self.at + plain]);
            self.at += plain;
            match rest[plain] {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                _ => return Err(self.error("a control character in a text")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, JsonError> {
        let escape = self.peek();
        self.at += 1;
        Ok(match escape {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let high = self.four_digits()?;
                if !(0xD800..0xDC00).contains(&high) {
                    return char::from_u32(high).ok_or_else(|| self.error(LONE_SURROGATE));
                }
                if !(self.take(b'\\') && self.take(b'u')) {
                    return Err(self.error(LONE_SURROGATE));
                }
                let low = self.four_digits()?;
                if !(0xDC00..0xE000).contains(&low) {
                    return Err(self.error(LONE_SURROGATE));
                }
                let code = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
                char::from_u32(code).ok_or_else(|| self.error(LONE_SURROGATE))?
            }
            _ => {
                self.at -= 1;
                return Err(self.error("an unknown escape"));
            }
        })
    }

    fn four_digits(&mut self) -> Result<u32, JsonError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        let hex = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let code = code.ok_or_else(|| self.error("expected four hex digits"))?;
        self.at += 4;
        Ok(code)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn error(&self, reason: &'static str) -> JsonError {
        JsonError {
            at: self.at,
            reason,
        }
    }
}

/// What a Python dict keeps of repeated names.
fn keep_last_value_at_first_place(mut entries: Vec<(String, Value)>) -> Vec<(String, Value)> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by(|&a, &b| entries[a].0.cmp(&entries[b].0).then(a.cmp(&b)));
    let mut dropped = vec![false; entries.len()];
    for group in order.chunk_by(|&a, &b| entries[a].0 == entries[b].0) {
        for later in &group[1..] {
            dropped[*later] = true;
        }
    }
    if !dropped.contains(&true) {
        return entries;
    }
    let moves: Vec<(usize, usize)> = order
        .chunk_by(|&a, &b| entries[a].0 == entries[b].0)
        .filter(|group| group.len() > 1)
        .map(|group| (group[0], group[group.len() - 1]))
        .collect();
    for (first, last) in moves {
        entries[first].1 = std::mem::replace(&mut entries[last].1, Value::Null);
    }
    let mut dropped = dropped.into_iter();
    entries.retain(|_| !dropped.next().unwrap_or(false));
    entries
}

const LONE_SURROGATE: &str = "a lone surrogate";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        let cases: [(&[u8], usize); 14] = [
            (b"", 0),
            (b"{", 1),
            (b"{\"a\"}", 4),
            (b"{\"a\":1,}", 7),
            (b"[1,]", 3),
            (b"01", 2),
            (b"1.", 2),
            (b"1e", 2),
            (b"\"a", 1),
            (b"\"\\q\"", 2),
            (b"\"\\ud800\"", 7),
            (b"\"\n\"", 1),
            (b"1 2", 2),
            (b"\"\xff\"", 1),
        ];
        for (text, at) in cases {
            let error = parse(text).expect_err("refused");
            assert_eq!(error.at, at, "{:?}: {error}", String::from_utf8_lossy(text));
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let text = "[".repeat(1_000_000);
        assert_eq!(
            parse(text.as_bytes()).unwrap_err().reason,
            "nested too deeply"
        );
    }

    #[test]
    fn repeated_names_keep_the_last_value_at_the_first_place() {
        let value = parse(br#"{"b":1,"a":2,"b":3,"c":4,"b":5,"a":6}"#).unwrap();
        let expected = parse(br#"{"b":5,"a":6,"c":4}"#).unwrap();
        assert_eq!(value, expected);
    }
}
