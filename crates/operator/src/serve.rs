//! The HTTP server of probes.

use std::{
    convert::Infallible,
    future::Future,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use anyhow::{Context, Result};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use messina_runtime::http_server;
use tokio::net::TcpListener;
use tracing::info;

/// A response to a request.
pub(crate) type HttpResponse = Response<Full<Bytes>>;

/// Responds to requests on `port` of all addresses, for ever. `respond` gets the path.
pub(crate) async fn serve<F, A>(port: u16, respond: F) -> Result<Infallible>
where
    F: Fn(String) -> A + Clone + Send + 'static,
    A: Future<Output = HttpResponse> + Send,
{
    let listener = listen(port).await?;
    info!(address = %listener.local_addr().context("reading the address of the socket")?, "listening");
    Ok(http_server::serve(listener, move |request: Request<Incoming>| respond(request.uri().path().to_owned())).await)
}

/// Listens on IPv6 and IPv4, or on IPv4 only where IPv6 is disabled.
async fn listen(port: u16) -> Result<TcpListener> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let old = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    match TcpListener::bind(both).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(old).await.with_context(|| format!("listening on port {port}")),
    }
}

/// Returns a plain-text response.
pub(crate) fn text(status: StatusCode, text: impl AsRef<str>) -> HttpResponse {
    let mut response = Response::new(Full::new(Bytes::from(format!("{}\n", text.as_ref()))));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Returns a JSON response with status 200.
pub(crate) fn json(body: Bytes) -> HttpResponse {
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
