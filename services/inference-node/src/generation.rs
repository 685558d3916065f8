//! Generation as it is asked for: checked, and turned into token ids.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use api::v1::generate_request::Input;
use api::{InvalidField, fields, v1};
use engine::{RunError, Sampling};
use futures::Stream;
use serde_json::json;
use text::Markers;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::error::NodeError;
use crate::open::Open;

/// A checked request.
#[derive(Debug)]
pub(crate) struct Generation {
    pub model: String,
    pub input: Input,
    /// As asked for, if it was.
    pub max_tokens: Option<usize>,
    pub sampling: Sampling,
    pub seed: u64,
    pub ignore_stop: bool,
}

impl Generation {
    pub(crate) fn parse(request: v1::GenerateRequest) -> Result<Self, NodeError> {
        let input = fields::required("input", request.input)?;
        let empty = match &input {
            Input::Prompt(prompt) => prompt.is_empty(),
            Input::Chat(chat) => chat.messages.is_empty(),
            Input::Tokens(tokens) => tokens.ids.is_empty(),
        };
        if empty {
            return Err(RunError::EmptyPrompt.into());
        }
        if let Input::Chat(chat) = &input {
            for message in &chat.messages {
                fields::name("chat.messages.role", &message.role)?;
            }
        }
        let sampling = Sampling::Random {
            temperature: request.temperature,
            top_k: 0,
            // 0 is the field's absence.
            top_p: if request.top_p == 0.0 {
                1.0
            } else {
                request.top_p
            },
        };
        Ok(Self {
            model: request.model,
            input,
            max_tokens: match request.max_tokens {
                0 => None,
                tokens => Some(usize::try_from(tokens).unwrap_or(usize::MAX)),
            },
            sampling: sampling.checked()?,
            seed: request.seed,
            ignore_stop: request.ignore_stop,
        })
    }

    /// The prompt's ids. Takes time for a long text.
    pub(crate) fn prompt(&self, open: &Open) -> Result<Vec<u32>, NodeError> {
        let context = open.context();
        let ids = match &self.input {
            Input::Prompt(text) => open
                .tokenizer
                .encode_input(text, Markers::Recognise)
                .map_err(NodeError::Prompt)?,
            Input::Chat(chat) => {
                let template = open.template.as_ref();
                let template = template.map_err(|why| NodeError::NoTemplate(why.clone()))?;
                let messages: Vec<_> = chat
                    .messages
                    .iter()
                    .map(|message| json!({"role": message.role, "content": message.content}))
                    .collect();
                let text = template.render(&messages, true, &serde_json::Map::new())?;
                // The template writes the begin token itself.
                open.tokenizer
                    .encode(&text, Markers::Recognise)
                    .map_err(NodeError::Prompt)?
            }
            Input::Tokens(tokens) => tokens.ids.clone(),
        };
        let vocabulary = open.model.vocab();
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            return Err(RunError::TokenId {
                id: *id,
                size: vocabulary,
            }
            .into());
        }
        if ids.is_empty() {
            return Err(RunError::EmptyPrompt.into());
        }
        if ids.len() > context {
            return Err(RunError::Context {
                needed: ids.len(),
                maximum: context,
            }
            .into());
        }
        if let Some(tokens) = self.max_tokens.filter(|tokens| *tokens > context) {
            let reason = format!("{tokens} is more than the context of {context}");
            return Err(InvalidField::new("max_tokens", reason).into());
        }
        Ok(ids)
    }
}

/// A session's answers. Dropping them, as a cancelled call does, ends the session.
pub(crate) struct Answers {
    inner: ReceiverStream<Result<v1::GenerateResponse, Status>>,
    cancel: Arc<AtomicBool>,
}

impl Answers {
    pub(crate) fn new(
        inner: ReceiverStream<Result<v1::GenerateResponse, Status>>,
        cancel: Arc<AtomicBool>,
    ) -> Self {
        Self { inner, cancel }
    }
}

impl Stream for Answers {
    type Item = Result<v1::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.inner).poll_next(context)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

/// Tokens of a request that says nothing.
pub(crate) const DEFAULT_TOKENS: usize = 256;

#[cfg(test)]
mod tests {
    use api::ServiceError as _;

    use super::*;

    fn request() -> v1::GenerateRequest {
        v1::GenerateRequest {
            model: "tiny".to_owned(),
            input: Some(Input::Prompt("In the beginning".to_owned())),
            ..v1::GenerateRequest::default()
        }
    }

    #[test]
    fn absent_settings_have_their_defaults() {
        let parsed = Generation::parse(request()).unwrap();
        assert_eq!(parsed.max_tokens, None);
        assert_eq!(parsed.sampling, Sampling::Greedy);
    }

    #[test]
    fn wrong_settings_are_refused_by_name() {
        type Change = fn(&mut v1::GenerateRequest);
        let role = || v1::ChatMessage {
            role: "a role".to_owned(),
            content: String::new(),
        };
        let wrong: [(&str, Change); 6] = [
            ("input", |r| r.input = None),
            ("prompt has no tokens", |r| {
                r.input = Some(Input::Prompt(String::new()))
            }),
            ("prompt has no tokens", |r| {
                r.input = Some(Input::Tokens(v1::TokenIds::default()))
            }),
            ("temperature", |r| r.temperature = -1.0),
            ("top_p", |r| {
                r.temperature = 1.0;
                r.top_p = 1.5;
            }),
            ("temperature", |r| r.temperature = f32::NAN),
        ];
        for (expected, change) in wrong {
            let mut request = request();
            change(&mut request);
            let error = Generation::parse(request).unwrap_err();
            assert_eq!(error.fault(), api::Fault::Caller, "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        let mut chat = request();
        chat.input = Some(Input::Chat(v1::ChatMessages {
            messages: vec![role()],
        }));
        assert!(Generation::parse(chat).is_err());
    }
}
