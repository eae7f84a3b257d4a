//! Tests of the stream, alone and below a connection of the client crate.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Wake, Waker},
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    runtime::Builder,
    task::JoinSet,
};

use super::*;

/// A stream that records the bytes of each write. The reply to a write comes from `replies`, and
/// accepts all bytes if there is none.
#[derive(Default)]
struct Recorder {
    writes: Vec<Vec<u8>>,
    replies: VecDeque<Poll<io::Result<usize>>>,
    flushes: usize,
}

impl AsyncWrite for Recorder {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let reply = self.replies.pop_front().unwrap_or(Poll::Ready(Ok(bytes.len())));
        if let Poll::Ready(Ok(count)) = reply {
            self.writes.push(bytes[..count].to_vec());
        }
        reply
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Counts the wake-ups of a task.
#[derive(Default)]
struct WakeUps(AtomicUsize);

impl Wake for WakeUps {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A stream with a number of commands in flight, and the task that writes to it.
struct Fixture {
    gather: Gather<Recorder>,
    wake_ups: Arc<WakeUps>,
}

impl Fixture {
    fn new(commands: usize) -> Self {
        let in_flight = CallCounter::default();
        (0..commands).for_each(|_| std::mem::forget(in_flight.count()));
        Self { gather: Gather::new(Recorder::default(), in_flight), wake_ups: Arc::default() }
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let waker = Waker::from(Arc::clone(&self.wake_ups));
        Pin::new(&mut self.gather).poll_write(&mut Context::from_waker(&waker), bytes)
    }

    fn flush(&mut self) {
        let flushed = Pin::new(&mut self.gather).poll_flush(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(flushed, Poll::Ready(Ok(()))));
    }

    fn wake_ups(&self) -> usize {
        self.wake_ups.0.load(Relaxed)
    }

    fn writes(&self) -> Vec<&[u8]> {
        self.gather.stream.writes.iter().map(Vec::as_slice).collect()
    }
}

fn is_written(outcome: &Poll<io::Result<usize>>, bytes: usize) -> bool {
    matches!(outcome, Poll::Ready(Ok(count)) if *count == bytes)
}

#[test]
fn a_command_alone_is_written_at_once() {
    let mut fixture = Fixture::new(1);
    assert!(is_written(&fixture.write(b"a"), 1));
    assert_eq!((fixture.writes(), fixture.wake_ups()), (vec![b"a".as_slice()], 0));
}

#[test]
fn a_deferred_write_wakes_its_task_and_takes_the_later_commands_along() {
    let mut fixture = Fixture::new(2);
    assert!(fixture.write(b"a").is_pending());
    assert_eq!((fixture.writes().len(), fixture.wake_ups()), (0, 1), "the write is deferred once");
    assert!(is_written(&fixture.write(b"ab"), 2));
    fixture.flush();
    assert_eq!(fixture.writes(), [b"ab"]);
    assert_eq!((fixture.gather.stream.flushes, fixture.wake_ups()), (1, 1));
    assert!(fixture.write(b"c").is_pending(), "the next write is deferred again");
}

#[test]
fn a_write_of_many_bytes_is_not_deferred() {
    let mut fixture = Fixture::new(64);
    assert!(is_written(&fixture.write(&[b'a'; LARGE_WRITE]), LARGE_WRITE));
    assert_eq!(fixture.wake_ups(), 0);
}

#[test]
fn the_rest_of_a_partial_write_is_not_deferred() {
    let mut fixture = Fixture::new(2);
    fixture.gather.stream.replies = [Poll::Ready(Ok(2)), Poll::Pending].into();
    assert!(fixture.write(b"abc").is_pending());
    assert!(is_written(&fixture.write(b"abc"), 2));
    assert!(fixture.write(b"c").is_pending(), "the socket is full");
    assert_eq!(fixture.wake_ups(), 1, "the socket wakes the task, and the stream does not");
    assert!(is_written(&fixture.write(b"cd"), 2));
    assert_eq!(fixture.writes(), [b"ab", b"cd"]);
}

#[test]
fn the_error_of_a_deferred_write_is_returned() {
    let mut fixture = Fixture::new(2);
    fixture.gather.stream.replies = [Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))].into();
    assert!(fixture.write(b"a").is_pending());
    assert!(
        matches!(fixture.write(b"a"), Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe)
    );
}

/// One end of a pipe, which counts its writes.
struct Counting {
    pipe: DuplexStream,
    writes: Arc<AtomicUsize>,
}

impl AsyncWrite for Counting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Relaxed);
        Pin::new(&mut self.pipe).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(cx)
    }
}

impl AsyncRead for Counting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_read(cx, buffer)
    }
}

/// Replies `OK` to each command, and records the arguments of `ECHO` in their order.
async fn serve(mut pipe: DuplexStream, echoed: Arc<Mutex<Vec<String>>>) {
    let (mut chunk, mut text) = ([0; 65536], String::new());
    while let Ok(count @ 1..) = pipe.read(&mut chunk).await {
        text += str::from_utf8(&chunk[..count]).expect("commands are text");
        // The pipe is longer than all commands, so each write arrives as a whole.
        let commands: Vec<_> = text.split('*').skip(1).map(str::to_owned).collect();
        text.clear();
        for command in &commands {
            let mut words = command.split("\r\n").skip(2).step_by(2).skip(1);
            let is_echo = command.contains("ECHO");
            echoed.lock().extend(words.next().filter(|_| is_echo).map(str::to_owned));
        }
        pipe.write_all("+OK\r\n".repeat(commands.len()).as_bytes()).await.expect("the client reads");
    }
}

/// Returns the number of writes for 64 tasks of one connection that send `ROUNDS` commands each.
#[expect(clippy::disallowed_methods, reason = "the senders, the driver and the server are tasks")]
async fn writes_of_64_tasks(is_gathered: bool) -> usize {
    let (client, server) = tokio::io::duplex(1 << 20);
    let echoed = Arc::new(Mutex::new(Vec::new()));
    tokio::spawn(serve(server, Arc::clone(&echoed)));
    let (writes, in_flight) = (Arc::new(AtomicUsize::new(0)), CallCounter::default());
    let stream = Gather::new(Counting { pipe: client, writes: Arc::clone(&writes) }, in_flight.clone());
    let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(&info, stream, config).await.expect("the server replies");
    tokio::spawn(driver);
    let before = writes.load(Relaxed);
    let tasks = (0..TASKS).map(|task| {
        let (mut connection, in_flight) = (connection.clone(), in_flight.clone());
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let mut echo = redis::cmd("ECHO");
                echo.arg(format!("{task}:{round}"));
                let _counted = is_gathered.then(|| in_flight.count());
                let reply = connection.req_packed_command(&echo).await.expect("the server replies");
                assert_eq!(reply, Value::Okay);
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no task panics");
    }
    let echoed = echoed.lock().clone();
    for task in 0..TASKS {
        let of_task: Vec<_> =
            echoed.iter().filter_map(|text| text.strip_prefix(&format!("{task}:"))).collect();
        let expected: Vec<_> = (0..ROUNDS).map(|round| round.to_string()).collect();
        assert_eq!(of_task, expected, "commands of task {task}");
    }
    writes.load(Relaxed) - before
}

const TASKS: usize = 64;
const ROUNDS: usize = 4;

#[test]
fn commands_of_64_tasks_leave_in_few_writes() {
    let worker = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let current = Builder::new_current_thread().enable_all().build().expect("a runtime");
    // A task of the worker starts the tasks, so that all of them are in the worker's queue.
    let on_worker = |is_gathered| {
        let tasks = async { JoinSet::from_iter([writes_of_64_tasks(is_gathered)]).join_all().await[0] };
        worker.block_on(tasks)
    };
    let (of_worker, ungathered) = (on_worker(true), on_worker(false));
    let of_current = current.block_on(writes_of_64_tasks(true));
    assert!(of_worker <= TASKS * ROUNDS / 16, "{of_worker} writes");
    assert!(of_current <= TASKS * ROUNDS / 16, "{of_current} writes");
    assert!(of_worker < ungathered / 4, "{of_worker} writes, and {ungathered} without the stream's work");
}

#[tokio::test]
async fn a_half_closed_socket_ends_reading() {
    let (client, mut server) = tokio::io::duplex(64);
    let mut gather = Gather::new(client, CallCounter::default());
    gather.write_all(b"a").await.expect("open");
    server.shutdown().await.expect("open");
    let mut buffer = [0; 1];
    assert_eq!(gather.read(&mut buffer).await.expect("closed"), 0);
    poll_fn(|cx| Pin::new(&mut gather).poll_flush(cx)).await.expect("the other half is open");
    assert_eq!(server.read(&mut buffer).await.expect("open"), 1);
}
