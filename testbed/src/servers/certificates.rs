//! Certificates for servers with TLS.

use std::io;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// File of the certificate authority, in a server's folder.
pub(super) const CA: &str = "ca.pem";
/// File of the server's certificate.
pub(super) const CERTIFICATE: &str = "server.pem";
/// File of the server's private key.
pub(super) const KEY: &str = "server.key";

/// Returns a new authority, a certificate for servers on this machine, and its private key.
///
/// Each is PEM, with the name of its file.
pub(super) fn new() -> io::Result<[(&'static str, String); 3]> {
    let (ca, certificate, key) = generate().map_err(io::Error::other)?;
    Ok([(CA, ca), (CERTIFICATE, certificate), (KEY, key)])
}

fn generate() -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::new([])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    Ok((ca, server.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}
