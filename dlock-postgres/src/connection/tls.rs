//! TLS for `tokio-postgres`, on rustls.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use dlock_core::{
    Error, Result,
    driver::{Pems, Tls},
};
use futures_util::{FutureExt as _, future::BoxFuture};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};

/// Opens TLS connections. Contains the contents of the certificate files.
#[derive(Clone)]
pub(super) struct Rustls(Arc<ClientConfig>);

impl Rustls {
    /// Reads the files of certificates.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] for a file that cannot be read or used.
    pub(super) fn new(tls: &Tls) -> Result<Self> {
        let Pems { ca, client_cert } = tls.read()?;
        let mut roots = RootCertStore::empty();
        let authorities = match &ca {
            Some(ca) => certificates("ca", ca)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        roots.add_parsable_certificates(authorities);
        if roots.is_empty() {
            let reason = "this machine trusts no authority: name the certificate of the server's authority with \
                `ca=/path/to/ca.pem`";
            return Err(unusable(reason));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(error.to_string()))?
            .with_root_certificates(roots);
        let config = match &client_cert {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| unusable(format!("the file of `key` has no key in PEM: {error}")))?;
                builder
                    .with_client_auth_cert(certificates("cert", certificate)?, key)
                    .map_err(|error| unusable(format!("`cert` and `key` cannot be used: {error}")))?
            }
        };
        Ok(Self(Arc::new(config)))
    }
}

fn certificates(parameter: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(unusable(format!("the file of `{parameter}` has no certificate in PEM"))),
    }
}

fn unusable(reason: impl Into<String>) -> Error {
    Error::InvalidConfig { reason: reason.into() }
}

/// TLS to the host of one connection.
pub(super) struct HostTls {
    config: Arc<ClientConfig>,
    host: ServerName<'static>,
}

impl<S> MakeTlsConnect<S> for Rustls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = HostTls;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostTls> {
        let host = ServerName::try_from(host.to_owned())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(HostTls { config: Arc::clone(&self.0), host })
    }
}

impl<S> TlsConnect<S> for HostTls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Stream<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        let connecting = tokio_rustls::TlsConnector::from(self.config).connect(self.host, stream);
        async { Ok(Stream(connecting.await?)) }.boxed()
    }
}

/// An encrypted stream. A type of its own, because the traits of two crates meet in it.
pub(crate) struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S> tokio_postgres::tls::TlsStream for Stream<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
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
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
