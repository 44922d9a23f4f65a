//! TLS to the database's server: what `sslmode` asks for, as libpq understands it.
//!
//! `disable` never, `prefer` (the default) if the server can, `require` always; none of them looks
//! at whose certificate it is, but `require` does, as `verify-ca`, where a `sslrootcert` is given.
//! `verify-ca` and `verify-full` look, against `sslrootcert` (a PEM file) or the machine's roots;
//! `verify-full` also at the host's name.

use crate::Result;
use crate::error::{Error, Kind};
use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Encrypted;

/// What an address says about TLS, and the address without it.
#[derive(Debug)]
pub(super) struct Asked {
    pub url: String,
    pub mode: SslMode,
    verify: Verify,
    roots: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verify {
    Nothing,
    Authority,
    Full,
}

impl Asked {
    /// # Errors
    /// `Unusable` when `sslmode` has another value than those above.
    pub fn of(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut asked = Self {
            url: String::new(),
            mode: SslMode::Prefer,
            verify: Verify::Nothing,
            roots: None,
        };
        let not_utf8 = || {
            let text = "`sslrootcert` of the database's address is not UTF-8";
            Error::new(Kind::Unusable, text)
        };
        let mut others = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", mode)) => (asked.mode, asked.verify) = parse_mode(mode)?,
                Some(("sslrootcert", path)) => {
                    let path = percent_decode_str(path).decode_utf8();
                    asked.roots = Some(path.map_err(|_| not_utf8())?.into_owned());
                }
                _ => others.push(pair),
            }
        }
        // A file of roots is there to be looked at: `require` with it means `verify-ca`.
        if asked.roots.is_some() && asked.mode == SslMode::Require {
            asked.verify = asked.verify.max(Verify::Authority);
        }
        asked.url = match others.as_slice() {
            [] => address.to_owned(),
            others => format!("{address}?{}", others.join("&")),
        };
        Ok(asked)
    }

    /// # Errors
    /// `Unusable` when the roots cannot be read.
    pub fn connector(&self) -> Result<Tls> {
        let unusable = |error: rustls::Error| {
            Error::new(Kind::Unusable, "TLS to the database cannot be set up").because(error)
        };
        let provider = Arc::new(ring::default_provider());
        let inner = match self.verify {
            Verify::Nothing => None,
            Verify::Authority | Verify::Full => {
                let roots = Arc::new(self.trusted()?);
                let builder =
                    WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
                Some(builder.build().map_err(|error| {
                    Error::new(Kind::Unusable, "the database's roots cannot be used").because(error)
                })?)
            }
        };
        let by_name = self.verify == Verify::Full;
        let verifier = Verifier { inner, by_name, provider: Arc::clone(&provider) };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Tls { connector: Arc::new(config).into() })
    }

    fn trusted(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let Some(path) = &self.roots else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return Ok(roots);
        };
        let unusable = || {
            let text = format!("the file of `sslrootcert`, {path}, holds no certificates in PEM");
            Error::new(Kind::Unusable, text)
        };
        let found = CertificateDer::pem_file_iter(path).map_err(|_| unusable())?;
        roots.add_parsable_certificates(found.filter_map(std::result::Result::ok));
        if roots.is_empty() { Err(unusable()) } else { Ok(roots) }
    }
}

fn parse_mode(text: &str) -> Result<(SslMode, Verify)> {
    Ok(match text {
        "disable" => (SslMode::Disable, Verify::Nothing),
        "prefer" | "allow" => (SslMode::Prefer, Verify::Nothing),
        "require" => (SslMode::Require, Verify::Nothing),
        "verify-ca" => (SslMode::Require, Verify::Authority),
        "verify-full" => (SslMode::Require, Verify::Full),
        _ => {
            let text = "`sslmode` of the database's address must be disable, prefer, require, \
                        verify-ca or verify-full";
            return Err(Error::new(Kind::Unusable, text));
        }
    })
}

/// Makes encrypted connections.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Stream<S>;
    type TlsConnect = Connect;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Connect, Self::Error> {
        let name = ServerName::try_from(domain.to_owned())?;
        Ok(Connect { connector: self.connector.clone(), name })
    }
}

/// One handshake to be made.
pub(super) struct Connect {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.connector.connect(self.name, stream).await.map(Stream) })
    }
}

/// An encrypted stream.
pub(super) struct Stream<S>(Encrypted<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Looks at the server's certificate as far as it was asked to.
#[derive(Debug)]
struct Verifier {
    /// `None`: whoever has the key of the certificate that it shows is taken.
    inner: Option<Arc<WebPkiServerVerifier>>,
    by_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.by_name => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_about_tls_is_taken_out_of_the_address() {
        let asked = Asked::of("postgres://u:p@h/d?application_name=x&sslmode=verify-full").unwrap();
        assert_eq!(asked.url, "postgres://u:p@h/d?application_name=x");
        assert_eq!((asked.mode, asked.verify), (SslMode::Require, Verify::Full));
        let asked =
            Asked::of("postgres://h/d?sslmode=require&sslrootcert=%2Fetc%2Fca.pem").unwrap();
        assert_eq!(asked.url, "postgres://h/d");
        assert_eq!(asked.roots.as_deref(), Some("/etc/ca.pem"));
        assert_eq!(asked.verify, Verify::Authority, "roots are there to be looked at");
        let asked = Asked::of("postgres://h/d?sslrootcert=/a%20b.pem&sslmode=verify-full").unwrap();
        assert_eq!((asked.roots.as_deref(), asked.verify), (Some("/a b.pem"), Verify::Full));
        let asked = Asked::of("postgres://h/d?sslmode=require").unwrap();
        assert_eq!(asked.verify, Verify::Nothing);
        let asked = Asked::of("postgres://h/d").unwrap();
        assert_eq!((asked.mode, asked.verify), (SslMode::Prefer, Verify::Nothing));
        let error = Asked::of("postgres://u:hunter2@h/d?sslmode=maybe").unwrap_err();
        assert_eq!(error.kind(), Kind::Unusable);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn roots_that_are_not_there_are_told() {
        let asked =
            Asked::of("postgres://h/d?sslmode=verify-ca&sslrootcert=/nowhere/ca.pem").unwrap();
        let error = asked.connector().map(drop).unwrap_err();
        assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
    }
}
