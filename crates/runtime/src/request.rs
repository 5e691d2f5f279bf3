//! Requests about one object.

use http::{Method, Request, header::CONTENT_TYPE};
use kube::{Client, api::ObjectMeta};
use serde_json::Value;

/// Sends a request about one object, and decodes only the metadata of the response.
pub(crate) async fn send(
    client: &Client,
    method: Method,
    path: &str,
    content: &str,
    value: &Value,
) -> kube::Result<ObjectMeta> {
    #[derive(serde::Deserialize)]
    struct Answer {
        #[serde(default)]
        metadata: ObjectMeta,
    }
    let body = if method == Method::GET { Vec::new() } else { value.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, content).body(body);
    let request =
        request.map_err(|error| kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error)))?;
    client.request::<Answer>(request).await.map(|answer| answer.metadata)
}
