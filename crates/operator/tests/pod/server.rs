//! An HTTP server in a thread of its own, for fakes.

use std::{
    convert::Infallible,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio_rustls::TlsAcceptor;

/// The body of a response, whole or streamed.
pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// Handles the requests to a fake.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(&self, request: Request<Bytes>) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves requests at `address` until the test ends. Returns the address with its port.
pub(crate) fn serve(address: SocketAddr, handler: Arc<impl Handler>) -> SocketAddr {
    serve_on(address, None, handler)
}

/// Does the same with TLS.
pub(crate) fn serve_secured(address: SocketAddr, tls: TlsAcceptor, handler: Arc<impl Handler>) -> SocketAddr {
    serve_on(address, Some(tls), handler)
}

fn serve_on(address: SocketAddr, tls: Option<TlsAcceptor>, handler: Arc<impl Handler>) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let bound = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    thread::spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let handler = handler.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let handler = handler.clone();
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                        Ok::<_, Infallible>(handler.handle(Request::from_parts(parts, body)).await)
                    }
                });
                let tls = tls.clone();
                tokio::spawn(async move {
                    // The client sees errors of its connection itself.
                    let _ = match tls {
                        None => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => http1::Builder::new().serve_connection(TokioIo::new(stream), service).await,
                            Err(_) => return,
                        },
                    };
                });
            }
        });
    });
    bound
}

pub(crate) fn response(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed());
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
    response
}
