//! TLS, by rustls as `zookeeper-client` has it.

use dlock_core::{
    Error, Result,
    driver::{Address, Pems, Tls},
};
use pem::{EncodeConfig, LineEnding, Pem, encode_many_config};
use rustls::{crypto::CryptoProvider, pki_types::ServerName};
use zookeeper_client::{Error as ZkError, TlsOptions};

/// What the client crate needs for a connection, with the contents that the files have now.
///
/// # Errors
/// [`Error::InvalidConfig`] for a file that cannot be read or used, and for a host that no certificate can name.
pub(super) fn options(tls: &Tls, hosts: &[Address]) -> Result<TlsOptions> {
    // The client crate takes the provider of the process, and would panic if several are compiled in and none is chosen.
    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has installed one first, which is as good.
        rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
    }
    // The client crate panics at such a host.
    if let Some(host) = hosts.iter().find(|host| ServerName::try_from(host.host.as_str()).is_err()) {
        return Err(refused(format!("no certificate can name the host of `{host}`")));
    }
    let Pems { ca, own } = tls.read()?;
    let ca = match ca {
        Some(ca) => text("ca", ca)?,
        None => trusted_by_the_machine()?,
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

/// The certificates of the authorities that this machine trusts, in PEM.
fn trusted_by_the_machine() -> Result<String> {
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

fn unusable(parameter: &str, what: &str, error: &ZkError) -> Error {
    refused(format!("the file of `{parameter}` has no {what} in PEM that can be used: {error}"))
}

fn refused(reason: String) -> Error {
    Error::InvalidConfig { reason }
}

#[cfg(test)]
mod tests {
    use dlock_core::ClaimId;

    use super::*;

    fn told(tls: &Tls, host: &str) -> String {
        let hosts = [Address { host: host.to_owned(), port: 2281 }];
        options(tls, &hosts).expect_err("cannot be used").to_string()
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_its_parameter() {
        let file = std::env::temp_dir().join(format!("dlock-zookeeper-{}", ClaimId::random()));
        let tls = Tls { ca: Some(file.clone()), own: None };
        assert!(told(&tls, "zk.example").contains("cannot be read"), "no file");
        for (content, wrong) in
            [(b"".as_slice(), "no certificate"), (b"nonsense", "no certificate"), (b"\xff", "not in PEM")]
        {
            std::fs::write(&file, content).expect("a folder for temporary files");
            let told = told(&tls, "zk.example");
            assert!(told.contains("`ca`") && told.contains(wrong), "{told}");
        }
        std::fs::remove_file(&file).expect("it is there");
    }

    #[test]
    fn a_host_that_no_certificate_can_name_is_refused() {
        assert!(told(&Tls::default(), "two words").contains("two words:2281"));
    }
}
