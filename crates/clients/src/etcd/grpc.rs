//! gRPC over HTTP/2, as far as it is needed: one message there, one message back, on a connection of its own.

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
    server::{Connection, Server, NoResponse, Stream, NotConnected},
};

/// No message is longer. The longest answer that is read lists the members of a cluster, with less than 2 KiB for each; whoever
/// answers with more takes no more than this of our memory.
const MAX_RESPONSE: usize = 128 << 10;

/// The longest head of an answer, in which an error may be explained.
const MAX_HEAD: u32 = 16 << 10;

/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What came back.
struct Response {
    status: Option<Code>,
    text: String,
    body: Bytes,
}

/// The name of a call in errors.
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
    let no_answer = |source: NoResponse| Error::NoResponse { call: call(), source };
    let request = request(server, method).map_err(|source| not_sent(source.into()))?;
    let Connection { stream, alert, remaining } = server.connect(time_limit).await.map_err(not_sent)?;
    let response = timeout(remaining, exchange(stream, request, framed(message))).await;
    let response = response.unwrap_or(Err(NoResponse::TimedOut(time_limit))).map_err(|silence| match alert.refusal() {
        Some(refusal) => not_sent(NotConnected::ClientCertificateRejected(refusal)),
        None => no_answer(silence),
    })?;
    match response.status {
        None => unframed(&response.body).and_then(|body| A::decode(body).map_err(NoResponse::malformed)).map_err(no_answer),
        Some(code) => Err(Error::ErrorResponse { call: call(), code, message: response.text }),
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

fn framed(message: &impl Message) -> Bytes {
    let body = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(PREFIX + body.len());
    frame.put_u8(0);
    // Questions are a few bytes long.
    frame.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
    frame.put_slice(&body);
    frame.freeze()
}

/// The one message in a frame.
fn unframed(frame: &[u8]) -> Result<&[u8], NoResponse> {
    match frame.split_at_checked(PREFIX) {
        Some(([0, length @ ..], body)) if length == u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes() => {
            Ok(body)
        }
        _ => Err(NoResponse::malformed("there is not one message in it")),
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
    // The connection is driven here, so that it ends with the call, however that ends.
    tokio::pin!(response, connection);
    tokio::select! {
        biased;
        response = &mut response => response,
        driven = &mut connection => match driven {
            Ok(()) => response.await,
            Err(source) => Err(NoResponse::disconnected(source)),
        },
    }
}

async fn read(status: StatusCode, headers: &HeaderMap, mut stream: RecvStream) -> Result<Response, NoResponse> {
    // An answer without a message may have all that there is to say in its head.
    if let Some((status, text)) = verdict(headers) {
        return Ok(Response { status, text, body: Bytes::new() });
    }
    if status != StatusCode::OK {
        return Ok(Response { status: Some(Code::of_http(status)), text: format!("HTTP {status}"), body: Bytes::new() });
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
    let (status, text) = verdict(&trailers).ok_or_else(|| NoResponse::malformed("it does not say how the call ended"))?;
    Ok(Response { status, text, body: body.freeze() })
}

/// How the call ended, and what there is to say about it.
fn verdict(headers: &HeaderMap) -> Option<(Option<Code>, String)> {
    let status = Code::numbered(headers.get("grpc-status")?.as_bytes());
    let text = headers.get("grpc-message").map(|text| percent_decode(text.as_bytes()).decode_utf8_lossy());
    let text = text.map(|text| messina_text::line(&text, MAX_MESSAGE));
    Some((status, text.unwrap_or_default()))
}
