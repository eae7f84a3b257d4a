//! A web handler that tries a lock, and responds with 409 while another request holds it:
//! `cargo run --bin web_handler`.

use std::{env, error::Error, time::Duration};

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::post,
};
use dlock::Locks;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::sleep,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = env::var("DLOCK_STORE").unwrap_or("memory:programs".to_owned());
    let locks = dlock::connect(&store).await?;
    let app = Router::new().route("/invoices/{number}/payment", post(pay)).with_state(locks.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    println!("listening at http://{address}");
    tokio::select! {
        ended = async { axum::serve(listener, app).await } => ended?,
        // A user clicks on "pay" twice.
        responses = async { tokio::try_join!(click(address), click(address)) } => {
            let mut status_lines: Vec<_> = <[String; 2]>::from(responses?).into();
            status_lines.sort();
            println!("{}", status_lines.join("\n"));
        }
    }
    locks.close().await;
    Ok(())
}

async fn pay(State(locks): State<Locks>, Path(number): Path<u64>) -> (StatusCode, &'static str) {
    let invoice = locks.mutex(format!("invoice/{number}"));
    let paid = invoice.try_run(async |_guard| {
        sleep(Duration::from_millis(300)).await; // The bank executes the payment.
    });
    match paid.await {
        Ok(Some(())) => (StatusCode::OK, "paid"),
        Ok(None) => (StatusCode::CONFLICT, "this invoice is being paid"),
        // The store is unreachable, or the lock was lost during the payment. The payment may or may
        // not have been made.
        Err(error) => {
            eprintln!("{error}");
            (StatusCode::SERVICE_UNAVAILABLE, "try again later")
        }
    }
}

/// Sends a request for the payment of one invoice, and returns the status line of the response.
async fn click(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"POST /invoices/42/payment HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n")
        .await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response.lines().next().unwrap_or_default().to_owned())
}
