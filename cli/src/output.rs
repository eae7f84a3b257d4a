//! What goes to stdout and stderr.
//!
//! A pipe that is full and a terminal after Ctrl-S block whoever writes. dlock must go on meanwhile: it renews locks, passes on
//! signals and stops the command of a lost lock. So threads write, and dlock waits for them for a bounded time only.

use std::{
    fs::File,
    io::{self, ErrorKind, Write},
    os::fd::AsFd,
    sync::{
        OnceLock,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use rustix::fs::{OFlags, fcntl_getfl, fstat, major, minor};
use tokio::sync::oneshot;

use crate::exit::{Failure, Outcome};

/// Number of messages that wait for a blocked stderr. Further ones are dropped.
const BACKLOG: usize = 64;

/// Time that the end of dlock waits for a blocked stderr.
const LAST_WORDS: Duration = Duration::from_secs(1);

enum Message {
    Text(Vec<u8>),
    /// Answered once everything before it is written.
    Flush(SyncSender<()>),
}

/// The thread that writes to stderr, once there is something to write. `None` if it cannot be started.
static STDERR: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

fn stderr() -> Option<&'static SyncSender<Message>> {
    let start = || {
        let (sender, messages) = sync_channel(BACKLOG);
        let writer = thread::Builder::new().name("dlock-stderr".to_owned());
        writer.spawn(move || write_all(&messages)).ok().map(|_| sender)
    };
    STDERR.get_or_init(start).as_ref()
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            // A failure is ignored: there is no other place to report it.
            Message::Text(text) => io::stderr().write_all(&text).unwrap_or_default(),
            Message::Flush(done) => done.send(()).unwrap_or_default(),
        }
    }
}

/// Writes one line to stderr, and does not wait until it is written.
pub(crate) fn say(message: &str) {
    // Written in one piece, so that it is not mixed with the output of the command.
    status(format!("dlock: {message}\n"));
}

/// Writes text without a line end to stderr, and does not wait until it is written.
pub(crate) fn status(text: String) {
    if let Some(stderr) = stderr() {
        stderr.try_send(Message::Text(text.into_bytes())).ok();
    }
}

/// Waits until stderr has all messages, for a bounded time. The last thing that dlock does.
pub(crate) fn flush() {
    // Without a thread nothing was said.
    let Some(Some(stderr)) = STDERR.get() else { return };
    let (done, is_done) = sync_channel(1);
    if stderr.try_send(Message::Flush(done)).is_ok() {
        is_done.recv_timeout(LAST_WORDS).ok();
    }
}

/// Whether stdout was closed when dlock started. Rust then opens the null device in its place, for reading too.
pub(crate) fn stdout_is_closed() -> bool {
    let stdout = io::stdout();
    let is_null = |file: File| -> io::Result<bool> {
        let (null, own) = (fstat(file.as_fd())?, fstat(stdout.as_fd())?);
        let id = |stat: &rustix::fs::Stat| (major(stat.st_rdev), minor(stat.st_rdev), stat.st_mode);
        Ok(id(&null) == id(&own))
    };
    let reads = fcntl_getfl(stdout.as_fd()).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    reads && File::open("/dev/null").and_then(is_null).unwrap_or(false)
}

/// Writes to stdout what somebody must get: a closed pipe is a failure too.
///
/// # Cancel safety
/// The text may still be written after the future was dropped.
pub(crate) async fn hand_over(answer: String) -> Outcome<()> {
    let (reply, written) = oneshot::channel();
    let writer = thread::Builder::new().name("dlock-stdout".to_owned());
    let started = writer.spawn(move || reply.send(write(answer.as_bytes())).unwrap_or_default());
    let written = match started {
        Ok(_) => written.await.unwrap_or_else(|_| Err(ErrorKind::BrokenPipe.into())),
        Err(error) => Err(error),
    };
    written.map_err(|error| Failure::internal("cannot write the answer", &error))
}

/// Writes the answer to stdout. A reader that closes the pipe early (`dlock ls | head -1`) is no failure.
pub(crate) fn print(answer: impl AsRef<[u8]>) -> Outcome<()> {
    match write(answer.as_ref()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal("cannot write the answer", &error))
        }
        _ => Ok(()),
    }
}

fn write(answer: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(answer).and_then(|()| stdout.flush())
}
