//! HTTP: one function that serves and one that sends a request.
//!
//! A node that stops must end its connections, so they are tasks of the server. `axum::serve` detaches them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http::{HeaderMap, Method, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::tls::Reloading;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// Decoded, without the query.
    pub(crate) path: String,
    pub(crate) path_and_query: String,
    pub(crate) query: BTreeMap<String, String>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) content_type: &'static str,
    pub(crate) body: Bytes,
}

impl Response {
    pub(crate) fn json(value: &Value) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: value.to_string().into() }
    }

    pub(crate) fn text(content_type: &'static str, text: impl Into<Bytes>) -> Self {
        Self { status: StatusCode::OK, content_type, body: text.into() }
    }

    /// Returns an error in the format of ScyllaDB's REST API.
    pub(crate) fn error(status: StatusCode, message: impl Into<String>) -> Self {
        let body = json!({ "message": message.into(), "code": status.as_u16() });
        Self { status, ..Self::json(&body) }
    }
}

/// Listens at an address. The error names the address.
pub(crate) async fn listen(address: IpAddr, port: u16) -> io::Result<TcpListener> {
    let address = SocketAddr::new(address, port);
    let listen = TcpListener::bind(address).await;
    listen.map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))
}

/// Serves requests until it is dropped, which also closes the connections.
pub(crate) async fn serve<F, A>(listener: TcpListener, tls: Option<Arc<Reloading>>, handler: F)
where
    F: Fn(Request) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response> + Send + 'static,
{
    accept(listener, move |stream| {
        let (handler, tls) = (handler.clone(), tls.clone());
        async move {
            match tls {
                None => serve_connection(stream, handler).await,
                Some(tls) => {
                    let handshake = TlsAcceptor::from(tls.current()).accept(stream);
                    if let Ok(Ok(stream)) = timeout(Duration::from_secs(10), handshake).await {
                        serve_connection(stream, handler).await;
                    }
                }
            }
        }
    })
    .await;
}

/// Accepts connections until it is dropped, which also closes them.
pub(crate) async fn accept<F, T>(listener: TcpListener, serve: F)
where
    F: Fn(TcpStream) -> T,
    T: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                connections.spawn(serve(stream));
            }
            // Too many open files: retries after others are closed.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

pub(crate) async fn serve_connection<S, F, A>(stream: S, handler: F)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response> + Send + 'static,
{
    let service = service_fn(move |request| {
        let handler = handler.clone();
        async move {
            let served = match read(request).await {
                Ok(request) => handler(request).await,
                Err(error) => Response::error(StatusCode::BAD_REQUEST, error.to_string()),
            };
            let mut response = http::Response::new(Full::new(served.body));
            *response.status_mut() = served.status;
            response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(served.content_type));
            Ok::<_, Infallible>(response)
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    // A client that disconnects is no error.
    let _ = connection.await;
}

async fn read(request: http::Request<Incoming>) -> Result<Request, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let query = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes());
    Ok(Request {
        method: parts.method,
        path: percent_decode_str(parts.uri.path()).decode_utf8_lossy().into_owned(),
        path_and_query: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        query: query.into_owned().collect(),
        headers: parts.headers,
        body,
    })
}

/// Sends a request and returns the response. Without `time_limit` it waits without a limit.
pub(crate) async fn send_request(
    address: SocketAddr,
    method: Method,
    path_and_query: &str,
    body: Bytes,
    time_limit: Option<Duration>,
) -> io::Result<(StatusCode, String, Bytes)> {
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        let request = http::Request::builder()
            .method(method)
            .uri(path_and_query)
            .header("host", address.to_string())
            .body(Full::new(body))
            .map_err(io::Error::other)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(io::Error::other)?;
            let status = response.status();
            let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let content_type = content_type.unwrap_or("application/json").to_owned();
            let body = response.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
            Ok((status, content_type, body))
        };
        let mut exchange = std::pin::pin!(exchange);
        // The connection must be polled for the exchange, and may end before the response is read.
        tokio::select! {
            response = &mut exchange => response,
            _ = connection => exchange.await,
        }
    };
    match time_limit {
        Some(time_limit) => timeout(time_limit, exchange).await.map_err(io::Error::from)?,
        None => exchange.await,
    }
}
