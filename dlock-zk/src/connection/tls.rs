//! TLS options for `zookeeper-client`, which uses rustls.

use dlock_core::{
    Error, Result,
    driver::{Address, Pems, Tls},
};
use pem::{EncodeConfig, LineEnding, Pem, encode_many_config};
use rustls::{crypto::CryptoProvider, pki_types::ServerName};
use zookeeper_client::{Error as ZkError, TlsOptions};

/// Returns the options for a connection, with the present contents of the files.
///
/// # Errors
/// [`Error::InvalidConfig`] for a file that cannot be read or used, and for a host that no
/// certificate can name.
pub(super) fn options(tls: &Tls, hosts: &[Address]) -> Result<TlsOptions> {
    // `zookeeper-client` uses the default provider of the process. It would panic if several
    // providers were compiled in and none was the default.
    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has just installed a provider, which serves as well.
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    }
    // `zookeeper-client` would panic at such a host.
    if let Some(host) = hosts.iter().find(|host| ServerName::try_from(host.host.as_str()).is_err()) {
        return Err(refused(format!(
            "no certificate can name the host of `{host}`; write a DNS name or an IP address"
        )));
    }
    let Pems { ca, client_cert: own } = tls.read()?;
    let ca = match ca {
        Some(ca) => text("ca", ca)?,
        None => system_authorities()?,
    };
    let mut options =
        TlsOptions::new().with_pem_ca(&ca).map_err(|error| unusable("ca", "certificate", &error))?;
    if let Some((certificate, key)) = own {
        let (certificate, key) = (text("cert", certificate)?, text("key", key)?);
        options = options
            .with_pem_identity(&certificate, &key)
            .map_err(|error| unusable("cert` or `key", "certificate or key", &error))?;
    }
    Ok(options)
}

/// Returns the certificates of the authorities that this machine trusts, in PEM.
fn system_authorities() -> Result<String> {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        let reason = "this machine trusts no authority: name the certificate of the servers' authority with `ca=/path/to/ca.pem`";
        return Err(refused(reason.to_owned()));
    }
    let pems: Vec<_> =
        found.iter().map(|certificate| Pem::new("CERTIFICATE", certificate.as_ref())).collect();
    Ok(encode_many_config(&pems, EncodeConfig::new().set_line_ending(LineEnding::LF)))
}

fn text(parameter: &str, content: Vec<u8>) -> Result<String> {
    String::from_utf8(content).map_err(|_| refused(format!("the file of `{parameter}` is not in PEM")))
}

fn unusable(parameter: &str, content: &str, error: &ZkError) -> Error {
    refused(format!("the file of `{parameter}` has no {content} in PEM that can be used: {error}"))
}

fn refused(reason: String) -> Error {
    Error::InvalidConfig { reason }
}

#[cfg(test)]
mod tests {
    use dlock_core::ClaimId;

    use super::*;

    fn refusal(tls: &Tls, host: &str) -> String {
        let hosts = [Address { host: host.to_owned(), port: 2281 }];
        options(tls, &hosts).expect_err("the options are unusable").to_string()
    }

    #[test]
    fn an_unusable_file_is_refused_with_its_parameter() {
        let file = std::env::temp_dir().join(format!("dlock-zk-{}", ClaimId::random()));
        let tls = Tls { ca: Some(file.clone()), client_cert: None };
        assert!(refusal(&tls, "zk.example").contains("cannot be read"), "no file");
        for (content, wrong) in
            [(b"".as_slice(), "no certificate"), (b"nonsense", "no certificate"), (b"\xff", "not in PEM")]
        {
            std::fs::write(&file, content).expect("a folder for temporary files");
            let refusal = refusal(&tls, "zk.example");
            assert!(refusal.contains("`ca`") && refusal.contains(wrong), "{refusal}");
        }
        std::fs::remove_file(&file).expect("the file exists");
    }

    #[test]
    fn a_host_that_no_certificate_can_name_is_refused() {
        assert!(refusal(&Tls::default(), "two words").contains("two words:2281"));
    }
}
