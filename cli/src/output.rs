//! Output to stdout and stderr.
//!
//! A full pipe, or a terminal after Ctrl-S, blocks the writer. dlock must not block, because it
//! renews locks, forwards signals and stops the command of a lost lock. Therefore threads write,
//! and dlock waits for them for a bounded time.

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

/// Maximum number of messages that wait for a blocked stderr. Further messages are discarded.
const MAX_PENDING: usize = 64;

/// Maximum time that dlock waits at its end for a blocked stderr.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

enum Message {
    Text(Vec<u8>),
    /// Answered when all messages before it have been written.
    Flush(SyncSender<()>),
}

/// Channel to the thread that writes to stderr, which starts with the first message. `None` if the
/// thread cannot be started.
static STDERR: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

fn stderr() -> Option<&'static SyncSender<Message>> {
    let start = || {
        let (sender, messages) = sync_channel(MAX_PENDING);
        let writer = thread::Builder::new().name("dlock-stderr".to_owned());
        writer.spawn(move || write_all(&messages)).ok().map(|_| sender)
    };
    STDERR.get_or_init(start).as_ref()
}

fn write_all(messages: &Receiver<Message>) {
    for message in messages {
        match message {
            // A failure is ignored, because there is no other place to report it.
            Message::Text(text) => io::stderr().write_all(&text).unwrap_or_default(),
            Message::Flush(done) => done.send(()).unwrap_or_default(),
        }
    }
}

/// Queues one line for stderr.
pub(crate) fn say(message: &str) {
    // One write, so that the line is not mixed with the output of the command.
    status(format!("dlock: {message}\n"));
}

/// Queues text without a line end for stderr.
pub(crate) fn status(text: String) {
    if let Some(stderr) = stderr() {
        stderr.try_send(Message::Text(text.into_bytes())).ok();
    }
}

/// Waits until all messages have been written to stderr, for at most [`FLUSH_TIMEOUT`]. dlock calls
/// it last.
pub(crate) fn flush() {
    // Without a thread there was no message.
    let Some(Some(stderr)) = STDERR.get() else { return };
    let (done, flushed) = sync_channel(1);
    if stderr.try_send(Message::Flush(done)).is_ok() {
        flushed.recv_timeout(FLUSH_TIMEOUT).ok();
    }
}

/// Returns whether stdout was closed when dlock started. Rust then opens the null device in its
/// place, for reading and writing.
pub(crate) fn stdout_is_closed() -> bool {
    let stdout = io::stdout();
    let is_null = |file: File| -> io::Result<bool> {
        let (null, own) = (fstat(file.as_fd())?, fstat(stdout.as_fd())?);
        let id = |stat: &rustix::fs::Stat| (major(stat.st_rdev), minor(stat.st_rdev), stat.st_mode);
        Ok(id(&null) == id(&own))
    };
    let is_readable = fcntl_getfl(stdout.as_fd()).is_ok_and(|flags| flags.contains(OFlags::RDWR));
    is_readable && File::open("/dev/null").and_then(is_null).unwrap_or(false)
}

/// Writes a result to stdout that must not be lost. A closed pipe is a failure too.
///
/// # Cancel safety
/// The text may still be written after the future was dropped.
pub(crate) async fn print_all(text: String) -> Outcome<()> {
    let (reply, result) = oneshot::channel();
    let writer = thread::Builder::new().name("dlock-stdout".to_owned());
    let started = writer.spawn(move || reply.send(write(text.as_bytes())).unwrap_or_default());
    let result = match started {
        Ok(_) => result.await.unwrap_or_else(|_| Err(ErrorKind::BrokenPipe.into())),
        Err(error) => Err(error),
    };
    result.map_err(|error| Failure::internal("cannot write to stdout", &error))
}

/// Writes a result to stdout. A reader that closes the pipe early (`dlock ls | head -1`) is not a
/// failure.
pub(crate) fn print(text: impl AsRef<[u8]>) -> Outcome<()> {
    match write(text.as_ref()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal("cannot write to stdout", &error))
        }
        _ => Ok(()),
    }
}

fn write(text: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush())
}
