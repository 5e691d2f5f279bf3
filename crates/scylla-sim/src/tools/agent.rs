//! A simulated ScyllaDB Manager agent: it checks the token and forwards requests to the node's REST API.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

use http::StatusCode;
use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use tokio_rustls::TlsAcceptor;

use super::ToolError;
use crate::{
    log, tls,
    web::{self, Request, Response},
};

struct Agent {
    token: String,
    api: SocketAddr,
}

/// Runs the agent with its configuration from the files after `-c`, of which later ones weigh more.
pub async fn run(arguments: &[String]) -> Result<(), ToolError> {
    let config = merged(&files(arguments)?)?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let scylla = config.get("scylla");
    let api = address(&text(scylla.and_then(|scylla| scylla.get("api_address"))), IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    let api_port = scylla.and_then(|scylla| scylla.get("api_port")).map_or(10000, |port| number(port, 10000));
    let token = text(config.get("auth_token"));
    if token.is_empty() {
        log::warn("agent", "WARNING! Scylla data may be exposed: no auth_token is set, so all requests are accepted");
    }
    let port = config.get("https_port").map_or(10001, |port| number(port, 10001));
    let https = text(config.get("https"));
    let listen = match https.as_str() {
        "" => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
        https => https.parse().map_err(|_| ToolError::Usage(format!("https: {https} is no address with port")))?,
    };
    let certificate = tls::self_signed(vec!["scylla-manager-agent".to_owned()]).map_err(io::Error::other)?;
    let listener = web::listen(listen.ip(), listen.port()).await?;
    log::info("agent", format!("Starting HTTPS server on {listen}"));
    let agent = Arc::new(Agent { token, api: SocketAddr::new(api, api_port) });
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let server = web::accept(listener, move |stream| {
        let (agent, acceptor) = (Arc::clone(&agent), TlsAcceptor::from(Arc::clone(&certificate)));
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                web::serve_connection(stream, move |request| Arc::clone(&agent).respond(request)).await;
            }
        }
    });
    tokio::select! {
        () = server => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

impl Agent {
    async fn respond(self: Arc<Self>, request: Request) -> Response {
        let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        if !self.token.is_empty() && token != Some(&self.token) {
            return Response {
                status: StatusCode::UNAUTHORIZED,
                ..Response::json(&json!({ "message": "unauthorized", "code": 401 }))
            };
        }
        if request.path.trim_end_matches('/') == "/agent/version" {
            return Response::json(&json!({ "version": "simulated" }));
        }
        let body = Bytes::clone(&request.body);
        match web::send_request(self.api, request.method, &request.path_and_query, body, None).await {
            Ok((status, _, body)) => Response { status, content_type: "application/json", body },
            Err(error) => Response::error(StatusCode::BAD_GATEWAY, format!("the node does not answer: {error}")),
        }
    }
}

fn files(arguments: &[String]) -> Result<Vec<&str>, ToolError> {
    let mut files = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let file = match argument.strip_prefix("--config-file=").or_else(|| argument.strip_prefix("-c=")) {
            Some(file) => Some(file),
            None if argument == "-c" || argument == "--config-file" => arguments.next().map(String::as_str),
            None => None,
        };
        files.push(file.ok_or_else(|| ToolError::Usage(format!("unknown argument {argument}; wanted: -c FILE ...")))?);
    }
    Ok(files)
}

/// Merges files by their top-level keys. Missing files are skipped: users may provide them.
fn merged(files: &[&str]) -> Result<Map<String, Value>, ToolError> {
    let mut config = Map::new();
    for file in files.iter().filter(|file| Path::new(file).is_file()) {
        let text = fs::read_to_string(file)?;
        let malformed = |error| ToolError::Usage(format!("{file}: {error}"));
        if let Some(entries) = serde_saphyr::from_str::<Option<Map<String, Value>>>(&text).map_err(malformed)? {
            config.extend(entries.into_iter().filter(|(_, value)| !value.is_null()));
        }
    }
    Ok(config)
}

fn address(text: &str, default: IpAddr) -> Result<IpAddr, ToolError> {
    match text {
        "" => Ok(default),
        "localhost" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        text => text.parse().map_err(|_| ToolError::Usage(format!("{text} is no address"))),
    }
}

fn number(value: &Value, default: u16) -> u16 {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    text.parse().unwrap_or(default)
}
