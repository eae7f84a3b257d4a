//! Certificates for a server that speaks TLS.

use std::io;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

/// The file of the authority's certificate, in a server's folder.
pub(super) const CA: &str = "ca.pem";
/// The file of the server's certificate.
pub(super) const CERTIFICATE: &str = "server.pem";
/// The file of the server's key.
pub(super) const KEY: &str = "server.key";

/// An authority's certificate, that of a server on this machine, and the server's key, each with its file, in PEM.
pub(super) fn new() -> io::Result<[(&'static str, String); 3]> {
    let (ca, certificate, key) = made().map_err(io::Error::other)?;
    Ok([(CA, ca), (CERTIFICATE, certificate), (KEY, key)])
}

fn made() -> Result<(String, String, String), rcgen::Error> {
    let mut params = CertificateParams::new([])?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = params.self_signed(&key)?.pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let server = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    Ok((ca, server.signed_by(&key, &issuer)?.pem(), key.serialize_pem()))
}
