//! `chancery run`.

use std::io::{self, Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use api::v1::generate_request::Input;
use api::v1::{
    ChatMessage, ChatMessages, Finish, FinishReason, GenerateRequest, GenerateResponse, TokenIds,
};
use serde::Serialize;

use crate::args::RunArgs;
use crate::context::{Context, Person, Workload};
use crate::outcome::{Outcome, WrongUse, unwritten};

#[derive(Serialize)]
struct RunView {
    text: String,
    tokens: Vec<u32>,
    session: String,
    finish: &'static str,
    prompt_tokens: u32,
    generated_tokens: u32,
    prefill_seconds: f64,
    decode_seconds: f64,
}

/// Generates, printing the text as it comes unless JSON is wanted.
pub async fn execute(state: &Path, arguments: RunArgs, json: bool) -> Result<Outcome> {
    let request = request(arguments)?;
    let context = Context::load(state)?;
    let client = context.client(Workload::InferenceNode, Person::Platform)?;
    let mut answers = client
        .inference_service()
        .generate(request)
        .await
        .map_err(|status| client.unreachable(status))?
        .into_inner();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(answer) = answers.message().await? {
        text.push_str(&answer.text);
        match print(&answer, json) {
            // Whoever read it has seen enough; the node stops with the stream.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(Outcome::printed());
            }
            printed => printed.map_err(unwritten)?,
        }
        let Some(finish) = answer.finish else {
            tokens.push(answer.token);
            continue;
        };
        let view = RunView::new(text, tokens, answer.session_id, &finish);
        return Ok(Outcome::silent(&view));
    }
    bail!("the node ended the answer before it was finished")
}

/// Prints a piece of the text as it comes, and the line's end after the last.
fn print(answer: &GenerateResponse, json: bool) -> io::Result<()> {
    if json {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(answer.text.as_bytes())?;
    if answer.finish.is_some() {
        writeln!(out)?;
    }
    out.flush()
}

impl RunView {
    fn new(text: String, tokens: Vec<u32>, session: String, finish: &Finish) -> Self {
        Self {
            text,
            tokens,
            session,
            finish: match finish.reason() {
                FinishReason::Stop => "stop",
                FinishReason::Length => "length",
                FinishReason::Context => "context",
                FinishReason::Unspecified => "unknown",
            },
            prompt_tokens: finish.prompt_tokens,
            generated_tokens: finish.generated_tokens,
            prefill_seconds: finish.prefill_seconds,
            decode_seconds: finish.decode_seconds,
        }
    }
}

fn request(arguments: RunArgs) -> Result<GenerateRequest> {
    let prompt = match arguments.prompt {
        Some(prompt) => prompt,
        None => {
            let mut prompt = String::new();
            io::stdin()
                .take(MAX_PROMPT)
                .read_to_string(&mut prompt)
                .context("cannot read the prompt from standard input")?;
            prompt
        }
    };
    let input = if arguments.tokens {
        Input::Tokens(TokenIds {
            ids: token_ids(&prompt)?,
        })
    } else if arguments.chat {
        Input::Chat(ChatMessages {
            messages: vec![ChatMessage {
                role: "user".to_owned(),
                content: prompt,
            }],
        })
    } else {
        Input::Prompt(prompt)
    };
    Ok(GenerateRequest {
        model: arguments.model,
        input: Some(input),
        max_tokens: arguments.max_tokens,
        temperature: arguments.temperature,
        top_p: arguments.top_p,
        seed: arguments.seed,
        ignore_stop: arguments.ignore_stop,
    })
}

fn token_ids(text: &str) -> Result<Vec<u32>> {
    text.split(',')
        .map(|id| id.trim().parse())
        .collect::<Result<_, _>>()
        .map_err(|_| WrongUse("--tokens: expected token ids separated by commas".to_owned()).into())
}

const MAX_PROMPT: u64 = 16 * 1024 * 1024;
