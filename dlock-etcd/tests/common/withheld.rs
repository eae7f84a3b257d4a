//! A relay in front of a member that withholds logins, as a member does that is busy with the
//! logins of other clients.

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{
        Mutex,
        mpsc::{self, UnboundedReceiver},
        watch,
    },
    task::JoinSet,
};

/// Bytes that a client sends before its first frame of HTTP/2.
const PREFACE: usize = 24;

/// Bytes of a frame before its content. The first three are the length of the content.
const HEAD: usize = 9;

/// A relay in front of a member. Ends its connections when it is dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    state: watch::Sender<State>,
    connections: Arc<Mutex<JoinSet<io::Result<()>>>>,
    _accepting: JoinSet<io::Result<()>>,
}

#[derive(Default)]
struct State {
    is_down: bool,
    is_withholding: bool,
    /// Number of logins so far.
    logins: usize,
}

impl Relay {
    /// Starts a relay. Logins are recognized by the password, which must not appear in other
    /// requests.
    pub(crate) async fn to(server: SocketAddr, password: &'static str) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (state, connections) = (watch::Sender::<State>::default(), Arc::default());
        let mut accepting = JoinSet::new();
        let (seen, opened): (_, Arc<Mutex<JoinSet<_>>>) = (state.clone(), Arc::clone(&connections));
        accepting.spawn(async move {
            loop {
                let (client, _) = listener.accept().await?;
                if seen.borrow().is_down {
                    continue;
                }
                opened.lock().await.spawn(relay(client, server, password, seen.clone()));
            }
        });
        Ok(Self { address, state, connections, _accepting: accepting })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections, and refuses new ones.
    pub(crate) async fn go_down(&self) {
        self.state.send_modify(|state| state.is_down = true);
        self.connections.lock().await.shutdown().await;
    }

    /// Accepts connections again, and withholds their logins.
    pub(crate) fn come_up_without_logins(&self) {
        self.state.send_modify(|state| (state.is_down, state.is_withholding) = (false, true));
    }

    /// Forwards the withheld logins and all later ones.
    pub(crate) fn pass(&self) {
        self.state.send_modify(|state| state.is_withholding = false);
    }

    /// Returns the number of logins that clients have sent.
    pub(crate) fn logins(&self) -> usize {
        self.state.borrow().logins
    }
}

async fn relay(
    client: TcpStream,
    server: SocketAddr,
    password: &'static str,
    state: watch::Sender<State>,
) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    tokio::select! {
        end = copy(&mut from_server, &mut to_client) => end.map(drop),
        end = forward_frames(from_client, to_server, password.as_bytes(), state) => end,
    }
}

async fn forward_frames(
    mut client: OwnedReadHalf,
    server: OwnedWriteHalf,
    password: &[u8],
    state: watch::Sender<State>,
) -> io::Result<()> {
    let server = Arc::new(Mutex::new(server));
    let mut preface = [0; PREFACE];
    client.read_exact(&mut preface).await?;
    server.lock().await.write_all(&preface).await?;
    // Frames of a stream keep their order, so the frames behind a login are withheld with it.
    let (mut logins, mut streams) = (JoinSet::new(), HashMap::new());
    loop {
        let mut frame = vec![0; HEAD];
        client.read_exact(&mut frame).await?;
        let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]) as usize;
        let stream = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
        frame.resize(HEAD + length, 0);
        client.read_exact(&mut frame[HEAD..]).await?;
        if frame.windows(password.len()).any(|part| part == password) {
            state.send_modify(|state| state.logins += 1);
            let (sender, frames) = mpsc::unbounded_channel();
            streams.insert(stream, sender);
            logins.spawn(forward_when_passed(frames, Arc::clone(&server), state.subscribe()));
        }
        match streams.get(&stream) {
            Some(login) => login.send(frame).map_err(io::Error::other)?,
            None => server.lock().await.write_all(&frame).await?,
        }
    }
}

async fn forward_when_passed(
    mut frames: UnboundedReceiver<Vec<u8>>,
    server: Arc<Mutex<OwnedWriteHalf>>,
    mut state: watch::Receiver<State>,
) -> io::Result<()> {
    while let Some(frame) = frames.recv().await {
        state.wait_for(|state| !state.is_withholding).await.map_err(io::Error::other)?;
        server.lock().await.write_all(&frame).await?;
    }
    Ok(())
}
