//! A certificate authority for one machine and for tests.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use identifiers::{ParseIdError, Role, SpiffeId};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::identity::IdentityFiles;

/// A certificate authority whose key stands in a folder.
pub struct DevCa {
    dir: PathBuf,
    trust_domain: String,
    key: KeyPair,
}

/// Why the authority cannot work.
#[derive(Debug, thiserror::Error)]
pub enum DevCaError {
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A certificate cannot be made.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The name is not one that a SPIFFE id can have.
    #[error("cannot name the workload")]
    Name(#[from] ParseIdError),
}

/// A certificate and its key, as PEM.
pub struct Issued {
    /// The leaf certificate.
    pub certificate: String,
    /// Its private key.
    pub private_key: String,
}

/// Makes an authority in `dir`, or opens the one that is there. `now` in unix seconds.
pub fn create(dir: &Path, trust_domain: &str, now: u64) -> Result<DevCa, DevCaError> {
    fs::create_dir_all(dir).map_err(|source| file(dir, source))?;
    let key_path = dir.join("ca.key");
    let certificate_path = dir.join("ca.pem");
    let key = if key_path.exists() {
        let pem = fs::read_to_string(&key_path).map_err(|source| file(&key_path, source))?;
        KeyPair::from_pem(&pem)?
    } else {
        let key = KeyPair::generate()?;
        write_private(&key_path, key.serialize_pem().as_bytes())?;
        key
    };
    if !certificate_path.exists() {
        let mut params = ca_params(trust_domain);
        validity(&mut params, now, CA_LIFETIME);
        let certificate = params.self_signed(&key)?;
        fs::write(&certificate_path, certificate.pem())
            .map_err(|source| file(&certificate_path, source))?;
    }
    Ok(DevCa {
        dir: dir.to_owned(),
        trust_domain: trust_domain.to_owned(),
        key,
    })
}

impl DevCa {
    /// The authority's certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// A certificate for `spiffe://<trust domain>/<role>/<name>`, valid from one minute before
    /// `now` (unix seconds) until `ttl` after it.
    pub fn issue(
        &self,
        role: Role,
        name: &str,
        now: u64,
        ttl: Duration,
    ) -> Result<Issued, DevCaError> {
        let id = SpiffeId::new(&self.trust_domain, role, name)?;
        let uri = rcgen::string::Ia5String::try_from(id.to_string())?;
        self.issue_names(vec![SanType::URI(uri)], now, ttl)
    }

    /// A certificate with any subject alternative names, for tests of what a verifier refuses.
    pub fn issue_names(
        &self,
        names: Vec<SanType>,
        now: u64,
        ttl: Duration,
    ) -> Result<Issued, DevCaError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.subject_alt_names = names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        validity(&mut params, now, ttl);
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(ca_params(&self.trust_domain), &self.key);
        let certificate = params.signed_by(&key, &issuer)?;
        Ok(Issued {
            certificate: certificate.pem(),
            private_key: key.serialize_pem(),
        })
    }

    /// Issues a certificate and writes it to `<dir>/<role>-<name>.pem` and `.key`, replacing what
    /// is there in one step each.
    pub fn write(
        &self,
        role: Role,
        name: &str,
        now: u64,
        ttl: Duration,
    ) -> Result<IdentityFiles, DevCaError> {
        let issued = self.issue(role, name, now, ttl)?;
        self.write_issued(&format!("{role}-{name}"), &issued)
    }

    /// Writes a certificate to `<dir>/<stem>.pem` and `.key`.
    pub fn write_issued(&self, stem: &str, issued: &Issued) -> Result<IdentityFiles, DevCaError> {
        let certificate = self.dir.join(format!("{stem}.pem"));
        let private_key = self.dir.join(format!("{stem}.key"));
        write_private(&private_key, issued.private_key.as_bytes())?;
        write_private(&certificate, issued.certificate.as_bytes())?;
        Ok(IdentityFiles {
            certificate,
            private_key,
            ca: self.certificate(),
            trust_domain: self.trust_domain.clone(),
            deny_list: None,
        })
    }
}

fn ca_params(trust_domain: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("{trust_domain} development CA"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn validity(params: &mut CertificateParams, now: u64, ttl: Duration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(now.saturating_sub(60));
    params.not_after = epoch + Duration::from_secs(now) + ttl;
}

/// Writes a file that only its owner reads, whole or not at all.
fn write_private(path: &Path, content: &[u8]) -> Result<(), DevCaError> {
    let write = || {
        let temporary = path.with_extension("new");
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| file(path, source))
}

fn file(path: &Path, source: io::Error) -> DevCaError {
    DevCaError::File {
        path: path.to_owned(),
        source,
    }
}

/// Ten years.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
