//! Events for `tracing` and metrics for `metrics`. No other file of this crate reports any. Does
//! nothing without these features.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `dlock_acquisitions_total` | counter | `store`, `kind`, `class`, `outcome`: granted, busy, abandoned, failed |
//! | `dlock_wait_seconds` | histogram | `store`, `kind`, `class`, `outcome` |
//! | `dlock_held_seconds` | histogram | `store`, `kind`, `class` |
//! | `dlock_lost_total` | counter | `store`, `kind`, `class` |
//! | `dlock_waiting`, `dlock_holding` | gauge | `store`, `kind`, `class` |
//! | `dlock_slack_seconds` | histogram | `store`, `kind`, `class` |
//! | `dlock_store_call_seconds` | histogram | `store`, `operation`, `outcome`: replied, failed |
//! | `dlock_store_failures_total` | counter | `store`, `operation` |
//!
//! An operation is attempt, renewal, downgrade, detachment, resumption, hand-back or release.
//!
//! The class is that of the lock's options. It is empty for a lock without one, so that all series
//! of a metric have the same labels. Lock names are in the events only. Their number has no bound,
//! and each would create a new time series of a metric.
#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, reason = "each feature uses some of them")
)]

#[cfg(feature = "metrics")]
use std::sync::Arc;
use std::{fmt, time::Duration};

#[cfg(feature = "metrics")]
use metrics::{Label, SharedString};
#[cfg(any(feature = "tracing", feature = "metrics"))]
use tokio::time::Instant;

use super::Keeper;
use crate::{
    contract::Info,
    model::{Error, LockName, LostReason, Result},
};

/// Start time of a measurement. Reads the clock only if one of the features is enabled.
#[derive(Clone, Copy)]
pub(crate) struct StartTime(#[cfg(any(feature = "tracing", feature = "metrics"))] Instant);

impl StartTime {
    pub(crate) fn now() -> Self {
        Self(
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            Instant::now(),
        )
    }
}

/// Returns the labels of a claim.
#[cfg(feature = "metrics")]
fn labels(keeper: &Keeper) -> Vec<Label> {
    let class: SharedString = keeper.terms.class.text().map_or("".into(), |class| Arc::clone(class).into());
    vec![
        Label::from_static_parts("store", keeper.info().store),
        Label::new("kind", keeper.request.kind.to_string()),
        Label::new("class", class),
    ]
}

/// Returns the class of a claim for an event, which has no such field if there is none.
#[cfg(feature = "tracing")]
fn class(keeper: &Keeper) -> Option<&str> {
    keeper.terms.class.text().map(|class| &**class)
}

/// A claim that a gauge counts until this value is dropped.
pub(crate) struct Counted(#[cfg(feature = "metrics")] metrics::Gauge);

#[cfg(feature = "metrics")]
impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Counts a claim that waits for its lock.
pub(crate) fn count_waiting(keeper: &Keeper) -> Counted {
    Counted::new(
        #[cfg(feature = "metrics")]
        metrics::gauge!("dlock_waiting", labels(keeper)),
    )
}

/// Counts a hold, by the kind of its grant.
pub(crate) fn count_holding(keeper: &Keeper) -> Counted {
    create_loss_counter(keeper);
    Counted::new(
        #[cfg(feature = "metrics")]
        metrics::gauge!("dlock_holding", labels(keeper)),
    )
}

/// Creates the counter of lost locks for the present kind of a hold, with zero. Otherwise the
/// counter would begin at one, and a rate over it would not show the first loss.
pub(crate) fn create_loss_counter(keeper: &Keeper) {
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_lost_total", labels(keeper)).increment(0);
}

impl Counted {
    fn new(#[cfg(feature = "metrics")] gauge: metrics::Gauge) -> Self {
        #[cfg(feature = "metrics")]
        gauge.increment(1.0);
        Self(
            #[cfg(feature = "metrics")]
            gauge,
        )
    }

    /// Ends the count, as a drop does.
    pub(crate) fn end(self) {}
}

/// Reports the reply to a call to the store, or its failure.
pub(crate) fn called<T>(info: &Info, operation: &'static str, start: StartTime, reply: &Result<T>) {
    #[cfg(feature = "metrics")]
    {
        let outcome = if reply.is_ok() { "replied" } else { "failed" };
        let labels = [("store", info.store), ("operation", operation), ("outcome", outcome)];
        metrics::histogram!("dlock_store_call_seconds", &labels).record(start.0.elapsed());
    }
}

/// Reports the time that was left before the deadline when a renewal succeeded.
pub(crate) fn renewed(keeper: &Keeper, slack: impl FnOnce() -> Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("dlock_slack_seconds", labels(keeper)).record(slack());
}

/// Reports the end of an acquisition.
pub(crate) fn acquisition_ended(keeper: &Keeper, start: StartTime, outcome: &'static str) {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    let waited = start.0.elapsed();
    #[cfg(feature = "tracing")]
    let (info, request, class) = (keeper.info(), &keeper.request, class(keeper));
    #[cfg(feature = "tracing")]
    tracing::debug!(store = info.store, lock = %request.name, kind = %request.kind, class, ?waited, outcome, "acquisition ended");
    #[cfg(feature = "metrics")]
    {
        let mut labels = labels(keeper);
        labels.push(Label::from_static_parts("outcome", outcome));
        metrics::counter!("dlock_acquisitions_total", labels.clone()).increment(1);
        metrics::histogram!("dlock_wait_seconds", labels).record(waited);
    }
}

/// Reports the end of a hold, by a release or by a loss.
pub(crate) fn hold_ended(keeper: &Keeper, start: StartTime, lost: Option<LostReason>) {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    let held = start.0.elapsed();
    #[cfg(feature = "tracing")]
    let (info, request, class) = (keeper.info(), &keeper.request, class(keeper));
    #[cfg(feature = "tracing")]
    match lost {
        Some(reason) => {
            tracing::warn!(store = info.store, lock = %request.name, kind = %request.kind, class, ?held, %reason, "lock lost");
        }
        None => {
            tracing::debug!(store = info.store, lock = %request.name, kind = %request.kind, class, ?held, "lock released")
        }
    }
    #[cfg(feature = "metrics")]
    {
        let labels = labels(keeper);
        metrics::histogram!("dlock_held_seconds", labels.clone()).record(held);
        if lost.is_some() {
            metrics::counter!("dlock_lost_total", labels).increment(1);
        }
    }
}

/// Reports that the release of a hold found no claim in the store. The hold had been lost before.
pub(crate) fn lost_before_release(keeper: &Keeper) {
    #[cfg(feature = "tracing")]
    {
        let (info, request, class) = (keeper.info(), &keeper.request, class(keeper));
        let reason = LostReason::Deleted;
        tracing::warn!(store = info.store, lock = %request.name, kind = %request.kind, class, %reason, "lock lost before its release");
    }
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_lost_total", labels(keeper)).increment(1);
}

/// Reports a failed call to the store, after which the keeper continues.
pub(crate) fn failed(keeper: &Keeper, operation: &'static str, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        store = keeper.info().store,
        lock = %keeper.request.name,
        operation,
        error = error as &dyn std::error::Error,
        "store call failed, will retry"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_store_failures_total", "store" => keeper.info().store, "operation" => operation)
        .increment(1);
}

/// Reports a term whose work has failed, or a campaign that has failed. The candidate stands for
/// election again after `pause`.
pub(crate) fn candidate_failed(name: &LockName, info: &Info, pause: Duration, error: &dyn fmt::Display) {
    #[cfg(feature = "tracing")]
    tracing::warn!(store = info.store, election = %name, ?pause, %error, "candidate failed, will stand again");
}
