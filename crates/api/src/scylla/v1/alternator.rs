//! Alternator, the DynamoDB-compatible API.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

use crate::schema;

/// How Alternator is served. HTTPS on port 8043 is always enabled.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.port) || self.port == 0 || !has(self.insecureEnableHTTP) || self.insecureEnableHTTP",
    "message": "insecureEnableHTTP cannot be false while port is set, because port serves plain HTTP: remove port, or \
        set insecureEnableHTTP to true",
}]))]
pub struct AlternatorSpec {
    /// Deprecated: a port other than 8000 for plain HTTP. If it is set, plain HTTP is enabled and, unless
    /// `insecureDisableAuthorization` is set, authorization is disabled. Use `insecureEnableHTTP` instead. 0 is the
    /// same as unset.
    pub port: Option<i32>,
    /// Write isolation of Alternator: always_use_lwt, forbid_rmw, only_rmw_uses_lwt or unsafe_rmw. ScyllaDB requires it
    /// if Alternator is enabled.
    pub write_isolation: Option<String>,
    /// Whether plain HTTP is served on port 8000 in addition to HTTPS. If unset, plain HTTP is served only when `port`
    /// is set.
    #[serde(rename = "insecureEnableHTTP")]
    pub insecure_enable_http: Option<bool>,
    /// Whether requests are served without authorization. Defaults to false, or to true if `port` is set.
    pub insecure_disable_authorization: Option<bool>,
    /// The serving certificate of HTTPS. If unset, the operator issues one.
    #[schemars(extend("default" = {"type": "OperatorManaged"}))]
    pub serving_certificate: Option<TlsCertificate>,
}

/// Who provides a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = schema::known_text)]
pub enum TlsCertificateType {
    /// The operator issues and renews it.
    OperatorManaged,
    /// The user provides it in a Secret.
    UserManaged,
    /// Not known to this version.
    #[serde(untagged)]
    Other(String),
}

/// A serving certificate.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsCertificate {
    /// Who provides the certificate: OperatorManaged or UserManaged. The options are in the field of that type.
    #[serde(rename = "type")]
    pub certificate_type: Option<TlsCertificateType>,
    /// For type UserManaged: where the certificate is.
    pub user_managed_options: Option<UserManagedTlsCertificateOptions>,
    /// For type OperatorManaged: additional names and addresses of the certificate.
    pub operator_managed_options: Option<OperatorManagedTlsCertificateOptions>,
}

/// A certificate that the user provides.
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
    /// DNS names of the certificate, in addition to those of the cluster's Services, such as that of a load balancer.
    #[serde(rename = "additionalDNSNames")]
    pub additional_dns_names: Option<Vec<String>>,
    /// IP addresses of the certificate, in addition to those of the cluster's Services.
    #[serde(rename = "additionalIPAddresses")]
    pub additional_ip_addresses: Option<Vec<String>>,
}
