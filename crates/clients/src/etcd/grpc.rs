//! Unary gRPC calls over HTTP/2, each on a connection of its own.

use std::{io, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h2::{RecvStream, client};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use percent_encoding::percent_decode;
use prost::Message;
use tokio::time::timeout;

use super::{Code, Error};
use crate::{
    MAX_MESSAGE,
    server::{Connection, NoResponse, NotConnected, Server, Stream},
};

/// Maximum length of a response. The longest one lists the members of a cluster, with less than 2 KiB for each. It
/// limits the memory that a malicious server can make the operator use.
const MAX_RESPONSE: usize = 128 << 10;

/// Maximum length of the headers of a response, which may hold an error message.
const MAX_HEAD: u32 = 16 << 10;

/// Length of the prefix of a message: the compressed flag and the length of the message.
const PREFIX: usize = 5;

/// The response to a call.
struct Response {
    status: Option<Code>,
    message: String,
    body: Bytes,
}

/// Returns the name of a call in errors.
pub(super) fn call_name(server: &Server, method: &'static str) -> String {
    format!("{} at {server}", method.trim_start_matches('/'))
}

/// Sends a request and returns the response. `method` is a path such as `/etcdserverpb.KV/Range`.
pub(super) async fn call<A: Message + Default>(
    server: &Server,
    method: &'static str,
    message: &impl Message,
    time_limit: Duration,
) -> Result<A, Error> {
    let call = || call_name(server, method);
    let not_sent = |source: NotConnected| Error::not_connected(call(), source);
    let no_response = |source: NoResponse| Error::NoResponse { call: call(), source };
    let request = request(server, method).map_err(|source| not_sent(source.into()))?;
    let Connection { stream, alert, remaining } = server.connect(time_limit).await.map_err(not_sent)?;
    let response = timeout(remaining, exchange(stream, request, frame_message(message))).await;
    let response =
        response.unwrap_or(Err(NoResponse::TimedOut(time_limit))).map_err(|silence| match alert.refusal() {
            Some(refusal) => not_sent(NotConnected::ClientCertificateRejected(refusal)),
            None => no_response(silence),
        })?;
    match response.status {
        None => {
            unframe(&response.body).and_then(|body| A::decode(body).map_err(NoResponse::malformed)).map_err(no_response)
        }
        Some(code) => Err(Error::ErrorResponse { call: call(), code, message: response.message }),
    }
}

fn request(server: &Server, method: &'static str) -> io::Result<Request<()>> {
    let uri = Uri::builder()
        .scheme(server.scheme())
        .authority(server.authority().clone())
        .path_and_query(method)
        .build()
        .map_err(io::Error::other)?;
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::USER_AGENT, HeaderValue::from_static("messina"));
    Ok(request)
}

fn frame_message(message: &impl Message) -> Bytes {
    let body = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(PREFIX + body.len());
    frame.put_u8(0);
    // Requests are a few bytes long.
    frame.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    frame.put_slice(&body);
    frame.freeze()
}

/// Returns the message in a frame that holds exactly one.
fn unframe(frame: &[u8]) -> Result<&[u8], NoResponse> {
    match frame.split_at_checked(PREFIX) {
        Some(([0, length @ ..], body)) if length == u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes() => {
            Ok(body)
        }
        _ => Err(NoResponse::malformed("it does not hold exactly one message")),
    }
}

async fn exchange(stream: Box<dyn Stream>, request: Request<()>, frame: Bytes) -> Result<Response, NoResponse> {
    let handshake = client::Builder::new().max_header_list_size(MAX_HEAD).handshake(stream);
    let (sender, connection) = handshake.await.map_err(NoResponse::disconnected)?;
    let response = async {
        let mut sender = sender.ready().await.map_err(NoResponse::disconnected)?;
        let (response, mut body) = sender.send_request(request, false).map_err(NoResponse::disconnected)?;
        body.send_data(frame, true).map_err(NoResponse::disconnected)?;
        let (head, body) = response.await.map_err(NoResponse::disconnected)?.into_parts();
        read(head.status, &head.headers, body).await
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

async fn read(status: StatusCode, headers: &HeaderMap, mut stream: RecvStream) -> Result<Response, NoResponse> {
    // A response without a message may have the gRPC status in its headers.
    if let Some((status, message)) = grpc_status(headers) {
        return Ok(Response { status, message, body: Bytes::new() });
    }
    if status != StatusCode::OK {
        return Ok(Response {
            status: Some(Code::of_http(status)),
            message: format!("HTTP {status}"),
            body: Bytes::new(),
        });
    }
    let mut body = BytesMut::new();
    while let Some(data) = stream.data().await {
        let data = data.map_err(NoResponse::disconnected)?;
        stream.flow_control().release_capacity(data.len()).map_err(NoResponse::disconnected)?;
        if body.len() + data.len() > MAX_RESPONSE {
            return Err(NoResponse::malformed(format!("it is longer than {MAX_RESPONSE} bytes")));
        }
        body.extend_from_slice(&data);
    }
    let trailers = stream.trailers().await.map_err(NoResponse::disconnected)?.unwrap_or_default();
    let (status, message) = grpc_status(&trailers).ok_or_else(|| NoResponse::malformed("it has no gRPC status"))?;
    Ok(Response { status, message, body: body.freeze() })
}

/// Reads the gRPC status and its message.
fn grpc_status(headers: &HeaderMap) -> Option<(Option<Code>, String)> {
    let status = Code::numbered(headers.get("grpc-status")?.as_bytes());
    let message = headers.get("grpc-message").map(|message| percent_decode(message.as_bytes()).decode_utf8_lossy());
    let message = message.map(|message| messina_text::line(&message, MAX_MESSAGE));
    Some((status, message.unwrap_or_default()))
}
