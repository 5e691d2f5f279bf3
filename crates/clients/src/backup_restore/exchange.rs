//! One request and its answer, on a connection of its own, so that nothing is ever sent twice.

use std::{io, time::Duration};

use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::{Error, kept::Kept};
use crate::server::{Connection, Server, Silence, Stream, Unconnected};

/// No answer is longer. The longest lists all delta snapshots since the last full one; little of it is kept.
const LONGEST: usize = 16 << 20;

/// The longest head of an answer.
const LONGEST_HEAD: usize = 16 << 10;

/// The body of an answer with 200, as far as it is kept.
pub(super) async fn call(
    server: &Server,
    method: Method,
    path: &'static str,
    call: &str,
    at_most: Duration,
) -> Result<Vec<u8>, Error> {
    let not_sent = |source: io::Error| Error::unconnected(call, Unconnected::Failed(source));
    let request = request(server, method, path).map_err(not_sent)?;
    let Connection { stream, remaining, .. } =
        server.connect(at_most).await.map_err(|source| Error::unconnected(call, source))?;
    let answer = timeout(remaining, exchange(stream, request)).await;
    match answer.unwrap_or(Err(Silence::TimedOut(at_most))) {
        Ok((StatusCode::OK, body)) => Ok(body),
        Ok((status, _)) => Err(Error::Answered { call: call.to_owned(), status }),
        Err(source) => Err(Error::NoAnswer { call: call.to_owned(), source }),
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

async fn exchange(stream: Box<dyn Stream>, request: Request<Empty<Bytes>>) -> Result<(StatusCode, Vec<u8>), Silence> {
    let handshake = http1::Builder::new().max_buf_size(LONGEST_HEAD).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(Silence::cut)?;
    let answer = async {
        let answer = sender.send_request(request).await.map_err(Silence::cut)?;
        let status = answer.status();
        if status != StatusCode::OK {
            // The number says it all, even when the rest is cut off.
            return Ok((status, Vec::new()));
        }
        let (mut body, mut kept) = (Limited::new(answer.into_body(), LONGEST), Kept::default());
        while let Some(frame) = body.frame().await {
            if let Some(bytes) = frame.map_err(unread)?.data_ref() {
                kept.add(bytes).map_err(Silence::garbled)?;
            }
        }
        Ok((status, kept.into_text()))
    };
    // The connection is driven here, so that it ends with the call, however that ends.
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        driven = &mut connection => match driven {
            Ok(()) => answer.await,
            Err(source) => Err(Silence::cut(source)),
        },
    }
}

fn unread(error: Box<dyn std::error::Error + Send + Sync>) -> Silence {
    if error.is::<LengthLimitError>() { Silence::Garbled(error) } else { Silence::Cut(error) }
}
