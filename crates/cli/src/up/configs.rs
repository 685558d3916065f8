//! The services' config files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use database::Schema;
use service_runtime::IdentityFiles;
use toml::{Table, Value};

use super::installation::{KeyPaths, spiffe};
use super::layout::Layout;
use super::postgres::Postgres;
use crate::context::{Context, Workload};

/// What configs are made of.
pub struct Inputs<'a> {
    pub layout: &'a Layout,
    pub keys: &'a KeyPaths,
    pub postgres: &'a Postgres,
    pub context: &'a Context,
    pub identity: &'a IdentityFiles,
    pub source_roots: &'a [PathBuf],
}

/// A service's config.
pub fn config(service: Workload, inputs: &Inputs<'_>) -> Result<Table> {
    let mut config = Table::new();
    let own = inputs.endpoints(service)?;
    let listen = own.0.trim_start_matches("https://").to_owned();
    config.insert(
        "server".to_owned(),
        table([("listen", listen.into()), ("admin", own.1.into())]),
    );
    config.insert("identity".to_owned(), identity(inputs.identity)?);
    config.insert("trust".to_owned(), path(&inputs.layout.trust())?);
    let state_dir = inputs.layout.data(service);
    match service {
        Workload::Registry => {
            config.insert("database".to_owned(), inputs.database(Schema::Registry)?);
            config.insert("state_dir".to_owned(), path(&state_dir)?);
            let keys = [
                ("log", path(&inputs.keys.log)?),
                ("receipts", path(&inputs.keys.receipts(service))?),
            ];
            config.insert("keys".to_owned(), table(keys));
        }
        Workload::StorageNode => {
            let folder = path(&state_dir.join("blobs"))?;
            config.insert("storage".to_owned(), table([("folder", folder)]));
            let issuer = spiffe(Workload::KeyService)?.to_string();
            config.insert("capability_issuer".to_owned(), issuer.into());
        }
        Workload::KeyService => {
            config.insert("database".to_owned(), inputs.database(Schema::Keys)?);
            config.insert("registry".to_owned(), inputs.peer(Workload::Registry)?);
            config.insert("policy".to_owned(), path(&inputs.layout.policy())?);
            config.insert("state_dir".to_owned(), path(&state_dir)?);
            let keys = [
                ("root", path(&inputs.keys.root)?),
                ("import", path(&inputs.keys.import)?),
                ("capability", path(&inputs.keys.capability)?),
                ("receipts", path(&inputs.keys.receipts(service))?),
            ];
            config.insert("keys".to_owned(), table(keys));
        }
        Workload::Sealer => {
            config.insert("database".to_owned(), inputs.database(Schema::Jobs)?);
            inputs.insert_peers(&mut config)?;
            let roots: Result<Vec<Value>> =
                inputs.source_roots.iter().map(|root| path(root)).collect();
            config.insert("source_roots".to_owned(), Value::Array(roots?));
            config.insert("work_dir".to_owned(), path(&state_dir.join("work"))?);
            config.insert("state_dir".to_owned(), path(&state_dir)?);
            let keys = [
                ("receipts", path(&inputs.keys.receipts(service))?),
                ("model_signing", path(&inputs.keys.model_signing)?),
            ];
            config.insert("keys".to_owned(), table(keys));
        }
        Workload::InferenceNode => {
            inputs.insert_peers(&mut config)?;
            config.insert("state_dir".to_owned(), path(&state_dir)?);
            let keys = [("receipts", path(&inputs.keys.receipts(service))?)];
            config.insert("keys".to_owned(), table(keys));
        }
    }
    Ok(config)
}

impl Inputs<'_> {
    fn endpoints(&self, service: Workload) -> Result<(String, String)> {
        let endpoints = self
            .context
            .services
            .get(&service)
            .with_context(|| format!("no address for {}", service.binary()))?;
        Ok((endpoints.rpc.clone(), endpoints.admin.clone()))
    }

    fn peer(&self, service: Workload) -> Result<Value> {
        let (rpc, _) = self.endpoints(service)?;
        Ok(table([("endpoint", rpc.into())]))
    }

    fn insert_peers(&self, config: &mut Table) -> Result<()> {
        for (section, service) in [
            ("key_service", Workload::KeyService),
            ("registry", Workload::Registry),
            ("storage", Workload::StorageNode),
        ] {
            config.insert(section.to_owned(), self.peer(service)?);
        }
        Ok(())
    }

    fn database(&self, schema: Schema) -> Result<Value> {
        Ok(table([("url", self.postgres.url(schema)?.into())]))
    }
}

fn identity(files: &IdentityFiles) -> Result<Value> {
    Ok(table([
        ("certificate", path(&files.certificate)?),
        ("private_key", path(&files.private_key)?),
        ("ca", path(&files.ca)?),
        ("trust_domain", files.trust_domain.clone().into()),
    ]))
}

fn table<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Table(
        entries
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect(),
    )
}

fn path(path: &Path) -> Result<Value> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.into())
}
