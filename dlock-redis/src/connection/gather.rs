//! A stream that gathers the commands of several tasks into one write.
//!
//! Nagle's algorithm is off on dlock's connections, because it would hold a command back until the
//! previous one is acknowledged. Without it, each write is a packet of its own, and a worker of the
//! runtime polls the connection task of the client crate directly after another task has sent a
//! command. This stream lets the tasks that can already run add their commands first. It never
//! waits for a timer. The connection task goes to the end of the runtime's queue once, and then
//! writes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use dlock_core::driver::CallCounter;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Number of bytes from which a write is not deferred. These are some 15 commands. The server can
/// execute them while the client prepares the next ones.
const LARGE_WRITE: usize = 4096;

/// Defers each write until the tasks that can run have added their commands.
///
/// The stream has no buffer. A deferred write returns [`Poll::Pending`], so the bytes stay with the
/// writer, which offers them again together with those of later commands. The writer must offer all
/// its bytes at each call, as a [`Framed`](https://docs.rs/tokio-util) does. A command that has no
/// other command beside it is not deferred.
pub(super) struct Gather<S> {
    stream: S,
    /// Commands of this connection that have no reply yet.
    in_flight: CallCounter,
    /// Whether the next write goes to the stream without a delay. Set by the first write after a
    /// flush, so that at most one write is deferred between two flushes. The second offer of the
    /// same bytes, the rest of a partial write, and a write that has waited for the socket are not
    /// deferred.
    writes_at_once: bool,
}

impl<S> Gather<S> {
    pub(super) fn new(stream: S, in_flight: CallCounter) -> Self {
        Self { stream, in_flight, writes_at_once: false }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gather<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let at_once = std::mem::replace(&mut self.writes_at_once, true);
        if !at_once && bytes.len() < LARGE_WRITE && self.in_flight.calls() > 1 {
            // A task that wakes itself goes to the end of the queue.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writes_at_once = false;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gather<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests;
