//! A client of one member from this host: etcd's JSON gateway and the sidecar, at the pod's address.

use std::{collections::BTreeMap, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::BodyExt;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Pod, Secret},
};
use kube::{
    Api, Client, Config, ResourceExt,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use super::{
    certificates::{BUNDLE, Secrets},
    objects::{CLIENT_PORT, Plan, SIDECAR_PORT},
};
use crate::error::{Doing, Error, Result, malformed};

/// The timeout of a request to etcd.
const SOON: Duration = Duration::from_secs(60);

/// The response to a request, successful or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The HTTP status.
    pub code: u16,
    /// The body.
    pub text: String,
}

/// The certificates and the key of a client, in PEM.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// The authority's certificate.
    pub authority: Vec<u8>,
    /// The client's own certificate.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
}

impl Credentials {
    /// Reads the credentials for an etcd cluster.
    pub(super) async fn read(client: &Client, namespace: &str, name: &str) -> Result<Self> {
        let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let names = Secrets::of(name);
        let get = async |name: &str, key: &str| -> Result<Vec<u8>> {
            let secret = api.get(name).await.doing(|| format!("reading the Secret {name}"))?;
            let value = secret.data.and_then(|mut data| data.remove(key));
            value
                .map(|ByteString(bytes)| bytes)
                .ok_or_else(|| Error::refused(format!("the Secret {name} has no {key}")))
        };
        Ok(Self {
            authority: get(&names.authority, BUNDLE).await?,
            certificate: get(&names.client, "tls.crt").await?,
            key: get(&names.client, "tls.key").await?,
        })
    }
}

/// A member of an etcd cluster.
#[derive(Clone)]
pub struct Member {
    /// Its name, which is also the name of its pod.
    pub name: String,
    /// The address of its pod, which this host can reach.
    pub address: String,
    /// The DNS name in its certificate, if it has one.
    pub server_name: String,
    scheme: &'static str,
    etcd: Client,
    sidecar: Client,
}

/// The status that a member reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member's ID.
    pub id: u64,
    /// The ID of the leader; 0 if there is none.
    pub leader: u64,
    /// The newest revision.
    pub revision: u64,
}

impl MemberStatus {
    /// Whether the member leads.
    pub fn leads(&self) -> bool {
        self.id == self.leader
    }
}

impl Member {
    pub(super) async fn of(plan: &Plan<'_>, pod: &Pod, credentials: Option<&Credentials>) -> Result<Self> {
        let name = pod.name_any();
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
        let address = address.ok_or_else(|| Error::refused(format!("the pod {name} has no address yet")))?;
        let server_name = plan.host(&name);
        let scheme = if credentials.is_some() { "https" } else { "http" };
        let etcd = connect(&format!("{scheme}://{address}:{CLIENT_PORT}"), &server_name, credentials).await?;
        let sidecar = connect(&format!("{scheme}://{address}:{SIDECAR_PORT}"), &server_name, credentials).await?;
        Ok(Self { name, address, server_name, scheme, etcd, sidecar })
    }

    /// The URL of the member's etcd, from this host. Its certificate is for [`Member::server_name`].
    pub fn etcd_url(&self) -> String {
        format!("{}://{}:{CLIENT_PORT}", self.scheme, self.address)
    }

    /// The URL of the member's sidecar, from this host.
    pub fn sidecar_url(&self) -> String {
        format!("{}://{}:{SIDECAR_PORT}", self.scheme, self.address)
    }

    /// Sends a request to the sidecar.
    pub async fn sidecar(&self, method: &str, path: &str, limit: Duration) -> Result<HttpResponse> {
        ask(&self.sidecar, method, path, None, limit).await
    }

    /// Sends a request to etcd, and returns the body of a successful response.
    async fn etcd(&self, path: &str, question: &Value, limit: Duration) -> Result<Value> {
        let answer = ask(&self.etcd, "POST", path, Some(question), limit).await?;
        if answer.code != 200 {
            let HttpResponse { code, text } = answer;
            return Err(Error::refused(format!("{path} of {} answers {code}: {text}", self.name)));
        }
        serde_json::from_str(&answer.text).map_err(malformed(format!("reading what {path} of {} answers", self.name)))
    }

    /// The status that the member reports.
    pub async fn status(&self) -> Result<MemberStatus> {
        self.status_within(SOON).await
    }

    pub(super) async fn status_within(&self, limit: Duration) -> Result<MemberStatus> {
        let answer = self.etcd("/v3/maintenance/status", &json!({}), limit).await?;
        let number = |value: &Value| value.as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(MemberStatus {
            id: number(&answer["header"]["member_id"]),
            leader: number(&answer["leader"]),
            revision: number(&answer["header"]["revision"]),
        })
    }

    /// Writes a key.
    pub async fn put(&self, key: &str, value: &str) -> Result<()> {
        self.etcd("/v3/kv/put", &json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)}), SOON)
            .await
            .map(drop)
    }

    /// Reads a key.
    pub async fn get(&self, key: &str) -> Result<Option<String>> {
        let answer = self.etcd("/v3/kv/range", &json!({"key": STANDARD.encode(key)}), SOON).await?;
        Ok(keys_and_values(&answer)?.remove(key))
    }

    /// All keys and values. Bytes that are not UTF-8 are replaced.
    pub async fn all(&self) -> Result<BTreeMap<String, String>> {
        let everything = json!({"key": STANDARD.encode([0]), "range_end": STANDARD.encode([0])});
        keys_and_values(&self.etcd("/v3/kv/range", &everything, SOON).await?)
    }

    /// Moves the leadership to the member of this ID. Only the leader accepts it.
    pub(super) async fn hand_over(&self, to: u64) -> Result<()> {
        self.etcd("/v3/maintenance/transfer-leadership", &json!({"targetID": to.to_string()}), SOON).await.map(drop)
    }
}

/// An HTTP client for one port. The client of Kubernetes' API serves the purpose.
async fn connect(url: &str, server_name: &str, credentials: Option<&Credentials>) -> Result<Client> {
    let (mut cluster, mut user) = (json!({"server": url}), json!({}));
    if let Some(credentials) = credentials {
        cluster["tls-server-name"] = server_name.into();
        cluster["certificate-authority-data"] = STANDARD.encode(&credentials.authority).into();
        user["client-certificate-data"] = STANDARD.encode(&credentials.certificate).into();
        user["client-key-data"] = STANDARD.encode(&credentials.key).into();
    }
    let described = json!({
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    });
    let described: Kubeconfig = serde_json::from_value(described).map_err(malformed("describing a connection"))?;
    let mut config = Config::from_custom_kubeconfig(described, &KubeConfigOptions::default())
        .await
        .map_err(malformed(format!("creating a client of {url}")))?;
    // A request for a snapshot is not retried.
    config.default_retry = false;
    Client::try_from(config).doing(|| format!("creating a client of {url}"))
}

async fn ask(client: &Client, method: &str, path: &str, body: Option<&Value>, limit: Duration) -> Result<HttpResponse> {
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Body::from(body))
        .map_err(malformed("creating a request"))?;
    let asking = async {
        let response = client.send(request).await.doing(|| format!("requesting {path}"))?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.doing(|| format!("reading the response of {path}"))?.to_bytes();
        Ok(HttpResponse { code, text: String::from_utf8_lossy(&body).into_owned() })
    };
    match tokio::time::timeout(limit, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(Error::Late { what: format!("a response to {path}"), waited: limit, seen: "none".into() }),
    }
}

/// Reads the response of etcd to a range request.
pub(super) fn keys_and_values(answer: &Value) -> Result<BTreeMap<String, String>> {
    let text = |value: &Value| {
        let bytes =
            STANDARD.decode(value.as_str().unwrap_or_default()).map_err(malformed("reading the keys of etcd"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let pairs = answer["kvs"].as_array().into_iter().flatten();
    pairs.map(|pair| Ok((text(&pair["key"])?, text(&pair["value"])?))).collect()
}
