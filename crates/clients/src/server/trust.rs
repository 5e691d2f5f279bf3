//! Whom we trust, and who we are.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use super::{BadAuthorities, BadIdentity, Unusable};

/// The authorities that alone are trusted, and the certificate and key to show, all PEM.
pub(crate) struct Trust<'a> {
    pub(crate) authorities: &'a [u8],
    pub(crate) identity: Option<(&'a [u8], &'a [u8])>,
}

impl Trust<'_> {
    pub(super) fn config(&self, protocol: &'static [u8]) -> Result<ClientConfig, Unusable> {
        let roots = roots(self.authorities)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(BadAuthorities::Unreadable)?
            .with_root_certificates(roots);
        let mut config = match self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(BadIdentity::Certificate)?;
                if chain.is_empty() {
                    return Err(BadIdentity::NoCertificate.into());
                }
                let key = PrivateKeyDer::from_pem_slice(key).map_err(BadIdentity::Key)?;
                builder.with_client_auth_cert(chain, key).map_err(BadIdentity::Unusable)?
            }
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok(config)
    }
}

/// A bundle may hold what we cannot read, as long as there is something else in it.
fn roots(bundle: &[u8]) -> Result<RootCertStore, BadAuthorities> {
    let certificates = certificates(bundle).map_err(BadAuthorities::Malformed)?;
    let mut roots = RootCertStore::empty();
    let mut unreadable = None;
    for certificate in certificates {
        if let Err(error) = roots.add(certificate) {
            unreadable = Some(error);
        }
    }
    match unreadable {
        _ if !roots.is_empty() => Ok(roots),
        Some(error) => Err(BadAuthorities::Unreadable(error)),
        None => Err(BadAuthorities::Empty),
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}
