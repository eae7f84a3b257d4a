//! Attempts: the batch that puts a claim into the queue or keeps it there, and its reply.

use std::{sync::Arc, time::Duration};

use dlock_core::{
    Kind, Result, Token, Wait,
    driver::{Entry, LateExecution, Request, watched},
};
use tokio::time::Instant;

use super::{QueueClaim, QueueRow};
use crate::{
    connection::{Priority, Reply},
    error::{self, STORE},
    keys,
    session::Session,
    sql::{AGAIN, ATTEMPT, TRY_CLEAN, TRY_CONDITION, TRY_LOOK, flag, literal, micros},
};

/// SQL condition on a claim of the queue.
const NOT_EXPIRED: &str = "others.expires > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The outcome of an attempt that the server executed in time.
pub(super) enum Attempted {
    Granted(Option<Token>),
    /// The claim is in the queue, or was deleted from it while the batch ran. It waits for the
    /// claims ahead.
    Waiting(Vec<QueueRow>),
    /// A try found other claims ahead, and is not in the queue.
    Refused(Vec<QueueRow>),
}

/// The parts of `attempt.sql` that differ for a try.
struct TryParts {
    look: String,
    clean: String,
    condition: String,
    busy: &'static str,
}

impl TryParts {
    fn new(of_claim: &[(&str, &str)]) -> Self {
        let condition =
            |live| TRY_CONDITION.with(&[of_claim, &[("live", live)]].concat()).trim_end().to_owned();
        Self {
            look: TRY_LOOK.with(&[("condition", &condition(NOT_EXPIRED))]),
            clean: TRY_CLEAN.with(of_claim),
            // The batch has deleted the expired claims.
            condition: condition("1"),
            busy: "@dlock_busy",
        }
    }

    /// Returns the parts for an attempt that waits.
    fn none() -> Self {
        Self { look: String::new(), clean: String::new(), condition: "1".to_owned(), busy: "0" }
    }
}

impl QueueClaim {
    /// Enters the queue, or stays alive in it.
    ///
    /// Repeats the attempt within the time of a call if the batch changed nothing. There are three
    /// reasons for that: other transactions locked the queue until the deadline of the batch, the
    /// claim was deleted from the queue, or a try was refused because of a claim that has since
    /// been deleted.
    pub(super) async fn enter(&mut self) -> Result<Attempted> {
        let deadline = Instant::now() + self.client.connection.timeout_for(self.request.ttl);
        loop {
            if let Some(attempted) = self.enter_once(deadline).await? {
                return Ok(attempted);
            }
            if Instant::now() >= deadline {
                return Err(STORE.unavailable("other transactions kept the queue locked for too long"));
            }
        }
    }

    /// Sends one attempt. Returns `None` if the server has changed nothing.
    async fn enter_once(&mut self, deadline: Instant) -> Result<Option<Attempted>> {
        let bell_owner = self.bell_owner();
        let batch = self.attempt_sql(bell_owner.as_ref())?;
        let time_left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut call = self.call(batch, time_left, bell_owner.as_ref());
        call.priority = Priority::Attempt;
        if !self.is_queued {
            // An attempt that is executed after the claim's release would leave a claim for a ttl.
            call.late_execution = LateExecution::Refused(&self.late);
        }
        let session_epoch = self.client.connection.session_epoch();
        let reply = self.client.connection.call(call).await?;
        self.read_attempt(&reply, bell_owner.as_ref(), session_epoch)
    }

    /// Returns the batch of an attempt: `again.sql` if the claim is in the queue, otherwise
    /// `attempt.sql`.
    fn attempt_sql(&self, bell_owner: Option<&Arc<Session>>) -> Result<String> {
        let Request { name, id, kind, limit, wait, ttl, who, .. } = &self.request;
        let tables = &self.client.connection.tables;
        // A permit waits for at most as many claims as its own limit. Other claims wait for the
        // nearest claim that is in the way.
        let ahead = if *kind == Kind::Permit { u64::from(limit.get()) } else { 1 };
        let of_claim = [
            ("queue", tables.queue.as_str()),
            ("name", &literal(name.as_str().as_bytes())),
            ("claim", &keys::claim_literal(*id)),
            ("kind", keys::kind_literal(*kind)?),
            ("slots", &limit.to_string()),
        ];
        let parts = if *wait == Wait::Never { TryParts::new(&of_claim) } else { TryParts::none() };
        let of_attempt = [
            ("fence", tables.fence.as_str()),
            ("look", &parts.look),
            ("clean", &parts.clean),
            ("condition", &parts.condition),
            ("busy", parts.busy),
            ("who", &literal(who.text().as_bytes())),
            ("ttl", &micros(*ttl)),
            ("bell", &self.take_bell_sql(bell_owner)),
            ("nearest", &(ahead + 1).to_string()),
        ];
        let batch = if self.is_queued { AGAIN } else { ATTEMPT };
        Ok(batch.with(&[&of_claim[..], &of_attempt].concat()))
    }

    /// Reads the reply to an attempt. Returns `None` if the batch has changed nothing.
    fn read_attempt(
        &mut self,
        reply: &Reply,
        bell_owner: Option<&Arc<Session>>,
        session_epoch: u64,
    ) -> Result<Option<Attempted>> {
        let id = self.request.id;
        let (outcome, rows) = reply.rows.split_last().ok_or_else(|| STORE.unexpected_reply("an attempt"))?;
        let is_busy = flag(outcome, "is_busy")?;
        if !is_busy && !flag(outcome, "has_drawn")? {
            return Err(STORE.refused(error::INCOMPLETE_FENCE));
        }
        let has_changed = flag(outcome, "is_queued")?;
        let mut rows = rows.iter().map(QueueRow::read).collect::<Result<Vec<_>>>()?;
        let own = rows.iter().position(|row| row.entry.id == id).map(|at| rows.remove(at));
        let was_queued = std::mem::replace(&mut self.is_queued, own.is_some());
        if was_queued && own.is_none() {
            // The claim will join again at the end. Waiters of this client wait for its former place.
            self.client.wake_local_waiters(id);
        }
        if own.is_some() {
            self.record_bell_owner(bell_owner, &reply.session, session_epoch);
        }
        let entry = own.as_ref().map_or_else(|| self.request.entry(), |own| own.entry);
        let queue: Vec<Entry> = rows.iter().rev().map(|row| row.entry).chain([entry]).collect();
        let watched = watched(&queue, entry.id);
        rows.retain(|row| watched.contains(&row.entry));
        let is_try = self.request.wait == Wait::Never;
        // A try changes nothing if claims are ahead of it now, or were ahead when the batch began.
        // Such a try is refused. If any other batch has changed nothing, either the batch's
        // deadline had passed or the claim was no longer in the queue.
        let is_refused = own.is_none() && !was_queued && is_try && (is_busy || !rows.is_empty());
        if !has_changed && !is_refused {
            if !was_queued {
                reply.session.doubt_clock();
            }
            return Ok(None);
        }
        Ok(Some(match own {
            Some(own) if rows.is_empty() => Attempted::Granted(Token::new(own.number)),
            _ if is_try => Attempted::Refused(rows),
            _ => Attempted::Waiting(rows),
        }))
    }
}
