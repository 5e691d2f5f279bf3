//! TLS from files that change while the node runs.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    RootCertStore, ServerConfig,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use thiserror::Error;

use crate::{config::Encryption, log};

/// Invalid TLS files.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("Could not read certificate file {}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("certificate and key do not fit together")]
    Config(#[source] rustls::Error),
    #[error("the truststore cannot be used")]
    Truststore(#[source] rustls::server::VerifierBuilderError),
}

/// A certificate and its key, read again when the files change.
#[derive(Debug)]
pub(crate) struct Reloading {
    files: Encryption,
    loaded: Mutex<(Stamp, Arc<ServerConfig>)>,
}

/// Identifies the version of a file without reading it.
type Stamp = Vec<Option<(u64, i64, i64, u64)>>;

impl Reloading {
    pub(crate) fn load(files: Encryption) -> Result<Self, TlsError> {
        let stamp = stamp(&files);
        let config = server_config(&files)?;
        Ok(Self { files, loaded: Mutex::new((stamp, config)) })
    }

    /// Returns the settings of the current files, or the previous ones if the files are invalid.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        let stamp = stamp(&self.files);
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.0 != stamp {
            let file = self.files.certificate.display();
            match server_config(&self.files) {
                Ok(config) => {
                    log::info("tls", format!("Reloaded {file}"));
                    loaded.1 = config;
                }
                Err(error) => log::warn("tls", format!("Failed to reload {file}: {error}")),
            }
            loaded.0 = stamp;
        }
        Arc::clone(&loaded.1)
    }
}

fn stamp(files: &Encryption) -> Stamp {
    let paths = [Some(&files.certificate), Some(&files.key), files.client_authorities.as_ref()];
    let facts = |path: &PathBuf| fs::metadata(path).ok().map(|m| (m.ino(), m.mtime(), m.mtime_nsec(), m.size()));
    paths.into_iter().flatten().map(facts).collect()
}

fn server_config(files: &Encryption) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|source| TlsError::File { path: files.key.clone(), source })?;
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(certificates(path)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(TlsError::Truststore)?)
        }
    };
    builder.with_single_cert(chain, key).map(Arc::new).map_err(TlsError::Config)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let file = |source| TlsError::File { path: path.to_owned(), source };
    CertificateDer::pem_file_iter(path).map_err(file)?.collect::<Result<_, _>>().map_err(file)
}

/// Returns a self-signed certificate, as agents without a certificate have.
pub(crate) fn self_signed(names: Vec<String>) -> Result<Arc<ServerConfig>, SelfSignedError> {
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    Ok(Arc::new(config))
}

/// A certificate cannot be created.
#[derive(Debug, Error)]
pub(crate) enum SelfSignedError {
    #[error("making a certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("using a certificate")]
    Tls(#[from] rustls::Error),
}
