//! A small HTTP server for probes.

use std::{
    convert::Infallible,
    future::Future,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::{Context, Result};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::{net::TcpListener, time::sleep};
use tracing::{debug, info, warn};

/// An answer to a request.
pub(crate) type Answer = Response<Full<Bytes>>;

/// How long somebody may take to say what is wanted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Answers requests on `port` of all addresses, for ever.
pub(crate) async fn serve<F, A>(port: u16, answer: F) -> Result<()>
where
    F: Fn(String) -> A + Clone + Send + 'static,
    A: Future<Output = Answer> + Send,
{
    let listener = listen(port).await?;
    info!(address = %listener.local_addr().context("asking for the own address")?, "listening");
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Most likely there are too many connections, of which some will end.
                warn!(%error, "a connection cannot be accepted");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let answer = answer.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer.clone();
            async move { Ok::<_, Infallible>(answer(request.uri().path().to_owned()).await) }
        });
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(PATIENCE);
        let connection = server.serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection broke");
            }
        });
    }
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

/// A value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(body) => {
            let mut answer = Response::new(Full::new(Bytes::from(body)));
            let json = header::HeaderValue::from_static("application/json");
            answer.headers_mut().insert(header::CONTENT_TYPE, json);
            answer
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
