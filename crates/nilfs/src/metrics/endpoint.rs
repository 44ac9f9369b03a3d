//! Where Prometheus fetches the metrics of a mount: HTTP, for this machine only.

use std::net::SocketAddr;

use anyhow::anyhow;
use tiny_http::{Header, Method, Request, Response, Server, StatusCode};

use super::{Gatherer, Metrics};
use crate::threads;

/// What the text is.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A port that nobody answers at yet.
pub struct Endpoint(Server);

impl Endpoint {
    /// Takes the port.
    ///
    /// # Errors
    /// Somebody else has it, or it is not for us.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let server = Server::http(address)
            .map_err(|error| anyhow!("cannot offer metrics at {address}: {error}"))?;
        Ok(Self(server))
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn answer(self, metrics: Gatherer) -> anyhow::Result<()> {
        let serve = move || {
            for request in self.0.incoming_requests() {
                // Whoever has gone away meanwhile is no affair of ours.
                let _ = respond(request, &*metrics);
            }
        };
        threads::start("metrics", || threads::aside(serve)).map(drop)
    }
}

fn respond(request: Request, metrics: &dyn Fn() -> Metrics) -> std::io::Result<()> {
    let is_asked = *request.method() == Method::Get && request.url() == "/metrics";
    if !is_asked {
        let hint = Response::from_string("metrics are at /metrics\n");
        return request.respond(hint.with_status_code(StatusCode(404)));
    }
    let Ok(text) = metrics().to_text() else {
        return request.respond(Response::empty(500));
    };
    let mut response = Response::from_string(text);
    if let Ok(header) = Header::from_bytes("Content-Type", CONTENT_TYPE) {
        response.add_header(header);
    }
    request.respond(response)
}
