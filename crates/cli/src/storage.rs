//! `chancery storage`.

use std::path::Path;

use anyhow::Result;
use api::v1::ScrubRequest;
use serde::Serialize;

use crate::args::StorageCommand;
use crate::context::{Context, Person, Workload};
use crate::outcome::{Outcome, bytes};
use crate::progress;

#[derive(Serialize)]
struct ScrubView {
    blobs: u64,
    bytes: u64,
    damaged: Vec<DamageView>,
}

#[derive(Serialize)]
struct DamageView {
    digest: String,
    problem: String,
}

/// Runs a command.
pub async fn execute(state: &Path, command: StorageCommand) -> Result<Outcome> {
    let StorageCommand::Scrub { digest } = command;
    let context = Context::load(state)?;
    let client = context.client(Workload::StorageNode, Person::Operator)?;
    let request = ScrubRequest {
        digest: digest.unwrap_or_default(),
    };
    let mut reports = client.storage_service().scrub(request).await?.into_inner();
    let mut view = ScrubView {
        blobs: 0,
        bytes: 0,
        damaged: Vec::new(),
    };
    let bar = progress::bytes("hashing", 0);
    while let Some(report) = reports.message().await? {
        view.blobs += 1;
        view.bytes += report.size;
        bar.set_position(view.bytes);
        if !report.intact {
            view.damaged.push(DamageView {
                digest: report.digest,
                problem: report.problem,
            });
        }
    }
    bar.finish_and_clear();
    let mut text = format!("{} blobs, {}", view.blobs, bytes(view.bytes));
    for damage in &view.damaged {
        text.push_str(&format!("\n{}: {}", damage.digest, damage.problem));
    }
    let damaged = view.damaged.len();
    let outcome = Outcome::new(&view, text);
    Ok(match damaged {
        0 => outcome,
        count => outcome.refused(format!("{count} damaged blobs")),
    })
}
