//! What an installation consists of besides processes: keys, public keys, certificates, policy,
//! configs and the context. Everything that is there already stays.

use std::collections::BTreeMap;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ed25519_dalek::SigningKey;
use identifiers::SpiffeId;
use receipt::ModelSigner;
use secret::Secret;
use service_runtime::trust::{CapabilityKey, PublicKey, Signer};
use service_runtime::{Randomness, SystemRandomness, TrustFile, read_key, read_signing_key};
use tlog::NoteSigner;

use super::certificates::{self, NAME, TRUST_DOMAIN};
use super::configs;
use super::layout::Layout;
use super::postgres::Postgres;
use crate::context::{Context, Credentials, Endpoints, Person, Workload};
use crate::files::write_new_private;

/// Paths of the installation's secret keys, 32 bytes each.
pub struct KeyPaths {
    /// Wraps model keys.
    pub root: PathBuf,
    /// Opens imported model keys.
    pub import: PathBuf,
    /// Signs capabilities.
    pub capability: PathBuf,
    /// Signs checkpoints.
    pub log: PathBuf,
    /// Signs sealed checkpoints for the public tool.
    pub model_signing: PathBuf,
    receipts: PathBuf,
}

impl KeyPaths {
    /// The paths in a state folder.
    pub fn of(layout: &Layout) -> Self {
        let keys = layout.keys();
        Self {
            root: keys.join("root.key"),
            import: keys.join("import.key"),
            capability: keys.join("capability.key"),
            log: keys.join("log.key"),
            model_signing: keys.join("model-signing.key"),
            receipts: keys,
        }
    }

    /// A replica's receipt key.
    pub fn receipts(&self, service: Workload) -> PathBuf {
        self.receipts
            .join(format!("{}-receipts.key", service.binary()))
    }
}

/// Makes what is missing and gives the context, which is written too.
pub fn prepare(layout: &Layout, postgres: &Postgres, source_roots: &[PathBuf]) -> Result<Context> {
    let keys = KeyPaths::of(layout);
    let own = [&keys.root, &keys.import, &keys.capability, &keys.log];
    for path in own.into_iter().chain([&keys.model_signing]) {
        make_key(path)?;
    }
    write(&layout.model_signing(), &model_signing_key(&keys)?)?;
    for service in SIGNERS {
        make_key(&keys.receipts(service))?;
    }
    write(&layout.trust(), &trust(&keys)?.to_toml())?;
    if !layout.policy().exists() {
        write(&layout.policy(), POLICY)?;
    }
    let mut identities = BTreeMap::new();
    for person in Person::ALL {
        let files = certificates::issue(layout, person.role())?;
        let credentials = Credentials {
            certificate: files.certificate,
            private_key: files.private_key,
        };
        identities.insert(person, credentials);
    }
    let context = Context {
        trust_domain: TRUST_DOMAIN.to_owned(),
        ca: layout.ca().join("ca.pem"),
        trust: layout.trust(),
        services: endpoints(layout)?,
        identities,
    };
    for service in Workload::ALL {
        let identity = certificates::issue(layout, service.role())?;
        let config = configs::config(
            service,
            &configs::Inputs {
                layout,
                keys: &keys,
                postgres,
                context: &context,
                identity: &identity,
                source_roots,
            },
        )?;
        let text = toml::to_string(&config).context("a config is TOML")?;
        write(&layout.config(service), &text)?;
    }
    context.save(layout.root())?;
    Ok(context)
}

/// A service's id.
pub fn spiffe(service: Workload) -> Result<SpiffeId> {
    Ok(SpiffeId::new(TRUST_DOMAIN, service.role(), NAME)?)
}

fn make_key(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let key = Secret::<32>::fill_with(|bytes| SystemRandomness.fill(bytes));
    write_new_private(path, key.expose())
}

/// The public key of what signs sealed checkpoints, in PEM.
fn model_signing_key(keys: &KeyPaths) -> Result<String> {
    let path = &keys.model_signing;
    let scalar = Secret::<32>::try_fill_with(|bytes| read_key(path, bytes))?;
    let signer = ModelSigner::from_bytes(scalar.expose());
    let signer = signer.with_context(|| format!("{} is no P-256 key", path.display()))?;
    Ok(signer.public_key()?)
}

fn trust(keys: &KeyPaths) -> Result<TrustFile> {
    let log = NoteSigner::new(&log_name(), read_signing_key(&keys.log)?)?;
    let capability = read_signing_key(&keys.capability)?.verifying_key();
    let mut signers = Vec::new();
    for service in SIGNERS {
        signers.push(Signer {
            spiffe: spiffe(service)?,
            public_key: public(&read_signing_key(&keys.receipts(service))?),
        });
    }
    Ok(TrustFile {
        log: log.verifier().to_string(),
        signers,
        capability_keys: vec![CapabilityKey {
            kid: capability::key_thumbprint(&capability),
            public_key: PublicKey(capability.to_bytes()),
        }],
    })
}

fn public(key: &SigningKey) -> PublicKey {
    PublicKey(key.verifying_key().to_bytes())
}

/// The log's origin.
fn log_name() -> String {
    format!("{TRUST_DOMAIN}/log")
}

/// The addresses of the last time where they are free, so that what a person noted stays true.
fn endpoints(layout: &Layout) -> Result<BTreeMap<Workload, Endpoints>> {
    let before = Context::load(layout.root()).map_or_else(|_| BTreeMap::new(), |c| c.services);
    // Held until every port is chosen, so that none is chosen twice.
    let mut held = Vec::new();
    let mut address = |before: Option<&str>| -> Result<SocketAddr> {
        let again = before
            .and_then(|text| {
                text.trim_start_matches("https://")
                    .parse::<SocketAddr>()
                    .ok()
            })
            .and_then(|address| TcpListener::bind(address).ok());
        let listener = match again {
            Some(listener) => listener,
            None => TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?,
        };
        let address = listener.local_addr()?;
        held.push(listener);
        Ok(address)
    };
    let mut endpoints = BTreeMap::new();
    for service in Workload::ALL {
        let before = before.get(&service);
        let rpc = address(before.map(|before| before.rpc.as_str()))?;
        let admin = address(before.map(|before| before.admin.as_str()))?;
        endpoints.insert(
            service,
            Endpoints {
                rpc: format!("https://{rpc}"),
                admin: admin.to_string(),
            },
        );
    }
    Ok(endpoints)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The services that sign receipts.
const SIGNERS: [Workload; 4] = [
    Workload::Registry,
    Workload::KeyService,
    Workload::Sealer,
    Workload::InferenceNode,
];

/// On one machine every node may run every model, for five minutes at a time.
const POLICY: &str = r#"version = 1

[[rules]]
nodes = ["*"]
models = ["*"]
max_lifetime_seconds = 300
"#;
