//! Chat templates, rendered as the `transformers` library renders them.

use std::collections::HashMap;
use std::io::{self, Write};

use jlm::Vocab;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::Value as Json;

use crate::error::ChatError;
use crate::tokenizer::Tokenizer;

/// What one rendering may use. A template comes with the model and is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Instructions and bytes of intermediate text, in the engine's fuel units.
    pub fuel: u64,
    /// Bytes of output.
    pub output: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            fuel: 1_000_000,
            output: 4 << 20,
        }
    }
}

/// A parsed chat template of a container.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    name: String,
    specials: Vec<(&'static str, Value)>,
    limits: RenderLimits,
}

impl ChatTemplate {
    /// The container's template called `name`. An empty name is the default: the unnamed one, or
    /// the one named `default`.
    pub fn new(
        vocab: &Vocab,
        tokenizer: &Tokenizer,
        name: &str,
        limits: RenderLimits,
    ) -> Result<Self, ChatError> {
        let template = vocab
            .templates
            .iter()
            .find(|t| t.name == name)
            .or_else(|| {
                let default = name.is_empty();
                vocab
                    .templates
                    .iter()
                    .find(|t| default && t.name == "default")
            })
            .ok_or_else(|| ChatError::Missing {
                name: name.to_owned(),
            })?;
        let specials = [
            ("bos_token", tokenizer.bos()),
            ("eos_token", tokenizer.eos()),
            ("unk_token", tokenizer.unknown()),
            ("pad_token", tokenizer.pad()),
        ]
        .into_iter()
        .filter_map(|(key, id)| Some((key, Value::from(tokenizer.token(id?)?))))
        .collect();
        Self::parse(&template.name, &template.body, specials, limits)
    }

    fn parse(
        name: &str,
        body: &str,
        specials: Vec<(&'static str, Value)>,
        limits: RenderLimits,
    ) -> Result<Self, ChatError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .expect("the default delimiters are valid");
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_recursion_limit(RECURSION);
        environment.set_fuel(Some(limits.fuel));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned(TEMPLATE, without_generation_tags(body))
            .map_err(|source| ChatError::Parse {
                name: name.to_owned(),
                source,
            })?;
        Ok(Self {
            environment,
            name: name.to_owned(),
            specials,
            limits,
        })
    }

    /// Writes a conversation. `messages` is the list of `{role, content, ..}` objects;
    /// `variables` are further names the template may read (`tools`, `enable_thinking`, ..).
    /// With `add_generation_prompt` the text ends where the assistant's answer begins.
    pub fn render(
        &self,
        messages: &[Json],
        add_generation_prompt: bool,
        variables: &serde_json::Map<String, Json>,
    ) -> Result<String, ChatError> {
        let mut context: HashMap<String, Value> = self
            .specials
            .iter()
            .map(|(key, value)| ((*key).to_owned(), value.clone()))
            .collect();
        let given = variables.iter();
        context.extend(given.map(|(key, value)| (key.clone(), Value::from(Serde(value)))));
        context.insert("messages".to_owned(), Value::from(Serde(messages)));
        context.insert(
            "add_generation_prompt".to_owned(),
            add_generation_prompt.into(),
        );

        let template = self
            .environment
            .get_template(TEMPLATE)
            .map_err(|source| self.failed(source))?;
        let mut out = Bounded {
            text: Vec::new(),
            maximum: self.limits.output,
            full: false,
        };
        match template.render_captured_to(Value::from(context), &mut out) {
            _ if out.full => Err(ChatError::Bound { bound: "output" }),
            Ok(_) => Ok(String::from_utf8_lossy(&out.text).into_owned()),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, source: Error) -> ChatError {
        if source.kind() == ErrorKind::OutOfFuel {
            return ChatError::Bound {
                bound: "instructions",
            };
        }
        match source
            .detail()
            .and_then(|detail| detail.strip_prefix(RAISED))
        {
            Some(reason) => ChatError::Refused {
                reason: reason.to_owned(),
            },
            None => ChatError::Render {
                name: self.name.clone(),
                source,
            },
        }
    }
}

/// Output that stops at a bound.
struct Bounded {
    text: Vec<u8>,
    maximum: usize,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.maximum - self.text.len() {
            self.full = true;
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn raise_exception(reason: &str) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{RAISED}{reason}"),
    ))
}

/// `json.dumps(value, ensure_ascii=False)`: `", "` and `": "` between items, or one item a line
/// under `indent`; nothing is escaped for HTML.
fn tojson(value: Serde<Json>, indent: Option<Value>, arguments: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => arguments.get::<Option<Value>>("indent")?,
    };
    // Accepted and without effect, as in the original's common calls.
    let _: Option<Value> = arguments.get("ensure_ascii")?;
    arguments.assert_all_used()?;
    let indent = match indent.filter(|v| !v.is_none() && !v.is_undefined()) {
        Some(width) => Some(usize::try_from(width)?.min(MAX_INDENT)),
        None => None,
    };
    let mut out = String::new();
    write_json(&value, indent, 0, &mut out);
    Ok(out)
}

fn write_json(value: &Json, indent: Option<usize>, depth: usize, out: &mut String) {
    let line = |out: &mut String, depth: usize| {
        if let Some(width) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value {
        Json::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push_str(separator);
                }
                line(out, depth + 1);
                write_json(item, indent, depth + 1, out);
            }
            line(out, depth);
            out.push(']');
        }
        Json::Object(fields) if !fields.is_empty() => {
            out.push('{');
            for (i, (key, item)) in fields.iter().enumerate() {
                if i > 0 {
                    out.push_str(separator);
                }
                line(out, depth + 1);
                out.push_str(&Json::String(key.clone()).to_string());
                out.push_str(": ");
                write_json(item, indent, depth + 1, out);
            }
            line(out, depth);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

/// The body with `{% generation %}` and `{% endgeneration %}` (which only mark the assistant's
/// text for training masks) turned into blocks that change nothing.
fn without_generation_tags(body: &str) -> String {
    let mut out = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        let replacement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str("{%");
        match replacement {
            Some(block) => out.push_str(&inner.replacen(word, &format!(" {block} "), 1)),
            None => out.push_str(inner),
        }
        out.push_str("%}");
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

const TEMPLATE: &str = "chat";
const RAISED: &str = "raised by the template: ";
const RECURSION: usize = 64;
const MAX_INDENT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(body: &str, messages: Json) -> Result<String, ChatError> {
        let template = ChatTemplate::parse("t", body, Vec::new(), RenderLimits::default())?;
        let messages = messages.as_array().expect("a list");
        template.render(messages, true, &serde_json::Map::new())
    }

    #[test]
    fn blocks_are_trimmed_as_transformers_does() {
        let body = "{% for m in messages %}\n  {% if m.role == 'user' %}\n[{{ m['content'] }}]\n  {% endif %}\n{% endfor %}\n{{ 'go' if add_generation_prompt }}";
        let text = render(body, json!([{"role": "user", "content": "<&>"}])).unwrap();
        assert_eq!(text, "[<&>]\ngo");
    }

    #[test]
    fn python_methods_and_loop_controls_work() {
        let body = "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content.strip().split('b')[0].upper() }}{% endfor %}";
        assert_eq!(
            render(body, json!([{"content": " abc "}, {"content": "x"}])).unwrap(),
            "A"
        );
        let body = "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}";
        assert_eq!(
            render(body, json!([{"z": 1, "a": true}])).unwrap(),
            "z=1;a=True;"
        );
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        let messages = json!([{"b": [1, 2.5, "é<"], "a": {}, "n": null}]);
        assert_eq!(
            render("{{ messages[0] | tojson }}", messages.clone()).unwrap(),
            r#"{"b": [1, 2.5, "é<"], "a": {}, "n": null}"#
        );
        assert_eq!(
            render("{{ messages[0] | tojson(indent=2) }}", messages).unwrap(),
            "{\n  \"b\": [\n    1,\n    2.5,\n    \"é<\"\n  ],\n  \"a\": {},\n  \"n\": null\n}"
        );
    }

    #[test]
    fn generation_tags_change_nothing() {
        let body =
            "a{%- generation -%} b {%- endgeneration %}c{% generation %}d{% endgeneration %}";
        assert_eq!(render(body, json!([])).unwrap(), "abcd");
    }

    #[test]
    fn a_raised_exception_is_a_refusal_with_its_reason() {
        let error = render("{{ raise_exception('roles must alternate') }}", json!([])).unwrap_err();
        assert!(matches!(error, ChatError::Refused { reason } if reason == "roles must alternate"));
    }

    #[test]
    fn templates_run_within_their_bounds() {
        let endless =
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
        let error = render(endless, json!([])).unwrap_err();
        assert!(matches!(
            error,
            ChatError::Bound {
                bound: "instructions"
            }
        ));

        let doubling = "{% set n = namespace(s='xxxxxxxxxxxxxxxx') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}";
        let error = render(doubling, json!([])).unwrap_err();
        assert!(matches!(error, ChatError::Bound { .. }), "{error:?}");

        let wide = "{% for a in range(6000) %}{{ 'x' * 1000 }}{% endfor %}";
        let error = render(wide, json!([])).unwrap_err();
        assert!(
            matches!(error, ChatError::Bound { bound: "output" }),
            "{error:?}"
        );
    }

    #[test]
    fn a_broken_template_is_refused_when_it_is_parsed() {
        assert!(matches!(
            render("{% for %}", json!([])),
            Err(ChatError::Parse { .. })
        ));
    }
}
