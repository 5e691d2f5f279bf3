//! A client of a node's REST API, for tools.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Method;
use serde_json::Value;

use super::ToolError;
use crate::web;

/// A node's REST API.
pub(super) struct Api {
    address: SocketAddr,
}

impl Api {
    /// Removes `-h HOST` and `-p PORT` before the command from the arguments.
    pub(super) fn of(arguments: &[String]) -> Result<(Self, &[String]), ToolError> {
        let mut address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10000);
        let mut rest = arguments;
        loop {
            rest = match rest {
                [option, value, rest @ ..] if option == "-h" || option == "--host" => {
                    let value = if value == "localhost" { "127.0.0.1" } else { value };
                    address.set_ip(value.parse().map_err(|_| ToolError::Usage(format!("{value} is no address")))?);
                    rest
                }
                [option, value, rest @ ..] if option == "-p" || option == "--port" => {
                    address.set_port(value.parse().map_err(|_| ToolError::Usage(format!("{value} is no port")))?);
                    rest
                }
                _ => return Ok((Self { address }, rest)),
            };
        }
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, ToolError> {
        self.call(Method::GET, path, String::new()).await
    }

    pub(super) async fn post(&self, path: &str) -> Result<Value, ToolError> {
        self.call(Method::POST, path, String::new()).await
    }

    pub(super) async fn call(&self, method: Method, path: &str, body: String) -> Result<Value, ToolError> {
        let address = self.address;
        let unreachable = |error| ToolError::Response(format!("Failed to connect to API server at {address}: {error}"));
        let (status, _, body) =
            web::send_request(address, method, path, body.into(), None).await.map_err(unreachable)?;
        let value: Value =
            if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).unwrap_or_default() };
        if status.is_success() {
            return Ok(value);
        }
        let message = value["message"].as_str().unwrap_or("no message");
        Err(ToolError::Response(format!("error executing {path}: {status}: {message}")))
    }
}
