//! Events for `tracing` and metrics for `metrics`: the only file that reports anything. Does nothing without these
//! features.
//!
//! | metric | kind | labels |
//! |---|---|---|
//! | `dlock_contests_total` | counter | `store`, `kind`, `outcome`: granted, busy, deserted, failed |
//! | `dlock_wait_seconds` | histogram | `store`, `kind`, `outcome` |
//! | `dlock_held_seconds` | histogram | `store`, `kind` |
//! | `dlock_lost_total` | counter | `store`, `kind` |
//! | `dlock_store_failures_total` | counter | `store`, `operation`: attempt, renewal, downgrade, detachment, release |
//!
//! Lock names are in the events only: there may be any number of them, and each would make a new time series of a metric.
#![cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(unused_variables, reason = "each listener takes what it wants")
)]

#[cfg(any(feature = "tracing", feature = "metrics"))]
use tokio::time::Instant;

use crate::{
    contract::{Info, Request},
    model::{Error, LostReason},
};

/// When something began. Reads the clock only if somebody listens.
#[derive(Clone, Copy)]
pub(crate) struct Begun(#[cfg(any(feature = "tracing", feature = "metrics"))] Instant);

impl Begun {
    pub(crate) fn now() -> Self {
        Self(
            #[cfg(any(feature = "tracing", feature = "metrics"))]
            Instant::now(),
        )
    }
}

/// An acquisition has ended.
pub(crate) fn contest_over(request: &Request, info: &Info, begun: Begun, outcome: &'static str) {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    let waited = begun.0.elapsed();
    #[cfg(feature = "tracing")]
    tracing::debug!(store = info.store, lock = %request.name, kind = %request.kind, ?waited, outcome, "lock asked for");
    #[cfg(feature = "metrics")]
    {
        let labels = [
            ("store", info.store.to_owned()),
            ("kind", request.kind.to_string()),
            ("outcome", outcome.to_owned()),
        ];
        metrics::counter!("dlock_contests_total", &labels).increment(1);
        metrics::histogram!("dlock_wait_seconds", &labels).record(waited);
    }
}

/// A hold has ended, normally or by a loss.
pub(crate) fn hold_over(request: &Request, info: &Info, begun: Begun, lost: Option<LostReason>) {
    #[cfg(any(feature = "tracing", feature = "metrics"))]
    let held = begun.0.elapsed();
    #[cfg(feature = "tracing")]
    match lost {
        Some(reason) => {
            tracing::warn!(store = info.store, lock = %request.name, kind = %request.kind, ?held, %reason, "lock lost");
        }
        None => {
            tracing::debug!(store = info.store, lock = %request.name, kind = %request.kind, ?held, "lock let go")
        }
    }
    #[cfg(feature = "metrics")]
    {
        let labels = [("store", info.store.to_owned()), ("kind", request.kind.to_string())];
        metrics::histogram!("dlock_held_seconds", &labels).record(held);
        if lost.is_some() {
            metrics::counter!("dlock_lost_total", &labels).increment(1);
        }
    }
}

/// The release of a hold found nothing in the store: the hold had been lost before.
pub(crate) fn found_gone(request: &Request, info: &Info) {
    #[cfg(feature = "tracing")]
    {
        let reason = LostReason::Taken;
        tracing::warn!(store = info.store, lock = %request.name, kind = %request.kind, %reason, "lock lost before its release");
    }
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_lost_total", "store" => info.store, "kind" => request.kind.to_string())
        .increment(1);
}

/// A call to the store failed; the keeper goes on.
pub(crate) fn failed(request: &Request, info: &Info, operation: &'static str, error: &Error) {
    #[cfg(feature = "tracing")]
    tracing::warn!(
        store = info.store,
        lock = %request.name,
        operation,
        error = error as &dyn std::error::Error,
        "store failed, will ask again"
    );
    #[cfg(feature = "metrics")]
    metrics::counter!("dlock_store_failures_total", "store" => info.store, "operation" => operation)
        .increment(1);
}
