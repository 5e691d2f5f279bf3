//! The start of a CQL connection: enough for a client to see that the node serves, and whether it requires a login.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    time::timeout,
};
use tokio_rustls::TlsAcceptor;

use crate::{node::Node, tls::Reloading, web};

const ERROR: u8 = 0x00;
const STARTUP: u8 = 0x01;
const READY: u8 = 0x02;
const AUTHENTICATE: u8 = 0x03;
const OPTIONS: u8 = 0x05;
const SUPPORTED: u8 = 0x06;
const REGISTER: u8 = 0x0b;

const PROTOCOL_ERROR: u32 = 0x000a;
const VERSION: u8 = 4;
const RESPONSE: u8 = 0x80;
const MAX_LENGTH: u32 = 1 << 20;

/// Serves CQL clients until it is dropped.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Arc<Reloading>>, node: Arc<Node>) {
    web::accept(listener, move |stream| {
        let (tls, node) = (tls.clone(), Arc::clone(&node));
        async move {
            // A client that disconnects is no error.
            let _ = match tls {
                None => serve_frames(stream, node).await,
                Some(tls) => {
                    let handshake = TlsAcceptor::from(tls.current()).accept(stream);
                    match timeout(Duration::from_secs(10), handshake).await {
                        Ok(Ok(stream)) => serve_frames(stream, node).await,
                        Ok(Err(error)) => Err(error),
                        Err(_) => Ok(()),
                    }
                }
            };
        }
    })
    .await;
}

async fn serve_frames(mut stream: impl AsyncRead + AsyncWrite + Unpin, node: Arc<Node>) -> io::Result<()> {
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await?;
        node.unpaused().await;
        let [version, _flags, stream_high, stream_low, opcode, ..] = header;
        let length = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        if length > MAX_LENGTH {
            return Ok(());
        }
        let mut body = vec![0; length as usize];
        stream.read_exact(&mut body).await?;
        let (opcode, body) = respond(version, opcode, node.config.requires_login);
        let mut frame = vec![RESPONSE | VERSION, 0, stream_high, stream_low, opcode];
        frame.extend(u32::try_from(body.len()).map_err(io::Error::other)?.to_be_bytes());
        frame.extend(body);
        stream.write_all(&frame).await?;
        if version & !RESPONSE > VERSION {
            // A client of a newer protocol reconnects with this version.
            return Ok(());
        }
    }
}

/// Returns opcode and body of the response to a request.
fn respond(version: u8, opcode: u8, requires_login: bool) -> (u8, Vec<u8>) {
    if version & !RESPONSE > VERSION {
        return error("Invalid or unsupported protocol version: the highest is 4");
    }
    match opcode {
        OPTIONS => {
            let options = [("CQL_VERSION", "3.3.1"), ("COMPRESSION", "lz4"), ("PROTOCOL_VERSIONS", "4/v4")];
            let mut body = (options.len() as u16).to_be_bytes().to_vec();
            for (name, value) in options {
                string(&mut body, name);
                body.extend(1_u16.to_be_bytes());
                string(&mut body, value);
            }
            (SUPPORTED, body)
        }
        STARTUP if requires_login => {
            let mut body = Vec::new();
            string(&mut body, "org.apache.cassandra.auth.PasswordAuthenticator");
            (AUTHENTICATE, body)
        }
        STARTUP | REGISTER => (READY, Vec::new()),
        _ => error("this simulated node does not serve queries"),
    }
}

fn error(message: &str) -> (u8, Vec<u8>) {
    let mut body = PROTOCOL_ERROR.to_be_bytes().to_vec();
    string(&mut body, message);
    (ERROR, body)
}

fn string(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as u16).to_be_bytes());
    body.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_reports_whether_a_login_is_required() {
        assert_eq!(respond(4, OPTIONS, false).0, SUPPORTED);
        assert_eq!(respond(4, STARTUP, false), (READY, vec![]));
        assert_eq!(respond(4, STARTUP, true).0, AUTHENTICATE);
        assert_eq!(respond(4, 0x07, false).0, ERROR, "a query");
        assert_eq!(respond(5, STARTUP, false).0, ERROR, "a newer protocol");
    }
}
