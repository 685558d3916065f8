//! The context file that `chancery up` writes: where the services are and which identities a
//! person has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use api::client::Client;
use identifiers::Role;
use serde::{Deserialize, Serialize};
use service_runtime::{Identity, IdentityFiles, Randomness, SystemRandomness, TrustFile};

use crate::outcome::WrongUse;

/// `context.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// The SPIFFE trust domain.
    pub trust_domain: String,
    /// The CA certificates that servers are verified under.
    pub ca: PathBuf,
    /// The public keys of the installation.
    pub trust: PathBuf,
    /// Where each service answers.
    pub services: BTreeMap<Workload, Endpoints>,
    /// The certificate and key of each role that a person acts as.
    pub identities: BTreeMap<Person, Credentials>,
}

/// A service's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoints {
    /// `https://<host>:<port>`.
    pub rpc: String,
    /// `<host>:<port>` of `/health` and `/metrics`.
    pub admin: String,
}

/// A person's certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Credentials {
    /// The certificate chain (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM, mode 600).
    pub private_key: PathBuf,
}

/// A service, in the order in which they are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// The registry.
    Registry,
    /// The storage node.
    StorageNode,
    /// The key service.
    KeyService,
    /// The sealer.
    Sealer,
    /// The inference node.
    InferenceNode,
}

impl Workload {
    /// Every service.
    pub const ALL: [Self; 5] = [
        Self::Registry,
        Self::StorageNode,
        Self::KeyService,
        Self::Sealer,
        Self::InferenceNode,
    ];

    /// The binary's name.
    pub const fn binary(self) -> &'static str {
        match self {
            Self::Registry => "registry",
            Self::StorageNode => "storage-node",
            Self::KeyService => "key-service",
            Self::Sealer => "sealer",
            Self::InferenceNode => "inference-node",
        }
    }

    /// The role in its certificate.
    pub const fn role(self) -> Role {
        match self {
            Self::Registry => Role::Registry,
            Self::StorageNode => Role::Storage,
            Self::KeyService => Role::KeyService,
            Self::Sealer => Role::Sealer,
            Self::InferenceNode => Role::Inference,
        }
    }
}

/// Who a person acts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Person {
    /// Manages keys.
    Operator,
    /// Seals and runs.
    Platform,
    /// Reads receipts.
    Auditor,
}

impl Person {
    /// Every role of a person.
    pub const ALL: [Self; 3] = [Self::Operator, Self::Platform, Self::Auditor];

    /// The role in the certificate.
    pub const fn role(self) -> Role {
        match self {
            Self::Operator => Role::Operator,
            Self::Platform => Role::Platform,
            Self::Auditor => Role::Auditor,
        }
    }
}

impl Context {
    /// Reads the context of a state folder.
    pub fn load(state: &Path) -> Result<Self> {
        let path = path(state);
        let text = fs::read_to_string(&path).map_err(|error| {
            anyhow::Error::new(error).context(format!(
                "no context in {}: run chancery up, or say --state",
                path.display()
            ))
        })?;
        toml::from_str(&text).with_context(|| format!("cannot use {}", path.display()))
    }

    /// Writes the context of a state folder.
    pub fn save(&self, state: &Path) -> Result<()> {
        let text = toml::to_string(self).context("the context cannot be written as TOML")?;
        let path = path(state);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A client of a service, as a person.
    pub fn client(&self, service: Workload, person: Person) -> Result<Client> {
        let credentials = self
            .identities
            .get(&person)
            .with_context(|| format!("the context has no identity for {person:?}"))?;
        let identity = Identity::load(IdentityFiles {
            certificate: credentials.certificate.clone(),
            private_key: credentials.private_key.clone(),
            ca: self.ca.clone(),
            trust_domain: self.trust_domain.clone(),
            deny_list: None,
        })?;
        self.client_of(service, &identity)
    }

    /// A client of a service with a loaded identity.
    pub fn client_of(&self, service: Workload, identity: &Arc<Identity>) -> Result<Client> {
        let endpoints = self
            .services
            .get(&service)
            .with_context(|| format!("the context has no {}", service.binary()))?;
        Ok(Client::connect(&endpoints.rpc, identity, service.role())?)
    }

    /// The trusted public keys.
    pub fn trusted(&self) -> Result<TrustFile> {
        Ok(TrustFile::load(&self.trust)?)
    }
}

/// The request id of a command: the caller's, or a fresh one.
pub fn request_id(given: Option<&str>) -> Result<String> {
    match given {
        Some(text) => {
            let id: identifiers::RequestId = text
                .parse()
                .map_err(|error| WrongUse(format!("--request-id: {error}")))?;
            Ok(id.to_string())
        }
        None => {
            use service_runtime::Clock as _;
            let randomness: &dyn Randomness = &SystemRandomness;
            let now = service_runtime::SystemClock.unix_millis();
            let id = identifiers::RequestId::from_parts(
                now.try_into().unwrap_or_default(),
                &randomness.bytes(),
            );
            Ok(id.to_string())
        }
    }
}

fn path(state: &Path) -> PathBuf {
    state.join("context.toml")
}
