//! The TLS configuration of a client: trusted CA certificates and the client certificate.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use super::{InvalidCaBundle, InvalidClientCertificate, InvalidServer};

/// The only trusted CA certificates, and the client certificate with its key, all in PEM.
pub(crate) struct TlsTrust<'a> {
    pub(crate) ca_bundle: &'a [u8],
    pub(crate) client_certificate: Option<(&'a [u8], &'a [u8])>,
}

impl TlsTrust<'_> {
    pub(super) fn config(&self, protocol: &'static [u8]) -> Result<ClientConfig, InvalidServer> {
        let roots = roots(self.ca_bundle)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(InvalidCaBundle::Unreadable)?
            .with_root_certificates(roots);
        let mut config = match self.client_certificate {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(InvalidClientCertificate::Certificate)?;
                if chain.is_empty() {
                    return Err(InvalidClientCertificate::NoCertificate.into());
                }
                let key = PrivateKeyDer::from_pem_slice(key).map_err(InvalidClientCertificate::Key)?;
                builder.with_client_auth_cert(chain, key).map_err(InvalidClientCertificate::Mismatch)?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

/// Reads the CA certificates of a bundle. Those that cannot be decoded are ignored if there is another one.
fn roots(bundle: &[u8]) -> Result<RootCertStore, InvalidCaBundle> {
    let certificates = certificates(bundle).map_err(InvalidCaBundle::Malformed)?;
    let mut roots = RootCertStore::empty();
    let mut unreadable = None;
    for certificate in certificates {
        if let Err(error) = roots.add(certificate) {
            unreadable = Some(error);
        }
    }
    match unreadable {
        _ if !roots.is_empty() => Ok(roots),
        Some(error) => Err(InvalidCaBundle::Unreadable(error)),
        None => Err(InvalidCaBundle::Empty),
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}
