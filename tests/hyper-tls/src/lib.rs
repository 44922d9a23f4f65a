//! Lets the official `svix` client be built for the tests, which talk to loopback, without TLS.
//!
//! The client does not compile without a TLS library, and offers two: rustls with aws-lc, and
//! OpenSSL behind `hyper-tls`. Neither may come into our build, so the workspace puts this package
//! in the place of `hyper-tls` (`[patch.crates-io]` in its manifest). It has what `svix` uses of
//! it, and passes every connection on as it is.

use http::Uri;
use std::error::Error;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

type BoxError = Box<dyn Error + Send + Sync>;
type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// Never a TLS stream.
pub type MaybeHttpsStream<T> = T;

/// Connects as the connector inside does.
#[derive(Clone, Debug)]
pub struct HttpsConnector<H>(H);

impl<H> HttpsConnector<H> {
    pub fn new_with_connector(connector: H) -> Self {
        Self(connector)
    }
}

impl<H> Service<Uri> for HttpsConnector<H>
where
    H: Service<Uri>,
    H::Error: Into<BoxError>,
    H::Future: Send + 'static,
{
    type Response = H::Response;
    type Error = BoxError;
    type Future = Connecting<H::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.0.call(uri);
        Box::pin(async move { connecting.await.map_err(Into::into) })
    }
}
