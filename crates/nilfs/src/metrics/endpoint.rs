//! Where Prometheus fetches the metrics of a mount: HTTP, for this machine only.
//!
//! Every local user can connect, and must not be able to do harm by it. One thread serves all
//! connections. Each has a bounded time and memory and is closed after one answer, and no body is
//! read. There are at most [`MOST`] of them: a further one takes the place of the oldest, so
//! clients that connect and say nothing keep nobody out.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{self, JoinHandle};
use tokio::time::{sleep, timeout};

use super::Gatherer;
use crate::threads;

/// What the text is.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Connections at a time.
const MOST: usize = 32;

/// How long a connection may last.
const LONGEST: Duration = Duration::from_secs(10);

/// Bytes in which a request must fit: the least that the library takes.
const REQUEST_SIZE: usize = 8192;

/// Before the next try when no connection can be taken, for want of file descriptors perhaps.
const PAUSE: Duration = Duration::from_millis(100);

/// A port that nobody answers at yet.
pub struct Endpoint {
    runtime: Runtime,
    listener: TcpListener,
}

impl Endpoint {
    /// Takes the port.
    ///
    /// # Errors
    /// Somebody else has it, or it is not for us.
    pub fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let context = || format!("cannot offer metrics at {address}");
        let runtime = Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.with_context(context)?;
        let listener = runtime.block_on(TcpListener::bind(address)).with_context(context)?;
        Ok(Self { runtime, listener })
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn answer(self, metrics: Gatherer) -> anyhow::Result<()> {
        let Self { runtime, listener } = self;
        let serve = move || threads::aside(|| runtime.block_on(serve(listener, metrics)));
        threads::start("metrics", serve).map(drop)
    }
}

async fn serve(listener: TcpListener, metrics: Gatherer) -> Infallible {
    let mut connections = VecDeque::<JoinHandle<_>>::with_capacity(MOST);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == MOST
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        connections.push_back(task::spawn(timeout(LONGEST, attend(stream, metrics.clone()))));
        // It may have its answer before others can take its place.
        task::yield_now().await;
    }
}

/// Answers one request. A client that has gone away or speaks something else is no affair of ours.
async fn attend(stream: TcpStream, metrics: Gatherer) -> hyper::Result<()> {
    let answer = service_fn(|request| {
        let response = respond(&request, &*metrics);
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.keep_alive(false).max_buf_size(REQUEST_SIZE);
    http.serve_connection(TokioIo::new(stream), answer).await
}

fn respond(
    request: &Request<Incoming>,
    metrics: &dyn Fn() -> super::Metrics,
) -> Response<Full<Bytes>> {
    let text = |text: &'static str| Response::new(Full::from(text));
    if request.uri().path() != "/metrics" {
        let mut response = text("metrics are at /metrics\n");
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    if request.method() != Method::GET {
        let mut response = text("metrics can only be fetched\n");
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    let Ok(metrics) = metrics().to_text() else {
        let mut response = text("the metrics cannot be written\n");
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return response;
    };
    let mut response = Response::new(Full::from(metrics));
    response.headers_mut().insert(CONTENT_TYPE, OPEN_METRICS);
    response
}
