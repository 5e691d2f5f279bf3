//! One call of the REST API: calls are few, so each has a connection of its own.

use std::{io, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::{net::TcpStream, time::timeout};

use super::error::Error;
use crate::{
    MAX_MESSAGE, exchange,
    server::{NoResponse, Stream},
};

/// Maximum length of a response. The longest ones list the tokens of a ring and the snapshots of all tables.
const MAX_RESPONSE: usize = 8 << 20;

/// Connects to `address`, sends a request and returns the body of a successful response, all within `time_limit`.
/// `authorization` is the header of that name, if the server requires one.
pub(super) async fn call<S: Stream>(
    connect: impl Future<Output = io::Result<S>>,
    address: &str,
    authorization: Option<&HeaderValue>,
    method: Method,
    path: &str,
    time_limit: Duration,
) -> Result<Bytes, Error> {
    let call = format!("{method} {path}");
    let mut request =
        exchange::request(method, path, address).map_err(|source| Error::Invalid { call: call.clone(), source })?;
    let headers = request.headers_mut();
    headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
    headers.extend(authorization.map(|authorization| (header::AUTHORIZATION, authorization.clone())));
    let sent = async {
        let stream = connect.await.map_err(|source| Error::Unreachable {
            call: call.clone(),
            address: address.to_owned(),
            source,
        })?;
        exchange::send(stream, request, MAX_RESPONSE, read).await.map_err(|source| no_response(&call, source))
    };
    match timeout(time_limit, sent).await {
        Ok(Ok((status, body))) if status.is_success() => Ok(body),
        Ok(Ok((status, body))) => Err(Error::Refused { call, status, message: message(&body) }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::TimedOut { call, time_limit }),
    }
}

/// Connects by TCP to a host and port, or to a socket address.
pub(super) async fn connect(address: impl tokio::net::ToSocketAddrs) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn read(response: Response<exchange::Body>) -> Result<(StatusCode, Bytes), NoResponse> {
    let status = response.status();
    let body = response.into_body().collect().await.map_err(exchange::body_error)?;
    Ok((status, body.to_bytes()))
}

fn no_response(call: &str, source: NoResponse) -> Error {
    let call = call.to_owned();
    match source {
        NoResponse::TimedOut(time_limit) => Error::TimedOut { call, time_limit },
        NoResponse::Disconnected(source) => Error::Broken { call, source },
        // The body is decoded later: here it can only be too long.
        NoResponse::Malformed(_) => Error::TooLong { call, limit: MAX_RESPONSE },
    }
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
