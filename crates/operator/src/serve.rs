//! Answers to probes by HTTP.

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

/// An answer to a request.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Answers requests for paths on `port` of all addresses, for ever.
pub(crate) async fn serve<F, A>(port: u16, answer: F) -> Result<Infallible>
where
    F: Fn(String) -> A + Clone + Send + 'static,
    A: Future<Output = Answer> + Send,
{
    let listener = listen(port).await?;
    info!(address = %listener.local_addr().context("asking for the own address")?, "listening");
    Ok(http_server::serve(listener, move |request: Request<Incoming>| answer(request.uri().path().to_owned())).await)
}

/// Listens on both families of addresses, or on the old one where the new one is not to be had.
async fn listen(port: u16) -> Result<TcpListener> {
    let both = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let old = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    match TcpListener::bind(both).await {
        Ok(listener) => Ok(listener),
        Err(_) => TcpListener::bind(old).await.with_context(|| format!("listening on port {port}")),
    }
}

/// A text, and whether it is good news.
pub(crate) fn text(status: StatusCode, text: impl AsRef<str>) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{}\n", text.as_ref()))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain; charset=utf-8"));
    answer
}

/// A body of JSON.
pub(crate) fn json(body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    answer
}
