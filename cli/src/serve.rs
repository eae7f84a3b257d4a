//! The server of `dlock lead --serve`, which answers whether this host leads.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use crate::{
    exit::{Failure, Outcome},
    json,
    lead::Status,
};

/// Maximum number of connections at one time. Further ones wait in the queue of the system.
const MAX_CONNECTIONS: usize = 64;

/// Time limit of a connection, from its begin to the end of its only answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of the head of a request. A request for `/leader` has no body.
const MAX_HEAD: usize = 8 * 1024;

/// Pause after the system has refused to accept a connection, as without free file descriptors.
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// A server that listens.
pub(crate) struct Server(TcpListener);

impl Server {
    /// Begins to listen at an address.
    ///
    /// # Errors
    /// If the address is in use or not one of this host.
    pub(crate) fn bind(address: SocketAddr) -> Outcome<Self> {
        let listen = || -> io::Result<TcpListener> {
            let listener = std::net::TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener)
        };
        let failed = |error| Failure::config(format!("cannot listen at {address} for --serve: {error}"));
        listen().map(Self).map_err(failed)
    }

    /// Answers requests. Never returns. `status` returns the present status.
    pub(crate) async fn run<'a>(self, status: impl Fn() -> Status<'a> + Send + Sync) -> Infallible {
        let mut connections = FuturesUnordered::new();
        loop {
            let has_room = connections.len() < MAX_CONNECTIONS;
            tokio::select! {
                accepted = self.0.accept(), if has_room => match accepted {
                    Ok((stream, _)) => connections.push(timeout(CONNECTION_TIMEOUT, answer(stream, &status))),
                    Err(_) => sleep(REFUSAL_PAUSE).await,
                },
                Some(_) = connections.next() => {}
            }
        }
    }
}

/// Answers one request, and closes the connection. A failure concerns the client only.
async fn answer<'a>(stream: TcpStream, status: impl Fn() -> Status<'a> + Send + Sync) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = respond(&request, &status);
        async { Ok::<_, Infallible>(response) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false);
    http.serve_connection(TokioIo::new(stream), service).await.ok();
}

fn respond<'a>(
    request: &Request<Incoming>,
    status: impl Fn() -> Status<'a> + Send + Sync,
) -> Response<Full<Bytes>> {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let (code, body) = match request.uri().path() {
        "/leader" if is_read => {
            let status = status();
            let code = if status.leading { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (code, json::line(status).unwrap_or_default())
        }
        "/leader" => (StatusCode::METHOD_NOT_ALLOWED, String::new()),
        _ => (StatusCode::NOT_FOUND, String::new()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if code == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
