//! The sections that every service's config has, and how a config file is read.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use workload_identity::{Authorisation, Identity, IdentityError, IdentityFiles, MethodRestriction};

/// The `[server]` section.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSettings {
    /// Where RPCs are answered; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where `/health` and `/metrics` are answered, in clear: keep it on a private address.
    pub admin: SocketAddr,
    /// Most connections at a time; further ones are closed at once.
    #[serde(default = "default_connections")]
    pub max_connections: usize,
    /// Most RPCs at a time on one connection; further ones are refused.
    #[serde(default = "default_streams")]
    pub max_streams: u32,
    /// Seconds within which a TLS handshake must end.
    #[serde(default = "default_handshake")]
    pub handshake_seconds: u64,
    /// Seconds that running RPCs have to end after a stop signal.
    #[serde(default = "default_drain")]
    pub drain_seconds: u64,
}

impl ServerSettings {
    /// Both listeners on free loopback ports.
    #[must_use]
    pub fn loopback() -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            listen: any,
            admin: any,
            max_connections: default_connections(),
            max_streams: default_streams(),
            handshake_seconds: default_handshake(),
            drain_seconds: default_drain(),
        }
    }

    pub(crate) fn handshake(&self) -> Duration {
        Duration::from_secs(self.handshake_seconds)
    }

    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }
}

/// The `[identity]` section.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdentitySettings {
    /// The certificate chain, leaf first (PEM).
    pub certificate: PathBuf,
    /// The leaf's private key (PEM, mode 600).
    pub private_key: PathBuf,
    /// The CA certificates that peers are verified under (PEM).
    pub ca: PathBuf,
    /// The SPIFFE trust domain.
    pub trust_domain: String,
    /// Peers and certificates that are refused, one a line.
    #[serde(default)]
    pub deny_list: Option<PathBuf>,
    /// Narrows methods to named peers.
    #[serde(default)]
    pub only: Vec<MethodRestriction>,
}

impl IdentitySettings {
    /// Loads the identity and the authorisation table.
    pub fn load(self) -> Result<(Arc<Identity>, Authorisation), ConfigError> {
        let authorisation = Authorisation::new(self.only)
            .map_err(|method| ConfigError::UnknownMethod { method })?;
        let identity = Identity::load(IdentityFiles {
            certificate: self.certificate,
            private_key: self.private_key,
            ca: self.ca,
            trust_domain: self.trust_domain,
            deny_list: self.deny_list,
        })?;
        Ok((identity, authorisation))
    }
}

impl From<IdentityFiles> for IdentitySettings {
    fn from(files: IdentityFiles) -> Self {
        Self {
            certificate: files.certificate,
            private_key: files.private_key,
            ca: files.ca,
            trust_domain: files.trust_domain,
            deny_list: files.deny_list,
            only: Vec::new(),
        }
    }
}

/// A section that says where another service is: `[key_service]`, `[registry]`, `[storage]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerSettings {
    /// `https://<host>:<port>`.
    pub endpoint: String,
}

/// The `[database]` section.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatabaseSettings {
    /// `postgres://` URL. A password belongs in a `.pgpass` file, or use peer authentication.
    pub url: String,
    /// Most connections at a time.
    #[serde(default = "default_database_connections")]
    pub max_connections: u32,
}

impl std::fmt::Debug for DatabaseSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatabaseSettings")
            .field("url", &"[hidden]")
            .field("max_connections", &self.max_connections)
            .finish()
    }
}

/// A config that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The config is not TOML, or has an unknown or missing key.
    #[error("{}", path.display())]
    Parse {
        /// The config file.
        path: PathBuf,
        /// Why.
        source: Box<toml::de::Error>,
    },
    /// A secret's file can be read by others than its owner.
    #[error("{}: mode {mode:03o} lets others read the secret; make it 600", path.display())]
    Exposed {
        /// The secret's file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A secret's file is larger than any secret.
    #[error("{}: larger than {MAX_SECRET} bytes", path.display())]
    TooLarge {
        /// The secret's file.
        path: PathBuf,
    },
    /// `[[identity.only]]` names a method that does not exist.
    #[error("identity.only: unknown method {method}")]
    UnknownMethod {
        /// The method.
        method: String,
    },
    /// The identity files are not usable.
    #[error("identity")]
    Identity(#[from] IdentityError),
}

/// Reads a TOML config. Relative paths in it stay relative to the working directory.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text).map_err(|mut source| {
        // The message names the key and the line; the text around it could hold a secret.
        source.set_input(None);
        ConfigError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        }
    })
}

/// Reads a secret's file, which only its owner may read (mode 600 or less). Wrap the bytes at once.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let read = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = fs::metadata(path).map_err(read)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ConfigError::Exposed {
            path: path.to_owned(),
            mode,
        });
    }
    if metadata.len() > MAX_SECRET {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
        });
    }
    fs::read(path).map_err(read)
}

fn default_connections() -> usize {
    1024
}

fn default_streams() -> u32 {
    256
}

fn default_handshake() -> u64 {
    10
}

fn default_drain() -> u64 {
    10
}

fn default_database_connections() -> u32 {
    8
}

/// Largest secret file, in bytes.
pub const MAX_SECRET: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only parsed")]
    struct Sample {
        server: ServerSettings,
        database: DatabaseSettings,
    }

    fn parse(text: &str) -> Result<Sample, ConfigError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service.toml");
        fs::write(&path, text).unwrap();
        load(&path)
    }

    const GOOD: &str = "[server]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[database]\nurl = \"postgres://u:marker-secret@h/d\"\n";

    #[test]
    fn an_unknown_key_is_refused_by_name_without_showing_the_file() {
        let error =
            parse(&GOOD.replace("[database]\n", "[database]\npassword = \"marker-secret\"\n"))
                .unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("password"), "{source}");
        assert!(!source.contains("marker-secret"), "{source}");
    }

    #[test]
    fn printing_a_config_shows_no_database_url() {
        let printed = format!("{:?}", parse(GOOD).unwrap());
        assert!(!printed.contains("marker-secret"), "{printed}");
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("root.key");
        fs::write(&path, b"secret").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            read_secret(&path),
            Err(ConfigError::Exposed { mode: 0o640, .. })
        ));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(read_secret(&path).unwrap(), b"secret");
    }
}
