//! The probe whether a connection has a session of its own.

use std::time::Duration;

use dlock_core::Result;
use futures_util::StreamExt as _;
use tokio::time::timeout;
use tokio_postgres::AsyncMessage;

use super::{Connection, Endpoint, Messages, Opened, drive, first_row, text_column};
use crate::error::{self, STORE};

/// Payload of the probe.
const PROBE: &str = "probe";

/// Listens to a channel on a connection. Returns whether the connection has a session of its own, so
/// that the notifications arrive. If not, or after an error, the session does not listen any more.
/// Calls `on_message` for each message of the connection.
pub(crate) async fn listen(
    connection: &Connection,
    opened: &mut Opened,
    channel: &str,
    limit: Duration,
    mut on_message: impl FnMut(&AsyncMessage),
) -> Result<bool> {
    let Opened { client, messages, endpoint, .. } = opened;
    let listen = format!("LISTEN {channel}; SELECT pg_catalog.pg_backend_pid() AS pid");
    let listening = drive(messages, first_row(client, &listen), &mut on_message);
    let row = STORE.with_timeout(limit, listening).await?;
    let listener = (*endpoint, text_column(&row, "pid"));
    let is_own = is_own_session(connection, messages, listener, channel, limit, on_message).await;
    if !matches!(is_own, Ok(true)) {
        // A session of a pooler would listen on, for other clients. The pooler probably lends the same
        // session again. The statement has no row, and its failure does not matter.
        let unlisten = format!("UNLISTEN {channel}");
        let unlistening = drive(messages, first_row(client, &unlisten), |_| {});
        STORE.with_timeout(limit, unlistening).await.ok();
    }
    is_own
}

/// Returns whether a connection has a session of its own, so that a notification to it arrives. Its
/// session is `listener`, an endpoint and a process id, and listens to `channel`. Calls `on_message`
/// for each message of the connection.
///
/// Behind a pooler that shares sessions between transactions, a connection outside of a transaction
/// has no session, so no notification arrives on it. The probe is sent on a lane to the same
/// server. If the sending session has the process id of `listener`, the pooler has given both
/// connections the same session, and the result is `false`.
async fn is_own_session(
    connection: &Connection,
    messages: &mut Messages,
    (endpoint, listener): (Endpoint, &str),
    channel: &str,
    limit: Duration,
    mut on_message: impl FnMut(&AsyncMessage),
) -> Result<bool> {
    let mut has_arrived = false;
    let sending = connection.notify(channel, PROBE, endpoint);
    let sender = drive(messages, sending, |message| {
        on_message(message);
        has_arrived |= is_probe(message, channel);
    });
    if sender.await? == listener {
        return Ok(false);
    }
    let arrival = async {
        while !has_arrived {
            match messages.next().await {
                Some(Ok(message)) => {
                    on_message(&message);
                    has_arrived |= is_probe(&message, channel);
                }
                Some(Err(error)) => return Err(error::explain(error)),
                None => return Err(STORE.unavailable("the connection for notifications has ended")),
            }
        }
        Ok(true)
    };
    timeout(limit, arrival).await.unwrap_or(Ok(false))
}

/// Returns whether a message is the probe of this channel. The session that a pooler has assigned to
/// the connection may listen to channels of other clients too.
fn is_probe(message: &AsyncMessage, channel: &str) -> bool {
    matches!(message, AsyncMessage::Notification(notification)
        if notification.channel() == channel && notification.payload() == PROBE)
}
