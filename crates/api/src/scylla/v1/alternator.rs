//! Alternator, the API that DynamoDB clients speak.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// How Alternator is served. HTTPS on port 8043 is always on.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.port) || self.port == 0 || !has(self.insecureEnableHTTP) || self.insecureEnableHTTP",
    "message": "port serves plain HTTP, so insecureEnableHTTP cannot be false beside it: remove port, or set \
        insecureEnableHTTP to true",
}]))]
pub struct AlternatorSpec {
    /// Deprecated: a port other than 8000 for plain HTTP. Setting it turns plain HTTP on and, unless
    /// `insecureDisableAuthorization` says otherwise, authorization off. Use `insecureEnableHTTP` and reach port 8000
    /// through a Service. Absent and 0 mean the same.
    pub port: Option<i32>,
    /// How Alternator isolates writes: always_use_lwt, forbid_rmw, only_rmw_uses_lwt or unsafe_rmw. ScyllaDB asks for one as
    /// soon as Alternator is on.
    pub write_isolation: Option<String>,
    /// Whether plain HTTP is served too, on port 8000. Without it, only when `port` is set.
    #[serde(rename = "insecureEnableHTTP")]
    pub insecure_enable_http: Option<bool>,
    /// Whether requests are served without authorization. Without it, authorization is on, except when `port` is set.
    pub insecure_disable_authorization: Option<bool>,
    /// The certificate that HTTPS is served with. Without it, the operator issues one.
    #[schemars(extend("default" = {"type": "OperatorManaged"}))]
    pub serving_certificate: Option<TlsCertificate>,
}

/// Who provides a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum TlsCertificateType {
    /// The operator issues it and renews it in time.
    OperatorManaged,
    /// The user keeps it in a Secret.
    UserManaged,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A certificate to serve with.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsCertificate {
    /// Who provides the certificate: OperatorManaged or UserManaged. The field named after it holds the rest.
    #[serde(rename = "type")]
    pub certificate_type: Option<TlsCertificateType>,
    /// For type UserManaged: where the certificate is.
    pub user_managed_options: Option<UserManagedTlsCertificateOptions>,
    /// For type OperatorManaged: what else the certificate is valid for.
    pub operator_managed_options: Option<OperatorManagedTlsCertificateOptions>,
}

/// A certificate that the user keeps.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UserManagedTlsCertificateOptions {
    /// Name of a Secret of this namespace and of type kubernetes.io/tls that holds the certificate and its key.
    pub secret_name: Option<String>,
}

/// A certificate that the operator issues.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperatorManagedTlsCertificateOptions {
    /// Host names that the certificate is valid for besides those of the cluster's own Services, such as that of a load
    /// balancer.
    #[serde(rename = "additionalDNSNames")]
    pub additional_dns_names: Option<Vec<String>>,
    /// IP addresses that the certificate is valid for besides those of the cluster's own Services.
    #[serde(rename = "additionalIPAddresses")]
    pub additional_ip_addresses: Option<Vec<String>>,
}
