//! One HTTP/1.1 request and its response on a connection of its own, so that no request is ever sent twice.
//!
//! All errors are of requests that were sent: connecting is the caller's part, and so is the time limit.

use bytes::Bytes;
use http::{Method, Request, Response, header};
use http_body_util::{Full, LengthLimitError, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;

use crate::server::{NoResponse, Stream};

/// Maximum length of the headers of a response.
const MAX_HEAD: usize = 16 << 10;

/// The body of a response, which arrives while it is read. Reading more than the limit fails.
pub(crate) type Body = Limited<Incoming>;

/// Creates a request without a body. `host` is the header of that name: host and port of the server.
pub(crate) fn request(method: Method, path: &str, host: &str) -> Result<Request<Full<Bytes>>, http::Error> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::CONNECTION, "close")
        .body(Full::default())
}

/// Sends a request and returns what `read` makes of the response, whose body has at most `limit` bytes.
pub(crate) async fn send<T, F>(
    stream: impl Stream,
    request: Request<Full<Bytes>>,
    limit: usize,
    read: impl FnOnce(Response<Body>) -> F,
) -> Result<T, NoResponse>
where
    F: Future<Output = Result<T, NoResponse>>,
{
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.map_err(NoResponse::disconnected)?;
    let response = async {
        let response = sender.send_request(request).await.map_err(NoResponse::disconnected)?;
        read(response.map(|body| Limited::new(body, limit))).await
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

/// Converts an error of reading a [`Body`]: one that is too long is malformed.
pub(crate) fn body_error(error: Box<dyn std::error::Error + Send + Sync>) -> NoResponse {
    if error.is::<LengthLimitError>() { NoResponse::Malformed(error) } else { NoResponse::Disconnected(error) }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use http_body_util::BodyExt;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;
    use crate::fakes::start_server;

    #[tokio::test]
    async fn request_has_its_body_and_the_response_its_headers() {
        let address = start_server(None, |mut stream| async move {
            let mut request = vec![];
            while !request.ends_with(b"{\"name\":\"a\"}") {
                request.push(stream.read_u8().await.unwrap());
            }
            let text = String::from_utf8(request).unwrap();
            assert!(text.starts_with("PUT /api/v1/clusters HTTP/1.1\r\nhost: manager:80\r\n"), "{text}");
            let response = "HTTP/1.1 201 Created\r\nLocation: /clusters/1\r\nContent-Length: 2\r\n\r\n{}";
            stream.write_all(response.as_bytes()).await.unwrap();
        })
        .await;
        let mut request = request(Method::PUT, "/api/v1/clusters", "manager:80").unwrap();
        *request.body_mut() = Full::from(r#"{"name":"a"}"#);
        let stream = TcpStream::connect(address).await.unwrap();
        let read = |response: Response<Body>| async {
            let location = response.headers()[header::LOCATION].clone();
            Ok((location, response.into_body().collect().await.map_err(body_error)?.to_bytes()))
        };
        let (location, body) = send(stream, request, 2, read).await.unwrap();
        assert_eq!((location.to_str().unwrap(), &body[..]), ("/clusters/1", &b"{}"[..]));
    }
}
