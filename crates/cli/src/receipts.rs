//! `chancery receipts`.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use api::client::Client;
use api::v1::{
    GetCheckpointRequest, GetReceiptRequest, ListReceiptsRequest, LoggedReceipt,
    get_receipt_request::Which,
};
use custody::Trust;
use identifiers::ReceiptId;
use receipt::Receipt;
use serde::Serialize;
use tlog::OfflineProof;

use crate::args::ReceiptsCommand;
use crate::audit::{self, Audit, Log};
use crate::context::{Context, Person, Workload};
use crate::outcome::{Outcome, WrongUse, heading, table, time};
use crate::progress;

/// Runs a command.
pub async fn execute(state: &Path, command: ReceiptsCommand) -> Result<Outcome> {
    match command {
        ReceiptsCommand::List {
            from,
            event,
            artifact,
            actor,
        } => {
            let filter = ListReceiptsRequest {
                page_size: 1000,
                from_index: from,
                event: event.unwrap_or_default(),
                artifact_digest: artifact.unwrap_or_default(),
                actor: actor.unwrap_or_default(),
            };
            list(&Context::load(state)?, filter).await
        }
        ReceiptsCommand::Show { receipt } => show(&Context::load(state)?, receipt).await,
        ReceiptsCommand::Export { output } => {
            let context = Context::load(state)?;
            let trust = context.trusted()?;
            let log = fetch(&context).await?;
            log.verify(&Trust::try_from(&trust)?, None)?;
            log.export(&output, &trust)?;
            let view = ExportView {
                folder: output.display().to_string(),
                entries: log.entries.len(),
            };
            let text = format!("{} receipts in {}", view.entries, view.folder);
            Ok(Outcome::new(&view, text))
        }
        ReceiptsCommand::Verify {
            folder,
            trust,
            checkpoint,
        } => {
            let held = checkpoint.as_deref().map(read_held).transpose()?;
            let held = held.flatten();
            let (audit, newest) = match folder {
                Some(folder) => {
                    let audit = audit::verify_folder(&folder, trust.as_deref(), held.as_deref())?;
                    (audit, Log::import(&folder)?.checkpoint)
                }
                None => {
                    let context = Context::load(state)?;
                    let keys = match &trust {
                        Some(path) => service_runtime::TrustFile::load(path)?,
                        None => context.trusted()?,
                    };
                    let log = fetch(&context).await?;
                    let audit = log.verify(&Trust::try_from(&keys)?, held.as_deref())?;
                    (audit, log.checkpoint)
                }
            };
            if let Some(path) = &checkpoint {
                fs::write(path, newest)
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            Ok(Outcome::new(&audit, audit_text(&audit)))
        }
    }
}

#[derive(Serialize)]
struct ExportView {
    folder: String,
    entries: usize,
}

/// A receipt and where it is in the log.
#[derive(Serialize)]
struct ReceiptView {
    index: u64,
    #[serde(flatten)]
    receipt: Receipt,
}

impl ReceiptView {
    /// Verified: nothing of a receipt is shown whose signature does not hold.
    fn of(logged: &LoggedReceipt, trust: &Trust) -> Result<Self> {
        let verified = Receipt::verify(&logged.envelope, &trust.signers)
            .with_context(|| format!("entry {}", logged.index))?;
        Ok(Self {
            index: logged.index,
            receipt: verified.into_inner(),
        })
    }

    fn what(&self) -> String {
        match (&self.receipt.artifact, &self.receipt.key) {
            (Some(artifact), _) => artifact.model.clone(),
            (None, Some(key)) => format!("key {}", key.fingerprint),
            (None, None) => "-".to_owned(),
        }
    }
}

async fn list(context: &Context, mut filter: ListReceiptsRequest) -> Result<Outcome> {
    let client = context.client(Workload::Registry, Person::Auditor)?;
    let trust = Trust::try_from(&context.trusted()?)?;
    let mut views = Vec::new();
    loop {
        let page = client
            .call(|| {
                let (mut service, request) = (client.registry_service(), filter.clone());
                async move { service.list_receipts(request).await }
            })
            .await?
            .into_inner();
        for logged in &page.receipts {
            views.push(ReceiptView::of(logged, &trust)?);
        }
        if page.next_index == 0 {
            break;
        }
        filter.from_index = page.next_index;
    }
    let mut rows = vec![heading(&[
        "INDEX", "TIME", "EVENT", "OF", "ACTOR", "REASON",
    ])];
    rows.extend(views.iter().map(|view| {
        vec![
            view.index.to_string(),
            time(view.receipt.time / 1000),
            view.receipt.event.as_str().to_owned(),
            view.what(),
            view.receipt.actor.to_string(),
            view.receipt.reason.clone().unwrap_or_default(),
        ]
    }));
    Ok(Outcome::new(&views, table(&rows)))
}

async fn show(context: &Context, which: String) -> Result<Outcome> {
    let which = match (which.parse::<u64>(), which.parse::<ReceiptId>()) {
        (Ok(index), _) => Which::Index(index),
        (_, Ok(_)) => Which::ReceiptId(which),
        _ => bail!(WrongUse(format!(
            "{which}: neither a receipt's id nor a log index"
        ))),
    };
    let client = context.client(Workload::Registry, Person::Auditor)?;
    let request = GetReceiptRequest { which: Some(which) };
    let logged = client
        .call(|| {
            let (mut service, request) = (client.registry_service(), request.clone());
            async move { service.get_receipt(request).await }
        })
        .await?
        .into_inner();
    let trust = Trust::try_from(&context.trusted()?)?;
    let view = ReceiptView::of(&logged, &trust)?;
    let proof: OfflineProof = logged.proof.parse()?;
    let checkpoint = proof.verify(&logged.envelope, &trust.log)?;
    let statement = serde_json::to_string_pretty(&view)?;
    let text = format!(
        "{statement}\nsignature and inclusion in the log of {} entries: verified",
        checkpoint.size
    );
    Ok(Outcome::new(&view, text))
}

/// Every entry up to the newest checkpoint.
async fn fetch(context: &Context) -> Result<Log> {
    let client = context.client(Workload::Registry, Person::Auditor)?;
    let checkpoint = client
        .call(|| {
            let mut service = client.registry_service();
            async move { service.get_checkpoint(GetCheckpointRequest {}).await }
        })
        .await?
        .into_inner();
    let bar = progress::waiting("fetching receipts");
    let entries = fetch_entries(&client, checkpoint.size).await?;
    bar.finish_and_clear();
    Ok(Log {
        checkpoint: checkpoint.note,
        entries,
    })
}

async fn fetch_entries(client: &Client, size: u64) -> Result<Vec<Vec<u8>>> {
    let mut entries = Vec::new();
    while (entries.len() as u64) < size {
        let request = ListReceiptsRequest {
            page_size: 1000,
            from_index: entries.len() as u64,
            ..Default::default()
        };
        let page = client
            .call(|| {
                let (mut service, request) = (client.registry_service(), request.clone());
                async move { service.list_receipts(request).await }
            })
            .await?
            .into_inner();
        let before = entries.len();
        for logged in page.receipts {
            if logged.index != entries.len() as u64 {
                bail!("the registry left out entry {}", entries.len());
            }
            if logged.index < size {
                entries.push(logged.envelope);
            }
        }
        if entries.len() == before {
            bail!("the registry gives {before} of {size} entries");
        }
    }
    Ok(entries)
}

/// A checkpoint held from before; nothing at the first time.
fn read_held(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(note) => Ok(Some(note)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(anyhow::Error::new(error).context(format!("cannot read {}", path.display())))
        }
    }
}

fn audit_text(audit: &Audit) -> String {
    let mut rows = vec![
        vec!["log".to_owned(), audit.origin.clone()],
        vec!["entries".to_owned(), audit.entries.to_string()],
        vec!["root".to_owned(), audit.root.clone()],
    ];
    if let Some(size) = audit.extends {
        let held = format!("the checkpoint of {size} entries held from before");
        rows.push(vec!["extends".to_owned(), held]);
    }
    rows.extend(
        audit
            .events
            .iter()
            .map(|(event, count)| vec![(*event).to_owned(), count.to_string()]),
    );
    rows.push(vec![
        "verified".to_owned(),
        "every signature and the whole tree".to_owned(),
    ]);
    table(&rows)
}
