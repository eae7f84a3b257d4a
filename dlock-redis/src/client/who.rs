//! Who asks, in words. The ids of a client's claims begin with a key of the text, so that the text is on the server only once,
//! for all of them, and an acquisition costs no command more.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use dlock_core::{
    Who,
    driver::{Moment, Request},
};
use futures_util::future::{Either, FutureExt as _, select};
use tokio::time::timeout;

use super::Client;
use crate::{
    keys,
    scripts::{WHO, millis},
};

/// How long a text stays beyond the claim that it was written for. At first it is short: most processes, and most labels, are
/// of use for seconds, and a crowd of them must not fill the server. A client that goes on writes it for longer.
const AT_FIRST: Duration = Duration::from_secs(3 * 60);
const LATER: Duration = Duration::from_secs(3600);

/// A text is written again when it would stay less than this beyond the claim, by the next attempt or renewal.
const LEAST: Duration = Duration::from_secs(2 * 60);

/// How long after a text was sent it is sent again, if the server has not confirmed it. Without the right to write it, this is
/// what it costs.
const PAUSE: Duration = Duration::from_secs(60);

/// How long a call that is answered waits for the node that has the text.
const MOMENT: Duration = Duration::from_millis(200);

/// What a client knows of the texts that it has written: of those of the last hour or so.
pub(crate) struct Written(Mutex<State>);

struct State {
    texts: HashMap<[u8; Who::KEY_LEN], Text>,
    /// When texts that have ended are forgotten.
    sweep: Moment,
}

struct Text {
    /// When it ends on the server. `None` if the server has not confirmed it.
    ends: Option<Moment>,
    /// When it may be sent again though it is not confirmed.
    again: Moment,
}

impl Written {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { texts: HashMap::new(), sweep: Moment::now().after(LEAST) }))
    }

    /// For how long to write the text of a claim that lasts so long, if it must be written now. Then nobody else is told so
    /// for a while. `is_last` if no renewal of the claim follows.
    fn due(&self, key: [u8; Who::KEY_LEN], lasting: Duration, is_last: bool) -> Option<Duration> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Moment::now();
        let again = now.after(PAUSE);
        let Some(text) = state.texts.get_mut(&key) else {
            if state.sweep.has_passed() {
                let stays = |text: &Text| text.ends.is_some_and(|ends| !ends.has_passed());
                state.texts.retain(|_, text| stays(text) || !text.again.has_passed());
                state.sweep = now.after(LEAST);
            }
            state.texts.insert(key, Text { ends: None, again });
            return Some(lasting + AT_FIRST);
        };
        let is_there = |ends: Moment| ends.remaining() >= lasting + LEAST;
        if text.ends.is_some_and(is_there) || !is_last && !text.again.has_passed() {
            return None;
        }
        text.again = again;
        Some(lasting + if is_last || text.ends.is_none() { AT_FIRST } else { LATER })
    }

    fn confirm(&self, key: [u8; Who::KEY_LEN], ends: Moment) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = state.texts.get_mut(&key) {
            text.ends = Some(ends);
        }
    }
}

impl Client {
    /// Makes a call for a claim. If it is time to write who asks, that is done beside the call. It does not make the call fail,
    /// and delays it by a moment at most, and only once in a while. `detached` is for how long the call detaches the claim.
    pub(crate) async fn beside<T>(
        &self,
        request: &Request,
        detached: Option<Duration>,
        call: impl Future<Output = T>,
    ) -> T {
        let lasting = detached.unwrap_or(request.ttl);
        let Some(ttl) = self.written.due(request.id.who_key(), lasting, detached.is_some()) else {
            return call.await;
        };
        // Polled first, so that one server answers it first. A node of a cluster may answer the call sooner: then the other node
        // gets a moment, because what is not sent yet would not be sent at all.
        let write = self.write(request, ttl).boxed();
        match select(write, pin!(call)).await {
            Either::Left(((), call)) => call.await,
            Either::Right((answer, write)) => {
                timeout(MOMENT.min(request.ttl / 10), write).await.ok();
                answer
            }
        }
    }

    async fn write(&self, request: &Request, ttl: Duration) {
        let (key, sent) = (request.id.who_key(), Moment::now());
        // A detached claim that was taken back has the key of the client that made it. Its text is not known here, and stays.
        let text = if key == request.who.key() { request.who.text() } else { "" };
        let call = WHO.call(keys::who(&self.config.prefix, key), (text, millis(ttl)));
        if self.connection.query_once(call.in_full()).await.is_some() {
            self.written.confirm(key, sent.after(ttl));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_written_for_minutes_and_for_longer_by_a_client_that_goes_on() {
        let (written, anna, bert) = (Written::new(), [1; 5], [2; 5]);
        let (ttl, long) = (Duration::from_secs(30), Duration::from_secs(24 * 3600));
        assert_eq!(written.due(anna, ttl, false), Some(ttl + AT_FIRST));
        assert_eq!(
            written.due(anna, ttl, false),
            None,
            "each acquisition writes it until the server has answered"
        );
        written.confirm(anna, Moment::now().after(ttl + AT_FIRST));
        assert_eq!(written.due(anna, ttl, false), None, "it is there");
        assert_eq!(written.due(bert, ttl, false), Some(ttl + AT_FIRST), "it is another text");
        assert_eq!(
            written.due(anna, long, true),
            Some(long + AT_FIRST),
            "it ends before the claim that is detached"
        );
        written.confirm(anna, Moment::now().after(long + AT_FIRST));
        assert_eq!(written.due(anna, long, true), None, "it is there for long enough");
        // Little is left, and a minute has passed since it was written.
        written.confirm(anna, Moment::now().after(ttl));
        written.0.lock().unwrap().texts.get_mut(&anna).unwrap().again = Moment::now();
        assert_eq!(written.due(anna, ttl, false), Some(ttl + LATER));
    }
}
