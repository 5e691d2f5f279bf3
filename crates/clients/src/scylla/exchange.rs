//! One HTTP request and its response on a connection of its own: calls are few, and connecting to loopback is cheap.

use std::{net::SocketAddr, time::Duration};

use bytes::BytesMut;
use http::{HeaderValue, Method, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

use super::error::Error;
use crate::MAX_MESSAGE;

/// Maximum length of a response. The longest ones list the tokens of a ring and the snapshots of all tables.
const MAX_RESPONSE: usize = 8 << 20;

/// Sends a request and returns the body of a successful response.
pub(super) async fn call(
    address: SocketAddr,
    method: Method,
    path: &str,
    time_limit: Duration,
) -> Result<Bytes, Error> {
    let call = || format!("{method} {path}");
    let response = timeout(time_limit, exchange(address, &method, path, &call)).await;
    response.unwrap_or_else(|_| Err(Error::TimedOut { call: call(), time_limit }))
}

async fn exchange(
    address: SocketAddr,
    method: &Method,
    path: &str,
    call: &(impl Fn() -> String + Sync),
) -> Result<Bytes, Error> {
    let unreachable = |source| Error::Unreachable { call: call(), address: address.to_string(), source };
    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
    stream.set_nodelay(true).map_err(unreachable)?;
    send_request(stream, method, path, &address.to_string(), None, call).await
}

/// Sends a request on a connection to `host` and returns the body of a successful response. `authorization` is the
/// header of that name, if the server requires one.
pub(super) async fn send_request(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin,
    method: &Method,
    path: &str,
    host: &str,
    authorization: Option<&HeaderValue>,
    call: &(impl Fn() -> String + Sync),
) -> Result<Bytes, Error> {
    let broken = |source| Error::Broken { call: call(), source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|source| Error::Invalid { call: call(), source })?;
    if let Some(authorization) = authorization {
        request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
    }
    let response = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = read(response.into_body(), call).await?;
        if status.is_success() {
            Ok(body)
        } else {
            Err(Error::Refused { call: call(), status, message: message(&body) })
        }
    };
    // The connection is polled here, so that it is closed when the call ends or is cancelled.
    tokio::pin!(response, connection);
    tokio::select! {
        response = &mut response => response,
        closed = &mut connection => match closed {
            Ok(()) => response.await,
            Err(source) => Err(broken(source)),
        },
    }
}

/// Reads the body up to [`MAX_RESPONSE`].
async fn read(mut body: Incoming, call: &(impl Fn() -> String + Sync)) -> Result<Bytes, Error> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|source| Error::Broken { call: call(), source })?;
        let bytes = frame.data_ref().map_or(&[][..], |bytes| &bytes[..]);
        if read.len() + bytes.len() > MAX_RESPONSE {
            return Err(Error::TooLong { call: call(), limit: MAX_RESPONSE });
        }
        read.extend_from_slice(bytes);
    }
    Ok(read.freeze())
}

/// Returns the error message of ScyllaDB in one line.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Failure {
        message: String,
    }
    let message = match serde_json::from_slice::<Failure>(body) {
        Ok(failure) => failure.message,
        Err(_) => String::from_utf8_lossy(body).into_owned(),
    };
    messina_text::line(&message, MAX_MESSAGE)
}
