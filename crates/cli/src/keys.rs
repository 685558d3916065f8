//! `chancery keys`.

use std::path::Path;

use anyhow::{Context as _, Result};
use api::client::Client;
use api::v1::{
    CreateKeyRequest, DisableKeyRequest, GetImportKeyRequest, GetKeyRequest, HpkeSealed,
    ImportKeyRequest, Key, KeyOrigin, KeyState, ListKeysRequest,
};
use key_wrap::seal_model_key;
use model_key::{KeyFile, ModelKey, ScryptCost, SubkeySource};
use serde::Serialize;
use service_runtime::{Randomness, SystemRandomness};

use crate::args::{KeysCommand, PassphraseArgs, RequestArgs};
use crate::context::{Context, Person, Workload, request_id};
use crate::files;
use crate::on_runtime;
use crate::outcome::{Outcome, heading, table, time};
use crate::progress;

/// Runs a command.
pub fn execute(state: &Path, command: KeysCommand) -> Result<Outcome> {
    match command {
        KeysCommand::Inspect { file, passphrase } => inspect(&file, &passphrase),
        KeysCommand::Generate { output, passphrase } => generate(&output, &passphrase),
        online => on_runtime(execute_online(state, online)),
    }
}

/// A key's public record.
#[derive(Serialize)]
struct KeyView {
    id: String,
    name: String,
    fingerprint: String,
    version: u32,
    state: &'static str,
    origin: &'static str,
    source_aggregate: Option<String>,
    created_at: i64,
    disabled_at: Option<i64>,
}

impl KeyView {
    fn of(key: Key) -> Self {
        Self {
            state: match key.state() {
                KeyState::Active => "active",
                KeyState::Disabled => "disabled",
                KeyState::Destroyed => "destroyed",
                KeyState::Unspecified => "unknown",
            },
            origin: match key.origin() {
                KeyOrigin::Created => "created",
                KeyOrigin::Imported => "imported",
                KeyOrigin::Unspecified => "unknown",
            },
            id: key.id,
            name: key.name,
            fingerprint: key.fingerprint,
            version: key.version,
            source_aggregate: Some(key.source_aggregate).filter(|text| !text.is_empty()),
            created_at: key.created_at,
            disabled_at: Some(key.disabled_at).filter(|seconds| *seconds != 0),
        }
    }

    fn text(&self) -> String {
        let mut rows = vec![
            vec!["name".to_owned(), self.name.clone()],
            vec!["id".to_owned(), self.id.clone()],
            vec!["fingerprint".to_owned(), self.fingerprint.clone()],
            vec!["version".to_owned(), self.version.to_string()],
            vec!["state".to_owned(), self.state.to_owned()],
            vec!["origin".to_owned(), self.origin.to_owned()],
            vec!["created".to_owned(), time(self.created_at)],
        ];
        if let Some(aggregate) = &self.source_aggregate {
            rows.push(vec!["source".to_owned(), aggregate.clone()]);
        }
        if let Some(disabled) = self.disabled_at {
            rows.push(vec!["disabled".to_owned(), time(disabled)]);
        }
        table(&rows)
    }
}

async fn execute_online(state: &Path, command: KeysCommand) -> Result<Outcome> {
    let context = Context::load(state)?;
    let client = context.client(Workload::KeyService, Person::Operator)?;
    let key = match command {
        KeysCommand::Create { name, request } => create(&client, name, &request).await?,
        KeysCommand::Import {
            file,
            name,
            passphrase,
            request,
        } => {
            let key = files::open_key_file(&file, &passphrase)?;
            import(&client, &key, name, &request).await?
        }
        KeysCommand::Show { key } => {
            let request = GetKeyRequest { key };
            client
                .call(|| {
                    let (mut service, request) = (client.key_service(), request.clone());
                    async move { service.get_key(request).await }
                })
                .await?
                .into_inner()
        }
        KeysCommand::Disable {
            key,
            reason,
            request,
        } => {
            let request = DisableKeyRequest {
                request_id: request_id(request.request_id.as_deref())?,
                key,
                reason,
            };
            client
                .call(|| {
                    let (mut service, request) = (client.key_service(), request.clone());
                    async move { service.disable_key(request).await }
                })
                .await?
                .into_inner()
        }
        KeysCommand::List => return list(&client).await,
        KeysCommand::Inspect { file, passphrase } => return inspect(&file, &passphrase),
        KeysCommand::Generate { output, passphrase } => return generate(&output, &passphrase),
    };
    let view = KeyView::of(key);
    Ok(Outcome::new(&view, view.text()))
}

async fn create(client: &Client, name: String, request: &RequestArgs) -> Result<Key> {
    let request = CreateKeyRequest {
        request_id: request_id(request.request_id.as_deref())?,
        name,
    };
    let answer = client
        .call(|| {
            let (mut service, request) = (client.key_service(), request.clone());
            async move { service.create_key(request).await }
        })
        .await?;
    Ok(answer.into_inner())
}

/// Encrypts a model key to the key service's import key; the clear key never leaves this process.
async fn import(
    client: &Client,
    key: &ModelKey,
    name: String,
    request: &RequestArgs,
) -> Result<Key> {
    let import_key = client
        .call(|| {
            let mut service = client.key_service();
            async move { service.get_import_key(GetImportKeyRequest {}).await }
        })
        .await?
        .into_inner();
    let recipient: [u8; 32] = import_key
        .public_key
        .as_slice()
        .try_into()
        .context("the key service's import key is not 32 bytes")?;
    let randomness: &dyn Randomness = &SystemRandomness;
    let sealed = seal_model_key(&mut randomness.rng(), &recipient, key)?;
    let request = ImportKeyRequest {
        request_id: request_id(request.request_id.as_deref())?,
        name,
        fingerprint: key.fingerprint().to_string(),
        import_key_id: import_key.key_id,
        key: Some(HpkeSealed {
            enc: sealed.enc.to_vec(),
            ciphertext: sealed.ciphertext,
        }),
    };
    let answer = client
        .call(|| {
            let (mut service, request) = (client.key_service(), request.clone());
            async move { service.import_key(request).await }
        })
        .await?;
    Ok(answer.into_inner())
}

async fn list(client: &Client) -> Result<Outcome> {
    let mut views = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListKeysRequest {
            page_size: 0,
            page_token,
        };
        let page = client
            .call(|| {
                let (mut service, request) = (client.key_service(), request.clone());
                async move { service.list_keys(request).await }
            })
            .await?
            .into_inner();
        views.extend(page.keys.into_iter().map(KeyView::of));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let mut rows = vec![heading(&[
        "NAME",
        "FINGERPRINT",
        "STATE",
        "ORIGIN",
        "CREATED",
        "ID",
    ])];
    rows.extend(views.iter().map(|key| {
        vec![
            key.name.clone(),
            key.fingerprint.clone(),
            key.state.to_owned(),
            key.origin.to_owned(),
            time(key.created_at),
            key.id.clone(),
        ]
    }));
    Ok(Outcome::new(&views, table(&rows)))
}

/// What a key file says, and with its passphrase what was checked.
#[derive(Serialize)]
struct KeyFileView {
    kind: &'static str,
    fingerprint: String,
    opened: bool,
}

fn inspect(file: &Path, passphrase: &PassphraseArgs) -> Result<Outcome> {
    let parsed = files::parse_key_file(file)?;
    let kind = match &parsed {
        KeyFile::Open(_) => "open",
        KeyFile::Sealed(_) => "sealed",
    };
    let fingerprint = parsed.fingerprint().to_string();
    let opened = kind == "open" || passphrase.passphrase_file.is_some();
    if opened {
        files::open_key_file(file, passphrase)?;
    }
    let view = KeyFileView {
        kind,
        fingerprint,
        opened,
    };
    let checked = match view.opened {
        true => "it is the key's",
        false => "as recorded: give --passphrase-file to check it",
    };
    let text = format!(
        "{} key file\nfingerprint {} ({checked})",
        view.kind, view.fingerprint
    );
    Ok(Outcome::new(&view, text))
}

fn generate(output: &Path, passphrase: &PassphraseArgs) -> Result<Outcome> {
    let randomness: &dyn Randomness = &SystemRandomness;
    let key = ModelKey::generate(&mut randomness.rng());
    match files::passphrase_of(passphrase)? {
        None => {
            files::write_new_private(output, model_key::write_open_key_file(&key).expose())?;
        }
        Some(passphrase) => {
            let spinner = progress::waiting("deriving a key from the passphrase");
            let file = model_key::write_sealed_key_file(
                &key,
                &passphrase,
                ScryptCost::DEFAULT,
                &mut randomness.rng(),
            )?;
            spinner.finish_and_clear();
            files::write_new_private(output, &file)?;
        }
    }
    let view = KeyFileView {
        kind: match passphrase.passphrase_file {
            None => "open",
            Some(_) => "sealed",
        },
        fingerprint: key.fingerprint().to_string(),
        opened: true,
    };
    let text = format!("{} {}", view.fingerprint, output.display());
    Ok(Outcome::new(&view, text))
}
