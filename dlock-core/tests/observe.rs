//! Metrics and events of the features `metrics` and `tracing`. Dashboards and alerts depend on
//! these names, so the tests pin them.
#![cfg(all(feature = "metrics", feature = "tracing"))]

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use dlock_conformance::wrap::Switch;
use dlock_core::{
    DistributedLock as _, Kind, LockOptions, Locks, MultiLock, Once, RedLock, memory::MemoryBackend,
};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    span,
};

/// Every metric and event of dlock, with one line for each.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().push(line);
    }

    fn count(&self, line: &str) -> usize {
        self.0.lock().iter().filter(|other| *other == line).count()
    }
}

/// A metric that adds each of its values to the log.
struct Metric(Log, String);

impl CounterFn for Metric {
    fn increment(&self, value: u64) {
        self.0.add(format!("{} +{value}", self.1));
    }
    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Metric {
    fn increment(&self, value: f64) {
        self.0.add(format!("{} +{value}", self.1));
    }
    fn decrement(&self, value: f64) {
        self.0.add(format!("{} -{value}", self.1));
    }
    fn set(&self, _: f64) {}
}

impl HistogramFn for Metric {
    fn record(&self, value: f64) {
        self.0.add(format!("{} {value}", self.1));
    }
}

impl Log {
    fn metric(&self, key: &Key) -> Arc<Metric> {
        let mut labels: Vec<_> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        labels.sort_unstable();
        Arc::new(Metric(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }
}

impl Recorder for Log {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.metric(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.metric(key))
    }
    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.metric(key))
    }
}

/// The message of an event, and its lock and class if it has them.
#[derive(Default)]
struct EventText(String);

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.0.insert_str(0, &format!("{value:?}")),
            "lock" => write!(self.0, " ({value:?})").expect("writing to a string cannot fail"),
            "class" => write!(self.0, " [{value:?}]").expect("writing to a string cannot fail"),
            _ => {}
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        self.add(format!("{} {}", event.metadata().level(), text.0));
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// Returns the log of a client that does `work` and is then closed.
fn log_of(work: impl AsyncFnOnce(&Locks, &Switch)) -> Log {
    let (log, line) = (Log::default(), Switch::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let locks = Locks::new(line.wrap(MemoryBackend::new().into_store()))
        .with_defaults(LockOptions::new().ttl(Duration::from_secs(30)));
    let run = async {
        work(&locks, &line).await;
        locks.close().await;
    };
    tracing::subscriber::with_default(log.clone(), || {
        metrics::with_local_recorder(&log, || runtime.expect("a runtime can be built").block_on(run));
    });
    log
}

/// Asserts that each line is in the log exactly once.
fn assert_logged_once(log: &Log, lines: &[&str]) {
    for line in lines {
        assert_eq!(log.count(line), 1, "`{line}` among {:#?}", log.0.lock());
    }
}

#[test]
fn acquisitions_and_the_duration_of_a_hold_are_reported() {
    let log = log_of(async |locks, _| {
        let held = locks.mutex("x").lock().await.expect("free");
        assert!(locks.fair("x").try_lock().await.expect("no error").is_none(), "it is held");
        tokio::time::sleep(Duration::from_secs(3)).await;
        held.release().await.expect("held until now");
    });
    assert_logged_once(
        &log,
        &[
            "dlock_acquisitions_total{class=,kind=mutex,outcome=granted,store=memory} +1",
            "dlock_wait_seconds{class=,kind=mutex,outcome=granted,store=memory} 0",
            "dlock_acquisitions_total{class=,kind=fair,outcome=busy,store=memory} +1",
            "dlock_held_seconds{class=,kind=mutex,store=memory} 3",
            "DEBUG lock released (x)",
        ],
    );
    assert_eq!(log.count("DEBUG acquisition ended (x)"), 2);
    // The counter exists before the first loss, so that a rate over it shows that loss.
    assert_logged_once(&log, &["dlock_lost_total{class=,kind=mutex,store=memory} +0"]);
    assert_eq!(
        log.count("dlock_lost_total{class=,kind=mutex,store=memory} +1"),
        0,
        "a release was counted as a loss"
    );
}

#[test]
fn waiting_claims_and_holds_are_counted_until_they_end() {
    let log = log_of(async |locks, _| {
        let held = locks.mutex("x").lock().await.expect("free");
        locks.fair("x").lock().wait(Duration::from_secs(1)).await.expect_err("it is held");
        drop(held);
    });
    // In order: the mutex waits and holds, the fair lock waits and gives up, the mutex is released.
    let lines = log.0.lock();
    let gauges: Vec<_> = lines.iter().filter_map(|line| line.split_once(",store=memory} ")).collect();
    let gauges: Vec<_> = gauges.into_iter().filter(|(name, _)| name.contains("ing{class=,kind")).collect();
    let (waiting, holding) = ("dlock_waiting{class=,kind=mutex", "dlock_holding{class=,kind=mutex");
    let fair = "dlock_waiting{class=,kind=fair";
    assert_eq!(
        gauges,
        [(waiting, "+1"), (waiting, "-1"), (holding, "+1"), (fair, "+1"), (fair, "-1"), (holding, "-1")]
    );
}

#[test]
fn calls_to_the_store_are_timed_and_a_renewal_reports_how_much_time_was_left() {
    let log = log_of(async |locks, line| {
        let held = locks.mutex("x").lock().await.expect("free");
        tokio::time::sleep(Duration::from_secs(15)).await;
        line.cut();
        // Before the failed renewal is retried.
        tokio::time::sleep(Duration::from_millis(5_020)).await;
        line.connect();
        held.release().await.expect("held until now");
    });
    for (operation, outcome) in
        [("attempt", "replied"), ("renewal", "replied"), ("renewal", "failed"), ("release", "replied")]
    {
        let call =
            format!("dlock_store_call_seconds{{operation={operation},outcome={outcome},store=memory}} 0");
        assert_logged_once(&log, &[&call]);
    }
    // The ttl is 30 s, and the renewal was sent after a third of it.
    let lines = log.0.lock();
    let slack: Vec<f64> = lines
        .iter()
        .filter_map(|line| {
            line.strip_prefix("dlock_slack_seconds{class=,kind=mutex,store=memory} ")?.parse().ok()
        })
        .collect();
    assert!(matches!(slack[..], [slack] if (19.9..=20.0).contains(&slack)), "{slack:?}");
}

#[test]
fn a_loss_is_reported_when_it_happens() {
    let log = log_of(async |locks, _| {
        let held = locks.mutex("x").lock().await.expect("free");
        assert!(locks.force_release("x").await.expect("memory can"), "it is held");
        held.lost().await;
    });
    assert_logged_once(&log, &["dlock_lost_total{class=,kind=mutex,store=memory} +1", "WARN lock lost (x)"]);
}

#[test]
fn a_loss_that_only_the_release_detects_is_reported() {
    let log = log_of(async |locks, _| {
        let held = locks.mutex("x").lock().await.expect("free");
        assert!(locks.force_release("x").await.expect("memory can"), "it is held");
        // The keeper handles the release before the hint of the forced release.
        held.release().await.expect_err("it was taken");
    });
    assert_logged_once(
        &log,
        &["dlock_lost_total{class=,kind=mutex,store=memory} +1", "WARN lock lost before its release (x)"],
    );
}

#[test]
fn a_failure_of_the_store_is_reported_with_its_operation() {
    let log = log_of(async |locks, line| {
        let held = locks.mutex("x").lock().await.expect("free");
        line.cut();
        // Before the failed renewal is retried.
        tokio::time::sleep(Duration::from_millis(10_020)).await;
        line.connect();
        held.release().await.expect("held until now");
    });
    assert_logged_once(
        &log,
        &[
            "dlock_store_failures_total{operation=renewal,store=memory} +1",
            "WARN store call failed, will retry (x)",
        ],
    );
}

/// Runs every operation whose metrics have a kind, on a lock with this name.
async fn use_a_lock(locks: &Locks, line: &Switch, name: &str, class: &str) {
    let held = locks.mutex(name).lock().class(class).await.expect("free");
    assert!(locks.fair(name).try_lock().class(class).await.expect("no error").is_none(), "it is held");
    tokio::time::sleep(Duration::from_secs(15)).await;
    line.cut();
    // Before the failed renewal is retried.
    tokio::time::sleep(Duration::from_millis(5_020)).await;
    line.connect();
    assert!(locks.force_release(name).await.expect("memory can"), "it is held");
    held.lost().await;
    drop(held);
    let held = locks.fair(name).lock().class(class).await.expect("free");
    assert!(locks.force_release(name).await.expect("memory can"), "it is held");
    held.release().await.expect_err("it was taken");
}

#[test]
fn every_metric_with_a_kind_has_the_class_and_no_metric_has_the_name_of_the_lock() {
    let log = log_of(async |locks, line| use_a_lock(locks, line, "invoice/4711", "orders").await);
    let lines = log.0.lock();
    let metrics: Vec<_> = lines.iter().filter(|line| line.starts_with("dlock_")).collect();
    let of_kind: BTreeSet<_> = metrics
        .iter()
        .filter(|line| line.contains("kind="))
        .filter_map(|line| line.split('{').next())
        .collect();
    let page = include_str!("../../docs/metrics.md").lines().filter(|line| line.contains("`kind`,"));
    let documented: BTreeSet<_> =
        page.filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(of_kind, documented, "the work does not report every metric with a kind");
    for line in metrics {
        assert!(!line.contains("invoice"), "a metric has the name of the lock: {line}");
        assert_eq!(line.contains("class=orders,"), line.contains("kind="), "{line}");
    }
    for event in lines.iter().filter(|line| line.contains("invoice")) {
        let has_class = !event.contains("store call failed");
        assert_eq!(event.contains("[\"orders\"]"), has_class, "{event}");
    }
}

#[test]
fn the_class_of_a_call_overrides_that_of_its_client_and_an_empty_one_is_none() {
    let log = log_of(async |locks, _| {
        let locks = locks.clone().with_defaults(LockOptions::new().class("cron"));
        locks.mutex("x").lock().await.expect("free").release().await.expect("held");
        locks.fair("x").lock().class("orders").await.expect("free").release().await.expect("held");
        locks.rwlock("x").read().lock().class("").await.expect("free").release().await.expect("held");
    });
    assert_logged_once(
        &log,
        &[
            "dlock_acquisitions_total{class=cron,kind=mutex,outcome=granted,store=memory} +1",
            "dlock_acquisitions_total{class=orders,kind=fair,outcome=granted,store=memory} +1",
            "dlock_acquisitions_total{class=,kind=read,outcome=granted,store=memory} +1",
            "DEBUG lock released (x) [\"cron\"]",
            "DEBUG lock released (x) [\"orders\"]",
            "DEBUG lock released (x)",
        ],
    );
}

#[test]
fn every_kind_of_handle_passes_the_class_on() {
    let options = LockOptions::new().class("orders");
    let log = log_of(async |locks, line| {
        drop(locks.semaphore("permit", 2).acquire().class("orders").await.expect("free"));
        drop(locks.election("leader").candidate().class("orders").elect().await.expect("free"));
        let other = Locks::new(line.wrap(MemoryBackend::new().into_store()));
        let both = MultiLock::new([locks.of(Kind::Mutex, "a"), other.of(Kind::Write, "b")]);
        drop(both.expect("two locks").lock(&options).await.expect("free"));
        let members = (0..3).map(|_| MemoryBackend::new().into_store());
        let majority = Locks::new(RedLock::new(members).expect("three members").into_store());
        drop(majority.mutex("c").lock().class("orders").await.expect("free"));
        let once = locks.mutex("job").once("today").keep(Duration::from_secs(9)).options(options);
        let ran = once.run(async |_| Ok::<_, Infallible>(())).await.expect("free");
        assert_eq!(ran, Once::Ran(()));
        let defaults = LockOptions::new().class("orders");
        let locks = locks.clone().with_defaults(defaults);
        let ticket = locks.mutex("d").lock().await.expect("free");
        let ticket = ticket.detach(Duration::from_secs(9)).await.expect("memory can");
        drop(locks.resume(&ticket).await.expect("detached"));
    });
    let lines = log.0.lock();
    let held: Vec<_> = lines.iter().filter(|line| line.starts_with("dlock_holding")).collect();
    // Two of each hold, and a mark beside its lock.
    assert_eq!(held.len(), 2 * (1 + 1 + 2 + 1 + 2 + 2), "{held:#?}");
    let of_class: Vec<_> = held.iter().filter(|line| line.contains("class=orders,")).collect();
    assert_eq!(of_class.len(), held.len(), "{held:#?}");
}

#[test]
fn the_page_lists_every_metric_and_the_alerts_name_no_other() {
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("dlock_")).map(|word| word.replace("_bucket", "")).collect()
    };
    let code = names(include_str!("../src/engine/observe.rs"));
    assert!(code.len() > 5, "{code:?}");
    assert_eq!(names(include_str!("../../docs/metrics.md")), code);
    let alerts = names(include_str!("../../docs/alerts.yml"));
    assert!(!alerts.is_empty() && alerts.is_subset(&code), "{alerts:?}");
}
