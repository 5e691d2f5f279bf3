//! An HTTP server in a thread of its own, for stand-ins of what the program talks to.

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

/// A body, whole or as it comes.
pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// What a stand-in does with a request.
pub(crate) trait Answers: Send + Sync + 'static {
    fn answer(&self, request: Request<Bytes>) -> impl Future<Output = Response<Body>> + Send;
}

/// Answers requests at `address` until the test ends; says which address it is.
pub(crate) fn serve(address: SocketAddr, answers: Arc<impl Answers>) -> SocketAddr {
    serve_on(address, None, answers)
}

/// The same, on connections that are secured.
pub(crate) fn serve_secured(address: SocketAddr, tls: TlsAcceptor, answers: Arc<impl Answers>) -> SocketAddr {
    serve_on(address, Some(tls), answers)
}

fn serve_on(address: SocketAddr, tls: Option<TlsAcceptor>, answers: Arc<impl Answers>) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    listener.set_nonblocking(true).unwrap();
    let bound = listener.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    thread::spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answers = answers.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let answers = answers.clone();
                    async move {
                        let (parts, body) = request.into_parts();
                        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                        Ok::<_, Infallible>(answers.answer(Request::from_parts(parts, body)).await)
                    }
                });
                let tls = tls.clone();
                tokio::spawn(async move {
                    // Who is cut off knows it.
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

pub(crate) fn whole(status: u16, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed());
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
    response
}
