//! A web handler that tries a lock, and answers 409 while another request has it: `cargo run --bin web_handler`.

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
        // A click on "pay", and an impatient second one.
        told = async { tokio::try_join!(click(address), click(address)) } => {
            let mut told: Vec<_> = <[String; 2]>::from(told?).into();
            told.sort();
            println!("{}", told.join("\n"));
        }
    }
    locks.close().await;
    Ok(())
}

async fn pay(State(locks): State<Locks>, Path(number): Path<u64>) -> (StatusCode, &'static str) {
    let invoice = locks.mutex(format!("invoice/{number}"));
    let paid = invoice.try_run(async |_guard| {
        sleep(Duration::from_millis(300)).await; // The bank takes its time.
    });
    match paid.await {
        Ok(Some(())) => (StatusCode::OK, "paid"),
        Ok(None) => (StatusCode::CONFLICT, "this invoice is being paid"),
        // The store is away, or the lock was lost meanwhile: nobody knows whether it is paid.
        Err(error) => {
            eprintln!("{error}");
            (StatusCode::SERVICE_UNAVAILABLE, "try again later")
        }
    }
}

async fn click(address: std::net::SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"POST /invoices/42/payment HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n")
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}
