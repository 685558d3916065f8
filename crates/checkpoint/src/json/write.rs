use std::fmt::Write as _;

use super::Value;

/// How `json.dumps` was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// `indent=2`: config.json, kllm.json, the index.
    Indented,
    /// Separators `", "` and `": "`, text not escaped to ASCII: tokenizer.json, vocab.json.
    Utf8,
    /// Separators `", "` and `": "`, escaped to ASCII.
    Ascii,
    /// As [`Style::Ascii`], names sorted: headers that are hashed or authenticated.
    Sorted,
}

/// The value's text as Python's `json.dumps` writes it.
#[must_use]
pub fn write(value: &Value, style: Style) -> String {
    let mut out = String::new();
    write_value(&mut out, value, style, 0);
    out
}

fn write_value(out: &mut String, value: &Value, style: Style, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Integer(digits) => out.push_str(digits),
        Value::Float(value) => write_float(out, *value),
        Value::String(text) => write_string(out, text, style != Style::Utf8),
        Value::Array(items) => {
            write_all(out, '[', ']', items, style, depth, |out, item| {
                write_value(out, item, style, depth + 1);
            });
        }
        Value::Object(entries) => {
            let entry = |out: &mut String, (name, value): &(String, Value)| {
                write_string(out, name, style != Style::Utf8);
                out.push_str(": ");
                write_value(out, value, style, depth + 1);
            };
            if style == Style::Sorted {
                // Python sorts by code point, which is the order of UTF-8's bytes.
                let mut sorted: Vec<_> = entries.iter().collect();
                sorted.sort_by(|a, b| a.0.cmp(&b.0));
                write_all(out, '{', '}', &sorted, style, depth, |out, e| entry(out, e));
            } else {
                write_all(out, '{', '}', entries, style, depth, entry);
            }
        }
    }
}

fn write_all<T>(
    out: &mut String,
    open: char,
    close: char,
    items: &[T],
    style: Style,
    depth: usize,
    mut item: impl FnMut(&mut String, &T),
) {
    out.push(open);
    for (position, each) in items.iter().enumerate() {
        match style {
            Style::Indented => {
                out.push_str(if position > 0 { ",\n" } else { "\n" });
                indent(out, depth + 1);
            }
            _ if position > 0 => out.push_str(", "),
            _ => {}
        }
        item(out, each);
    }
    if style == Style::Indented && !items.is_empty() {
        out.push('\n');
        indent(out, depth);
    }
    out.push(close);
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn write_string(out: &mut String, text: &str, ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(c),
            _ if ascii || c < ' ' => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("writing to a string succeeds");
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// Python's `float.__repr__`: the shortest digits that read back, with an exponent below 1e-4 and
/// from 1e16 on.
fn write_float(out: &mut String, value: f64) {
    if value.is_nan() {
        out.push_str("NaN");
        return;
    }
    if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
        return;
    }
    // "{:e}" gives the shortest digits as d.ddde<exponent>.
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific
        .split_once('e')
        .expect("the exponent format has an e");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    if value == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{mantissa}e{sign}{:02}", exponent.unsigned_abs())
            .expect("writing to a string succeeds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-10, "1.5e-10"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e100, "1e+100"),
            (123.0, "123.0"),
            (-2.5, "-2.5"),
            (5e-324, "5e-324"),
        ];
        for (value, text) in cases {
            assert_eq!(write(&Value::Float(value), Style::Ascii), text);
        }
    }
}
