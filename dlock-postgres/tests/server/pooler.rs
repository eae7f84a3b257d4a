//! Session mode behind a connection pooler that shares the sessions of the server between
//! transactions, or that resets a session.

use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

use super::*;

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases! {
        a_pooler_that_lends_the_last_session_first_is_refused,
        a_pooler_that_lends_the_sessions_in_turn_is_refused,
        a_session_that_a_pooler_resets_has_lost_its_lock,
    }
}

/// The order in which a pooler lends its idle sessions.
#[derive(Clone, Copy)]
enum Order {
    LastFirst,
    InTurn,
    /// Each client has a session of its own.
    OneEach,
}

/// A pooler that lends a session of the server for each transaction. Supports queries as text, of
/// users without a password.
struct Pooler {
    address: SocketAddr,
    /// Makes each session of [`Order::OneEach`] execute `DISCARD ALL` when it is changed.
    reset: watch::Sender<()>,
    task: AbortHandle,
}

/// The idle sessions of a pooler.
struct Pool {
    server: SocketAddr,
    order: Order,
    idle: Mutex<VecDeque<TcpStream>>,
    reset: watch::Receiver<()>,
}

impl Pooler {
    #[expect(
        clippy::disallowed_methods,
        reason = "connections are accepted by a task, which ends with the pooler"
    )]
    async fn to(server: &Running, order: Order) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port");
        let (reset, on_reset) = watch::channel(());
        let pool = Arc::new(Pool {
            server: server.servers()[0].address(),
            order,
            idle: Mutex::default(),
            reset: on_reset,
        });
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let pool = Arc::clone(&pool);
                // Fails when the client disconnects.
                tokio::spawn(async move { pool.serve(client).await.ok() });
            }
        });
        Self { address, reset, task: task.abort_handle() }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pool {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let length = client.read_u32().await?;
        let mut startup = vec![0; length as usize - 4];
        client.read_exact(&mut startup).await?;
        // The login of the first session is the login of all.
        let mut greeting = Vec::new();
        let session = self.connect(&startup, &mut greeting).await?;
        client.write_all(&greeting).await?;
        if let Order::OneEach = self.order {
            return self.serve_with(session, client).await;
        }
        // Behind the sessions that other clients have used.
        self.idle.lock().push_front(session);
        loop {
            let request = message(&mut client).await?;
            if request[0] == b'X' {
                return Ok(());
            }
            let mut session = match self.take() {
                Some(session) => session,
                None => self.connect(&startup, &mut Vec::new()).await?,
            };
            // Messages outside of transactions belong to no client.
            while session.try_read(&mut [0; 1024]).is_ok_and(|length| length > 0) {}
            session.write_all(&request).await?;
            client.write_all(&replies(&mut session).await?).await?;
            self.put_back(session);
        }
    }

    /// Serves a client with a session of its own.
    async fn serve_with(&self, mut session: TcpStream, mut client: TcpStream) -> io::Result<()> {
        let reset = b"Q\0\0\0\x10DISCARD ALL\0";
        let (mut from_client, mut from_session, mut on_reset) = ([0], [0], self.reset.clone());
        loop {
            tokio::select! {
                length = client.peek(&mut from_client) => {
                    if length? == 0 {
                        return Ok(());
                    }
                    session.write_all(&message(&mut client).await?).await?;
                    client.write_all(&replies(&mut session).await?).await?;
                }
                length = session.peek(&mut from_session) => {
                    if length? == 0 {
                        return Ok(());
                    }
                    client.write_all(&message(&mut session).await?).await?;
                }
                Ok(()) = on_reset.changed() => {
                    session.write_all(reset).await?;
                    replies(&mut session).await?;
                }
            }
        }
    }

    /// Opens a session, and appends the server's messages to `greeting`.
    async fn connect(&self, startup: &[u8], greeting: &mut Vec<u8>) -> io::Result<TcpStream> {
        let mut session = TcpStream::connect(self.server).await?;
        let length = u32::try_from(startup.len() + 4).expect("a short message");
        session.write_all(&[&length.to_be_bytes(), startup].concat()).await?;
        loop {
            let message = message(&mut session).await?;
            greeting.extend(&message);
            if message[0] == b'Z' {
                return Ok(session);
            }
        }
    }

    fn take(&self) -> Option<TcpStream> {
        let mut idle = self.idle.lock();
        match self.order {
            Order::LastFirst => idle.pop_back(),
            Order::InTurn | Order::OneEach => idle.pop_front(),
        }
    }

    fn put_back(&self, session: TcpStream) {
        self.idle.lock().push_back(session);
    }
}

/// Reads a message of the protocol: its type, its length and its body.
async fn message(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![from.read_u8().await?];
    let length = from.read_u32().await?;
    message.extend(length.to_be_bytes());
    message.resize(length as usize + 1, 0);
    from.read_exact(&mut message[5..]).await?;
    Ok(message)
}

/// Reads messages until the session is ready, and in no transaction.
async fn replies(session: &mut TcpStream) -> io::Result<Vec<u8>> {
    const READY: &[u8] = b"Z\0\0\0\x05I";
    let mut replies = Vec::new();
    while !replies.ends_with(READY) {
        replies.extend(message(session).await?);
    }
    Ok(replies)
}

/// Makes the server request no password, because the pooler knows none. Returns a URL of the pooler.
async fn trust(server: &Running, pooler: &Pooler) -> String {
    let trust = "DO $$ BEGIN EXECUTE format('COPY (SELECT ''host all all 127.0.0.1/32 trust'') TO %L', \
        current_setting('hba_file')); END $$; SELECT pg_reload_conf()";
    sql(server, trust).await;
    let direct = server.url().replace(":s3cret%3A%2F@", ":@");
    let until_trusted = async { while connect_to(&direct).await.is_err() {} };
    timeout(SOON, until_trusted).await.expect("the server reads its configuration");
    format!("postgres://dlock:@{}/postgres?mode=session&timeout=1s", pooler.address)
}

async fn is_refused(server: &Running, order: Order) {
    let pooler = Pooler::to(server, order).await;
    let url = trust(server, &pooler).await;
    let error = timeout(SOON, connect_to(&url)).await.expect("a reply").expect_err("a pooler");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert!(format!("{error:?}").contains("connect to the server directly"), "{error:?}");
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(sql(server, locks).await, "0", "a refused client has left a lock");
    // Other clients of the pooler get the same sessions.
    let other = format!("postgres://dlock@{}/postgres", pooler.address);
    let (other, connection) =
        tokio_postgres::connect(&other, NoTls).await.expect("the pooler accepts clients");
    let left = "SELECT pg_catalog.concat_ws(' ', NULLIF(pg_catalog.current_setting('dlock.tag', true), ''), \
        NULLIF(pg_catalog.current_setting('client_connection_check_interval'), '0'), \
        (SELECT pg_catalog.min(c) FROM pg_catalog.pg_listening_channels() AS c)) AS settings";
    let sessions = async {
        for _ in 0..8 {
            let rows = other.simple_query(left).await.expect("a session of the pool");
            let settings = rows.iter().find_map(|row| match row {
                SimpleQueryMessage::Row(row) => row.get("settings"),
                _ => None,
            });
            assert_eq!(settings, Some(""), "a refused client has left settings or a channel");
        }
    };
    tokio::select! {
        () = sessions => {}
        ended = connection => panic!("the pooler has closed the connection: {ended:?}"),
    }
}

async fn a_pooler_that_lends_the_last_session_first_is_refused(server: &Running) {
    is_refused(server, Order::LastFirst).await;
}

async fn a_pooler_that_lends_the_sessions_in_turn_is_refused(server: &Running) {
    is_refused(server, Order::InTurn).await;
}

async fn a_session_that_a_pooler_resets_has_lost_its_lock(server: &Running) {
    let pooler = Pooler::to(server, Order::OneEach).await;
    let locks = connect_to(&trust(server, &pooler).await).await.expect("each client has its own session");
    let held = locks.mutex("job").lock().ttl(SOON / 2).await.expect("the lock");
    pooler.reset.send_replace(());
    let reason = timeout(SOON, held.lost()).await.expect("the next renewal reports the loss");
    let error = held.release().await.expect_err("lost");
    assert!(matches!(error, Error::Lost { .. }), "{reason:?}, {error:?}");
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(sql(server, locks).await, "0", "the reset has left a lock");
}
