//! Mutual TLS 1.3 that checks SPIFFE ids and no DNS name.

use std::sync::Arc;

use identifiers::{Role, SpiffeId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    Error, OtherError, PeerIncompatible, RootCertStore, ServerConfig, SignatureScheme,
};

use crate::error::PeerError;
use crate::peer::Peer;

/// A server that shows `own` and takes only peers of `trust_domain` under `roots`.
pub(crate) fn server_config(
    own: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    trust_domain: &str,
) -> Result<ServerConfig, rustls::server::VerifierBuilderError> {
    let provider = provider();
    let webpki = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
    let verifier = Arc::new(WorkloadVerifier {
        webpki,
        trust_domain: trust_domain.to_owned(),
    });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 cipher suites")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
    // Resumption would outlive a certificate and a deny-list entry.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

/// A client that shows `own` and talks only to a server of `role` in `trust_domain`.
pub(crate) fn client_config(
    own: Arc<CertifiedKey>,
    roots: Arc<RootCertStore>,
    trust_domain: &str,
    role: Role,
) -> ClientConfig {
    let provider = provider();
    let verifier = Arc::new(ServerIdVerifier {
        roots,
        trust_domain: trust_domain.to_owned(),
        role,
        algorithms: provider.signature_verification_algorithms,
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3 cipher suites")
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(own)));
    config.resumption = rustls::client::Resumption::disabled();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.enable_sni = false;
    config
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// Why a TLS handshake failed, where it is about an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsRefusal {
    /// The server refused our certificate.
    #[error("the server refused this client's certificate: {0}")]
    ByServer(&'static str),
    /// We refused the server's certificate.
    #[error("the server's certificate is refused: {0}")]
    OfServer(String),
}

/// Finds a refused identity in an error's chain of sources.
#[must_use]
pub fn tls_refusal(error: &(dyn std::error::Error + 'static)) -> Option<TlsRefusal> {
    let mut next = Some(error);
    while let Some(current) = next {
        let tls = current.downcast_ref::<Error>().or_else(|| {
            let io = current.downcast_ref::<std::io::Error>()?;
            io.get_ref()?.downcast_ref::<Error>()
        });
        let told = || refusal_told(current.downcast_ref::<std::io::Error>()?);
        if let Some(refusal) = tls.and_then(refusal_of).or_else(told) {
            return Some(refusal);
        }
        next = current.source();
    }
    None
}

fn refusal_of(error: &Error) -> Option<TlsRefusal> {
    match error {
        Error::AlertReceived(alert) => alert_of(*alert),
        Error::InvalidCertificate(reason) => Some(TlsRefusal::OfServer(match reason {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "it has expired".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet".to_owned()
            }
            CertificateError::UnknownIssuer => "its issuer is not trusted".to_owned(),
            CertificateError::Other(other) => other.0.to_string(),
            other => other.to_string(),
        })),
        Error::PeerIncompatible(PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon) => {
            Some(TlsRefusal::ByServer("its key type is not accepted"))
        }
        _ => None,
    }
}

/// What a server's alert says about our certificate.
fn alert_of(alert: AlertDescription) -> Option<TlsRefusal> {
    Some(TlsRefusal::ByServer(match alert {
        AlertDescription::CertificateExpired => "it has expired",
        AlertDescription::UnknownCA => "its issuer is not trusted",
        AlertDescription::CertificateRevoked => "it is revoked",
        AlertDescription::CertificateRequired => "none was sent",
        AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => "it is not that of a workload of the domain",
        // A CA of the same name as a trusted one, with another key.
        AlertDescription::DecryptError => "its issuer did not sign it",
        _ => return None,
    }))
}

/// In TLS 1.3 a client hears of its certificate after its handshake. HTTP/2 then keeps the text of
/// the error only.
fn refusal_told(error: &std::io::Error) -> Option<TlsRefusal> {
    let text = error.to_string();
    ALERTS
        .iter()
        .find(|alert| text == Error::AlertReceived(**alert).to_string())
        .and_then(|alert| alert_of(*alert))
}

const ALERTS: [AlertDescription; 9] = [
    AlertDescription::CertificateExpired,
    AlertDescription::UnknownCA,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::AccessDenied,
    AlertDescription::DecryptError,
];

/// WebPKI verification of a client, and that it is a workload of the trust domain.
#[derive(Debug)]
struct WorkloadVerifier {
    webpki: Arc<dyn ClientCertVerifier>,
    trust_domain: String,
}

impl ClientCertVerifier for WorkloadVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .webpki
            .verify_client_cert(end_entity, intermediates, now)?;
        Peer::from_der(end_entity, &self.trust_domain).map_err(not_a_workload)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

/// Chain verification of a server, and that it has the role the client wants to talk to.
#[derive(Debug)]
struct ServerIdVerifier {
    roots: Arc<RootCertStore>,
    trust_domain: String,
    role: Role,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerIdVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        let server = Peer::from_der(end_entity, &self.trust_domain).map_err(not_a_workload)?;
        if server.role() != self.role {
            return Err(other(WrongServer {
                expected: self.role,
                found: server.spiffe,
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(
            PeerIncompatible::Tls13RequiredForQuic,
        ))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it belongs to {found}, expected the role {expected}")]
struct WrongServer {
    expected: Role,
    found: SpiffeId,
}

fn not_a_workload(error: PeerError) -> Error {
    other(error)
}

fn other(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
}
