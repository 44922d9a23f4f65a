//! TLS as a client: whom we trust, and what we offer to speak.

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{CertificateError, PeerIncompatible};
use rustls::{ClientConfig, Error, RootCertStore};
use std::io;
use std::sync::Arc;
use tokio_rustls::TlsConnector;

#[derive(Clone)]
pub(super) struct Tls {
    /// Offers HTTP/2 and HTTP/1.1.
    pub any: TlsConnector,
    /// For hosts that said they want HTTP/1.1.
    pub http1: TlsConnector,
}

impl Tls {
    /// Trusts the machine's roots (Mozilla's where it has none) and `extra_roots`.
    pub fn new(extra_roots: &[CertificateDer<'static>]) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        for root in extra_roots {
            roots.add(root.clone())?;
        }
        let http1 = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut any = http1.clone();
        any.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // No ALPN at all is what the oldest servers take, and it means HTTP/1.1.
        Ok(Self { any: Arc::new(any).into(), http1: Arc::new(http1).into() })
    }
}

/// What went wrong in a handshake, without a byte that the receiver sent.
pub(super) fn handshake_detail(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let Some(inner) = inner else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                "the receiver closed the connection during the TLS handshake".to_owned()
            }
            kind => format!("the TLS handshake failed: {kind}"),
        };
    };
    match inner {
        Error::InvalidCertificate(reason) => certificate_detail(reason).to_owned(),
        Error::AlertReceived(alert) => {
            format!("the receiver refused the TLS handshake: {alert:?}")
        }
        Error::InvalidMessage(_) => "the receiver does not speak TLS on this port".to_owned(),
        Error::PeerIncompatible(PeerIncompatible::ServerDoesNotSupportTls12Or13) => {
            "the receiver speaks neither TLS 1.2 nor 1.3".to_owned()
        }
        Error::PeerIncompatible(_) => "the receiver offers no TLS that we speak".to_owned(),
        Error::PeerMisbehaved(_) => "the receiver breaks the rules of TLS".to_owned(),
        _ => "the TLS handshake failed".to_owned(),
    }
}

fn certificate_detail(reason: &CertificateError) -> &'static str {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the receiver's certificate has expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "the receiver's certificate is not valid yet"
        }
        CertificateError::Revoked => "the receiver's certificate was revoked",
        CertificateError::UnknownIssuer => {
            "the receiver's certificate is not signed by an authority that we trust"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "the receiver's certificate is for another name"
        }
        _ => "the receiver's certificate is not valid",
    }
}
