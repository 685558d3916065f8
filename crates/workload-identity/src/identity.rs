use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use identifiers::{Role, SpiffeId};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::deny_list::DenyList;
use crate::error::IdentityError;
use crate::peer::Peer;
use crate::tls;

/// Where a process finds who it is: the `[identity]` section of a config.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentityFiles {
    /// The certificate chain, leaf first (PEM).
    pub certificate: PathBuf,
    /// The leaf's private key (PEM), readable by its owner only.
    pub private_key: PathBuf,
    /// The CA certificates that peers are verified under (PEM).
    pub ca: PathBuf,
    /// The SPIFFE trust domain of this installation.
    pub trust_domain: String,
    /// Peers and certificates that are refused, one a line.
    #[serde(default)]
    pub deny_list: Option<PathBuf>,
}

/// A process's identity, reloaded when its files change.
pub struct Identity {
    files: IdentityFiles,
    loaded: ArcSwap<Loaded>,
    seen: Mutex<Vec<Option<Stamp>>>,
}

impl Identity {
    /// Loads the files. The certificate must be a workload's of the trust domain.
    pub fn load(files: IdentityFiles) -> Result<Arc<Self>, IdentityError> {
        let seen = stamps(&files);
        let loaded = Loaded::read(&files)?;
        Ok(Arc::new(Self {
            files,
            loaded: ArcSwap::from_pointee(loaded),
            seen: Mutex::new(seen),
        }))
    }

    /// What this process's certificate says.
    #[must_use]
    pub fn own(&self) -> Peer {
        self.loaded.load().own.clone()
    }

    /// This process's id.
    #[must_use]
    pub fn spiffe(&self) -> SpiffeId {
        self.loaded.load().own.spiffe.clone()
    }

    /// The trust domain.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        &self.files.trust_domain
    }

    /// The TLS configuration of a listener, from the files as last loaded.
    #[must_use]
    pub fn server_config(&self) -> Arc<ServerConfig> {
        self.loaded.load().server.clone()
    }

    /// The TLS configuration of a connection to a server of `role`, from the files as last loaded.
    #[must_use]
    pub fn client_config(&self, role: Role) -> Arc<ClientConfig> {
        let loaded = self.loaded.load();
        Arc::new(tls::client_config(
            loaded.key.clone(),
            loaded.roots.clone(),
            &self.files.trust_domain,
            role,
        ))
    }

    /// Whether the deny list names the peer.
    #[must_use]
    pub fn denies(&self, peer: &Peer) -> bool {
        self.loaded.load().denied.contains(peer)
    }

    /// Loads the files again if any of them changed; whether it did. After an error what was
    /// loaded stays in use, and the same files are not tried again until they change.
    pub fn reload_if_changed(&self) -> Result<bool, IdentityError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.files);
        if *seen == now {
            return Ok(false);
        }
        *seen = now;
        self.loaded.store(Arc::new(Loaded::read(&self.files)?));
        Ok(true)
    }

    /// Looks at the files each second until `stop`.
    pub async fn watch(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RELOAD_PERIOD) => {}
            }
            match self.reload_if_changed() {
                Ok(false) => {}
                Ok(true) => {
                    let own = self.own();
                    tracing::info!(spiffe = %own.spiffe, serial = own.serial, not_after = own.not_after, "identity reloaded");
                }
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::error!(%error, cause, "changed identity files are not usable; the old identity stays");
                }
            }
        }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Identity").field(&self.spiffe()).finish()
    }
}

struct Loaded {
    own: Peer,
    key: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    server: Arc<ServerConfig>,
    denied: DenyList,
}

impl Loaded {
    fn read(files: &IdentityFiles) -> Result<Self, IdentityError> {
        let chain = certificates(&files.certificate)?;
        let own = Peer::from_der(&chain[0], &files.trust_domain).map_err(|source| {
            IdentityError::Certificate {
                path: files.certificate.clone(),
                source,
            }
        })?;
        let key = Arc::new(
            CertifiedKey::from_der(chain, private_key(&files.private_key)?, &tls::provider())
                .map_err(|source| IdentityError::Tls {
                    path: files.private_key.clone(),
                    source,
                })?,
        );
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.ca)? {
            roots
                .add(certificate)
                .map_err(|source| IdentityError::Tls {
                    path: files.ca.clone(),
                    source,
                })?;
        }
        let roots = Arc::new(roots);
        let server = tls::server_config(key.clone(), roots.clone(), &files.trust_domain).map_err(
            |source| IdentityError::Verifier {
                path: files.ca.clone(),
                source,
            },
        )?;
        let denied = match &files.deny_list {
            None => DenyList::default(),
            Some(path) => {
                let text = fs::read_to_string(path).map_err(|source| read_error(path, source))?;
                DenyList::parse(&text).map_err(|line| IdentityError::DenyList {
                    path: path.clone(),
                    line,
                })?
            }
        };
        Ok(Self {
            own,
            key,
            roots,
            server: Arc::new(server),
            denied,
        })
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let pem = fs::read(path).map_err(|source| read_error(path, source))?;
    let malformed = |reason| IdentityError::Malformed {
        path: path.to_owned(),
        reason,
    };
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| malformed("not PEM certificates"))?;
    if found.is_empty() {
        return Err(malformed("no certificate in it"));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let mode = fs::metadata(path)
        .map_err(|source| read_error(path, source))?
        .mode()
        & 0o777;
    if mode & 0o077 != 0 {
        return Err(IdentityError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    let pem = fs::read(path).map_err(|source| read_error(path, source))?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|_| IdentityError::Malformed {
        path: path.to_owned(),
        reason: "no PEM private key in it",
    })
}

fn read_error(path: &Path, source: std::io::Error) -> IdentityError {
    IdentityError::Read {
        path: path.to_owned(),
        source,
    }
}

/// What tells a changed file from an unchanged one without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

fn stamps(files: &IdentityFiles) -> Vec<Option<Stamp>> {
    [&files.certificate, &files.private_key, &files.ca]
        .into_iter()
        .chain(&files.deny_list)
        .map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some(Stamp {
                inode: metadata.ino(),
                size: metadata.size(),
                modified: (metadata.mtime(), metadata.mtime_nsec()),
            })
        })
        .collect()
}

const RELOAD_PERIOD: Duration = Duration::from_secs(1);
