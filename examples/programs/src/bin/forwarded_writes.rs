//! A web service whose instances forward each write to the leader among them:
//! `cargo run --bin forwarded_writes`.

use std::{
    env,
    error::Error,
    future::pending,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderValue, StatusCode, Uri},
    response::{IntoResponse as _, Response},
    routing::post,
};
use dlock::{Leader, Next, Observed, Observer, Term};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpListener, time::sleep};

/// Header of a request that another instance has forwarded.
const FORWARDED_BY: &str = "x-forwarded-by";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    // Two instances represent two processes.
    let (anna, bert) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let addresses = [anna.local_addr()?, bert.local_addr()?];
    tokio::select! {
        ended = async { tokio::try_join!(run_instance(anna, &store), run_instance(bert, &store)) } => drop(ended?),
        // A user writes to each instance.
        responses = async { tokio::try_join!(write(addresses[0]), write(addresses[1])) } => {
            let (first, second) = responses?;
            println!("{first}\n{second}");
        }
    }
    Ok(())
}

/// State of an instance.
struct Instance {
    address: SocketAddr,
    observer: Mutex<Observer>,
    client: Client<HttpConnector, Body>,
}

async fn run_instance(listener: TcpListener, store: &str) -> Result<(), Box<dyn Error>> {
    let locks = dlock::connect(store).await?;
    let election = locks.election("orders");
    let instance = Instance {
        address: listener.local_addr()?,
        observer: Mutex::new(election.observe().await?),
        client: Client::builder(TokioExecutor::new()).build_http(),
    };
    // The label says where the other instances reach this one.
    let candidate = election.candidate().label(instance.address.to_string());
    let app = Router::new().route("/orders", post(order)).with_state(Arc::new(instance));
    tokio::select! {
        ended = async { axum::serve(listener, app).await } => ended?,
        // The handlers do the work of the leader, so the work itself only waits for the end of the
        // term.
        ended = candidate.lead(async |_: &Term| pending::<dlock::Result<Next>>().await) => ended?,
    }
    Ok(())
}

async fn order(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    let leader = match instance.observer().present() {
        Observed::Leader(leader) => leader,
        Observed::Vacant { .. } | Observed::Unknown { .. } => return unavailable("there is no leader"),
    };
    match leader {
        // `mine` is false from the deadline of the term on. A handler that is paused after this line
        // can still be overtaken, so it sends the number of the term with each write.
        Leader { mine: true, term, .. } => {
            let term = term.map(u64::from);
            format!("{} has stored the order in term {term:?}", instance.address).into_response()
        }
        // Two instances that are not informed yet must not forward to each other again and again.
        _ if request.headers().contains_key(FORWARDED_BY) => unavailable("this instance does not lead"),
        Leader { label: Some(address), .. } => instance.forward(request, &address).await,
        _ => unavailable("the leader has no address"),
    }
}

impl Instance {
    fn observer(&self) -> MutexGuard<'_, Observer> {
        self.observer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn forward(&self, mut request: Request, leader: &str) -> Response {
        let Ok(target) = format!("http://{leader}{}", request.uri()).parse::<Uri>() else {
            return unavailable("the leader has published no address");
        };
        *request.uri_mut() = target;
        request.headers_mut().insert(FORWARDED_BY, HeaderValue::from_static("orders"));
        match self.client.request(request).await {
            Ok(response) => response.into_response(),
            // The leader may or may not have stored the order.
            Err(error) => unavailable(&format!("no reply from {leader}: {error}")),
        }
    }
}

fn unavailable(reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")], reason.to_owned()).into_response()
}

/// Sends an order to an instance until it is stored, and returns the response.
async fn write(address: SocketAddr) -> Result<String, Box<dyn Error>> {
    let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
    loop {
        let request = Request::post(format!("http://{address}/orders")).body(Body::empty())?;
        let response = client.request(request).await?.into_response();
        let is_stored = response.status() == StatusCode::OK;
        let text = axum::body::to_bytes(response.into_body(), 1000).await?;
        if is_stored {
            return Ok(String::from_utf8_lossy(&text).into_owned());
        }
        // There is no leader yet. A real client waits as long as the response says.
        sleep(Duration::from_millis(20)).await;
    }
}
