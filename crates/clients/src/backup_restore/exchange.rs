//! One HTTP request and its response on a connection of its own, so that no request is ever sent twice.

use std::{io, time::Duration};

use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::{Error, last_elements::LastElements};
use crate::server::{Connection, NoResponse, NotConnected, Server, Stream};

/// Maximum length of a response. The longest lists all delta snapshots since the last full one; little of it is kept.
const MAX_RESPONSE: usize = 16 << 20;

/// Maximum length of the headers of a response.
const MAX_HEAD: usize = 16 << 10;

/// Sends a request and returns the body of a response with status 200, reduced by [`LastElements`].
pub(super) async fn call(
    server: &Server,
    method: Method,
    path: &'static str,
    call: &str,
    time_limit: Duration,
) -> Result<Vec<u8>, Error> {
    let not_sent = |source: io::Error| Error::not_connected(call, NotConnected::Failed(source));
    let request = request(server, method, path).map_err(not_sent)?;
    let Connection { stream, remaining, .. } =
        server.connect(time_limit).await.map_err(|source| Error::not_connected(call, source))?;
    let response = timeout(remaining, exchange(stream, request)).await;
    match response.unwrap_or(Err(NoResponse::TimedOut(time_limit))) {
        Ok((StatusCode::OK, body)) => Ok(body),
        Ok((status, _)) => Err(Error::ErrorResponse { call: call.to_owned(), status }),
        Err(source) => Err(Error::NoResponse { call: call.to_owned(), source }),
    }
}

fn request(server: &Server, method: Method, path: &'static str) -> io::Result<Request<Empty<Bytes>>> {
    let mut request = Request::new(Empty::new());
    *request.method_mut() = method;
    *request.uri_mut() = Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(header::HOST, server.host_header()?);
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

async fn exchange(
    stream: Box<dyn Stream>,
    request: Request<Empty<Bytes>>,
) -> Result<(StatusCode, Vec<u8>), NoResponse> {
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(NoResponse::disconnected)?;
    let response = async {
        let response = sender.send_request(request).await.map_err(NoResponse::disconnected)?;
        let status = response.status();
        if status != StatusCode::OK {
            // The status suffices, even if the connection breaks before the end of the body.
            return Ok((status, Vec::new()));
        }
        let (mut body, mut last_elements) = (Limited::new(response.into_body(), MAX_RESPONSE), LastElements::default());
        while let Some(frame) = body.frame().await {
            if let Some(bytes) = frame.map_err(body_error)?.data_ref() {
                last_elements.add(bytes).map_err(NoResponse::malformed)?;
            }
        }
        Ok((status, last_elements.into_text()))
    };
    // The connection is polled here, so that it is closed when the call ends or is cancelled.
    tokio::pin!(response, connection);
    tokio::select! {
        biased;
        response = &mut response => response,
        closed = &mut connection => match closed {
            Ok(()) => response.await,
            Err(source) => Err(NoResponse::disconnected(source)),
        },
    }
}

fn body_error(error: Box<dyn std::error::Error + Send + Sync>) -> NoResponse {
    if error.is::<LengthLimitError>() { NoResponse::Malformed(error) } else { NoResponse::Disconnected(error) }
}
