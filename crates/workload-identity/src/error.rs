use std::io;
use std::path::PathBuf;

use identifiers::ParseIdError;

/// Identity files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The private key can be read by others than its owner.
    #[error("{}: mode {mode:03o} lets others read the private key; make it 600", path.display())]
    Exposed {
        /// The private key's file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A file is not PEM of the right kind.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file's content is refused by the TLS library.
    #[error("{}: not usable for TLS", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
    /// A verifier cannot be made from the CA bundle.
    #[error("{}: no verifier can be made of it", path.display())]
    Verifier {
        /// The CA bundle.
        path: PathBuf,
        /// Why.
        source: rustls::server::VerifierBuilderError,
    },
    /// The certificate does not name this workload.
    #[error("{}: not a workload certificate", path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        source: PeerError,
    },
    /// A line of the deny list is malformed.
    #[error("{}: line {line}: expected a SPIFFE id or serial:<hex>", path.display())]
    DenyList {
        /// The deny list.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
    },
}

/// A certificate that does not speak for a workload of this trust domain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Not an X.509 certificate.
    #[error("not an X.509 certificate")]
    NotX509,
    /// No URI subject alternative name, or more than one.
    #[error("{0} URI subject alternative names, expected exactly one")]
    UriNames(usize),
    /// The URI is not a SPIFFE id.
    #[error("the certificate's URI is no workload identity")]
    NotSpiffe(#[from] ParseIdError),
    /// The certificate is of another trust domain.
    #[error("trust domain {found}, expected {expected}")]
    TrustDomain {
        /// The configured trust domain.
        expected: String,
        /// The certificate's.
        found: String,
    },
}
