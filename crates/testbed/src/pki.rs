//! Keys and certificates of a cluster, and the kubeconfigs made of them.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::json;

use crate::{
    cache,
    error::{Doing, Result, malformed},
};

/// The group with all permissions.
const ADMINISTRATORS: &str = "system:masters";

/// The certificate authority of a cluster, and the folder with the certificates that it signed.
pub struct Pki {
    folder: PathBuf,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// Creates a new authority, and the key that signs ServiceAccount tokens.
    pub fn create(folder: PathBuf) -> Result<Self> {
        let authority =
            CertifiedIssuer::self_signed(authority(), key()?).map_err(malformed("making the cluster's authority"))?;
        let pki = Self { folder, authority };
        pki.write("ca.crt", &pki.authority.pem())?;
        pki.write("ca.key", &pki.authority.key().serialize_pem())?;
        let service_accounts = key()?;
        pki.write("service-accounts.key", &service_accounts.serialize_pem())?;
        pki.write("service-accounts.pub", &service_accounts.public_key_pem())?;
        Ok(pki)
    }

    /// Creates the API server's certificate, and its client certificate for kubelets.
    pub fn api_server(&self, addresses: &[IpAddr]) -> Result<()> {
        let mut params = CertificateParams::new([
            "kubernetes".to_owned(),
            "kubernetes.default".into(),
            "kubernetes.default.svc".into(),
            "kubernetes.default.svc.cluster.local".into(),
            "localhost".into(),
        ])
        .map_err(malformed("naming the API server"))?;
        params.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign("apiserver", params, name("kube-apiserver", None))?;
        self.client("kubelet-client", "kube-apiserver-kubelet-client", Some(ADMINISTRATORS))
    }

    /// Writes the kubeconfig of a component.
    pub fn kubeconfig(&self, file: &str, server: &str, user: &str, group: Option<&str>) -> Result<()> {
        self.client(file, user, group)?;
        let read = |name: String| {
            let path = self.folder.join(name);
            fs::read(&path).map(|bytes| STANDARD.encode(bytes)).doing(|| format!("reading {}", path.display()))
        };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "messina", "cluster": {
                "server": server,
                "certificate-authority-data": read("ca.crt".into())?,
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": read(format!("{file}.crt"))?,
                "client-key-data": read(format!("{file}.key"))?,
            }}],
            "contexts": [{"name": "messina", "context": {"cluster": "messina", "user": user}}],
            "current-context": "messina",
        });
        let text = serde_saphyr::to_string(&config).map_err(malformed("writing a kubeconfig"))?;
        self.write(&format!("{file}.kubeconfig"), &text)
    }

    /// Writes the kubeconfig of the administrator.
    pub fn admin_kubeconfig(&self, server: &str) -> Result<PathBuf> {
        self.kubeconfig("admin", server, "kubernetes-admin", Some(ADMINISTRATORS))?;
        Ok(self.folder.join("admin.kubeconfig"))
    }

    fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<()> {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params, name(user, group))
    }

    fn sign(&self, file: &str, mut params: CertificateParams, subject: DistinguishedName) -> Result<()> {
        params.distinguished_name = subject;
        let key = key()?;
        let certificate =
            params.signed_by(&key, &self.authority).map_err(malformed(format!("signing the certificate {file}")))?;
        self.write(&format!("{file}.crt"), &certificate.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    fn write(&self, file: &str, content: &str) -> Result<()> {
        cache::write_private(&self.folder.join(file), content)
    }
}

/// Signs a certificate of an administrator, and returns it with its key. For tests of expiring certificates.
pub fn administrator(folder: &Path, user: &str, validity: Duration) -> Result<(String, String)> {
    let file = folder.join("ca.key");
    let text = fs::read_to_string(&file).doing(|| format!("reading {}", file.display()))?;
    let authority_key = KeyPair::from_pem(&text).map_err(malformed(format!("reading {}", file.display())))?;
    let mut params = CertificateParams::default();
    params.distinguished_name = name(user, Some(ADMINISTRATORS));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.not_after = (SystemTime::now() + validity).into();
    let key = key()?;
    let certificate = params
        .signed_by(&key, &Issuer::new(authority(), authority_key))
        .map_err(malformed(format!("signing a certificate of {user}")))?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// The certificate parameters of an authority.
pub(crate) fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("messina-testbed", None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    params
}

pub(crate) fn key() -> Result<KeyPair> {
    KeyPair::generate().map_err(malformed("making a key"))
}

pub(crate) fn name(common: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}
