//! An API server for tests, with answers that the test provides.

use std::convert::Infallible;

use http::{Request, Response, StatusCode};
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tower::service_fn;

pub(crate) type Answer = Result<Response<Body>, Infallible>;

pub(crate) fn server(respond: impl Fn(Request<Body>) -> Answer + Clone + Send + 'static) -> Client {
    let service = service_fn(move |request| {
        let answer = respond(request);
        async move { answer }
    });
    Client::new(service, "default")
}

pub(crate) fn answer(value: &Value) -> Answer {
    Ok(Response::new(Body::from(value.to_string().into_bytes())))
}

pub(crate) fn failure(code: StatusCode, message: &str, details: &Value) -> Answer {
    let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { message };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": reason, "code": code.as_u16(), "details": details});
    let mut response = answer(&status)?;
    *response.status_mut() = code;
    Ok(response)
}

pub(crate) fn list(items: &[Value]) -> Value {
    json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items})
}
