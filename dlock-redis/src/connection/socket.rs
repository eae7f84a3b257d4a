//! Opens the socket of a connection to one server, over TCP, TLS or a Unix domain socket.

use std::{io, sync::Arc};

use futures_util::future::select_ok;
use redis::{
    ConnectionAddr, ConnectionInfo, TlsCertificates,
    aio::AsyncStream,
    io::tcp::{TcpSettings, socket2::SockRef},
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

/// An open socket.
pub(super) type Socket = Box<dyn AsyncStream + Send + Sync + Unpin>;

/// Connects to an address. `certificates` are those of a TLS connection.
pub(super) async fn connect(
    info: &ConnectionInfo,
    certificates: Option<&TlsCertificates>,
) -> io::Result<Socket> {
    match (info.addr(), certificates) {
        (ConnectionAddr::TcpTls { host, port, .. }, Some(certificates)) => {
            let name = ServerName::try_from(host.as_str()).map_err(io::Error::other)?.to_owned();
            let connector = TlsConnector::from(Arc::new(client_config(certificates)?));
            let stream = connect_tcp(host, *port, info.tcp_settings()).await?;
            Ok(Box::new(connector.connect(name, stream).await?))
        }
        (ConnectionAddr::Tcp(host, port), None) => {
            Ok(Box::new(connect_tcp(host, *port, info.tcp_settings()).await?))
        }
        #[cfg(unix)]
        (ConnectionAddr::Unix(path), _) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        (address, _) => Err(io::Error::other(format!("`{address}` is no address of a socket"))),
    }
}

/// Connects to the first address of a host that accepts the connection.
async fn connect_tcp(host: &str, port: u16, settings: &TcpSettings) -> io::Result<TcpStream> {
    let attempts: Vec<_> =
        lookup_host((host, port)).await?.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"));
    }
    let (stream, _) = select_ok(attempts).await?;
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(&stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(stream)
}

fn client_config(certificates: &TlsCertificates) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &certificates.root_cert {
        Some(ca) => {
            for certificate in CertificateDer::pem_slice_iter(ca) {
                roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
            }
        }
        None => {
            let mut found = rustls_native_certs::load_native_certs();
            if let Some(error) = found.errors.pop() {
                return Err(io::Error::other(error));
            }
            for certificate in found.certs {
                roots.add(certificate).map_err(io::Error::other)?;
            }
        }
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let Some(client) = &certificates.client_tls else { return Ok(config.with_no_client_auth()) };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&client.client_cert).collect();
    let key = PrivateKeyDer::from_pem_slice(&client.client_key).map_err(io::Error::other)?;
    config.with_client_auth_cert(chain.map_err(io::Error::other)?, key).map_err(io::Error::other)
}
