//! One run: it prepares the faults, starts the clients, injects, records, and checks.

use std::{
    env,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use dlock_core::{
    Guard, Kind, LockOptions, Locks, Registry,
    driver::{Info, StoreUrl},
};
use fastrand::Rng;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};

use super::{
    args::Args,
    check::{self, Facts},
    client::describe,
    clock,
    faults::{FaultKind, Schedule, disk::Disk, inject::inject, wall_clock::WallClocks},
    fleet::Fleet,
    leftovers,
    plan::{self, Plan},
    record::Record,
    relay::{Relay, Route},
    report::{HISTORY, Report, Title},
    say,
};

/// Interval of the lines about the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Time that the store has beyond its memory to delete the last claims.
const CLEANUP_TIME: Duration = Duration::from_secs(1);

/// Runs the tool.
///
/// # Errors
/// The reason why the run is not possible.
pub(super) async fn run(registry: &Registry, args: Args) -> Result<Report, String> {
    let url: StoreUrl = args.store.parse().map_err(text)?;
    let locks = connect(registry, &args.store).await?;
    let kinds = kinds(&args, locks.info())?;
    let ttl = args.ttl.clamp(*locks.info().ttl.start(), *locks.info().ttl.end());
    let memory = ttl.max(locks.info().session.unwrap_or_default());
    let seed = args.seed.unwrap_or_else(|| Rng::new().u64(..));
    // No other run has these names, so that runs on one store do not disturb each other.
    let prefix = format!("soak-{seed:x}-{:x}", clock::now());
    let held = format!("{prefix}-held");
    let plan = Plan {
        url: args.store.clone(),
        seed,
        tasks: args.tasks as usize,
        names: plan::names(&prefix, args.number_of_names(), &kinds),
        ttl,
        // Readers share a lock.
        held_by_coordinator: (kinds != [Kind::Read]).then(|| held.clone()),
    };
    let names = plan.names.clone();
    let clients = usize::from(args.clients);
    let schedule =
        Schedule { kinds: args.fault_kinds(), clients, ttl, span: args.span, calm: memory + args.slack * 2 };
    let program = env::current_exe().map_err(text)?;
    let record = Record::new(args.report.as_deref().map(log).transpose().map_err(text)?);
    let mut fleet = Fleet::new(program, plan.clone(), clients, record);
    fleet.end_limit = plan.longest_wait() + plan.longest_hold() + memory * 2 + args.slack;
    prepare_faults(&mut fleet, &schedule.kinds, &args.store, &url, clients).await?;
    let fleet = Arc::new(fleet);

    let guard = hold(&locks, &kinds, &held).await?;
    let command = command(&args.store, &url);
    let title = Title { command, store: url.to_string(), seed, clients, tasks: plan.tasks };
    say(&format!(
        "seed {seed}, {clients} processes with {} tasks each on {} locks of {url}",
        plan.tasks,
        names.len()
    ));
    let mut supervisors = JoinSet::new();
    for client in 0..clients {
        supervisors.spawn(Arc::clone(&fleet).supervise(client));
    }
    let drawn = schedule.draw(&mut Rng::with_seed(seed));
    let result = conduct(&fleet, &mut supervisors, guard, args.span, drawn).await;
    // After an error the clients and faults end too.
    fleet.stop();
    while let Some(ended) = supervisors.join_next().await {
        result_of(ended)?;
    }
    let (start, end) = result?;
    locks.close().await;

    say("all clients have ended; looking for leftovers");
    sleep(memory + CLEANUP_TIME).await;
    let fresh = connect(registry, &args.store).await?;
    let left = leftovers::find(&fresh, &names).await;
    fresh.close().await;

    let mut record = fleet.record();
    record.noted.extend(left);
    record.flush().map_err(text)?;
    let facts = Facts { names, ttl, memory, slack: args.slack, start, end };
    let violations = check::all(&record, &facts);
    let report = Report::new(title, &record, &facts, &violations);
    if let Some(folder) = &args.report {
        report.write(folder, &record, &facts).map_err(text)?;
        say(&format!("the report is in {}", folder.display()));
    }
    Ok(report)
}

/// Lets the clients work for `span`, with faults. Returns the start and the end.
async fn conduct(
    fleet: &Fleet,
    supervisors: &mut JoinSet<Result<(), String>>,
    guard: Guard,
    span: Duration,
    schedule: Vec<super::faults::Planned>,
) -> Result<(clock::Nanos, clock::Nanos), String> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(text)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(text)?;
    let work = async {
        fleet.connected().await;
        if let Some(client) = fleet.relays.iter().position(|relay| !relay.is_used()) {
            return Err(format!(
                "client {client} has connected, but not through its relay; omit `cut` and `late`"
            ));
        }
        guard.release().await.map_err(text)?;
        say("all clients have connected");
        let (start, started) = (clock::now(), Instant::now());
        let faults = async {
            inject(fleet, schedule, started).await?;
            // The clients continue until the end of the run.
            fleet.stopped().await;
            Ok::<_, String>(())
        };
        tokio::pin!(faults);
        tokio::select! {
            result = &mut faults => result?,
            () = sleep(span) => {}
            () = progress(fleet, started) => {}
            _ = interrupt.recv() => say("interrupted"),
            _ = terminate.recv() => say("interrupted"),
        }
        let end = clock::now();
        fleet.stop();
        faults.await?;
        Ok((start, end))
    };
    tokio::select! {
        result = work => result,
        // A client that ends during the run is recorded as a violation, or cannot use the store.
        error = first_error(supervisors) => Err(error),
    }
}

/// Waits for the first supervisor that fails.
async fn first_error(supervisors: &mut JoinSet<Result<(), String>>) -> String {
    loop {
        match supervisors.join_next().await {
            Some(ended) => {
                if let Err(error) = result_of(ended) {
                    return error;
                }
            }
            None => std::future::pending().await,
        }
    }
}

fn result_of(ended: Result<Result<(), String>, tokio::task::JoinError>) -> Result<(), String> {
    ended.unwrap_or_else(|error| Err(error.to_string()))
}

/// Prints the progress at intervals, without end.
async fn progress(fleet: &Fleet, started: Instant) {
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut before = 0;
    let mut before_at = started;
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let line = {
            let record = fleet.record();
            let rate = (record.grants - before) as f64 / (now - before_at).as_secs_f64();
            before = record.grants;
            let mut kinds: Vec<_> = record.faults.iter().map(|fault| fault.kind).collect();
            kinds.sort_unstable();
            let faults = kinds.chunk_by(|a, b| a == b).map(|kind| format!("{} {}", kind.len(), kind[0]));
            let faults = faults.collect::<Vec<_>>().join(", ");
            let faults = if faults.is_empty() { "none".to_owned() } else { faults };
            format!(
                "{:.0} s: {} acquisitions, {rate:.0}/s; {} lost; faults: {faults}",
                (now - started).as_secs_f64(),
                record.grants,
                record.losses
            )
        };
        before_at = now;
        say(&line);
    }
}

async fn connect(registry: &Registry, url: &str) -> Result<Locks, String> {
    registry.connect(url).await.map_err(|error| describe(&error))
}

/// Returns the kinds of the run, in the order in which names have them.
fn kinds(args: &Args, info: &Info) -> Result<Vec<Kind>, String> {
    for kind in &args.kinds {
        info.check_kind(*kind).map_err(text)?;
    }
    let is_chosen = |kind: &&Kind| args.kinds.is_empty() || args.kinds.contains(kind);
    let kinds: Vec<_> = info.kinds.iter().filter(is_chosen).copied().collect();
    if kinds.is_empty() { Err(format!("{} grants no lock", info.store)) } else { Ok(kinds) }
}

/// Prepares relays, clocks and the disk for the faults.
async fn prepare_faults(
    fleet: &mut Fleet,
    kinds: &[FaultKind],
    text_of_url: &str,
    url: &StoreUrl,
    clients: usize,
) -> Result<(), String> {
    let mut refused = Vec::new();
    if let Some(kind) = kinds.iter().find(|kind| kind.needs_relay()) {
        match Route::of(text_of_url, url).await {
            Ok(route) => {
                for _ in 0..clients {
                    fleet.relays.push(Relay::start(&route).await.map_err(text)?);
                }
            }
            Err(reason) => refused.push(format!("`{kind}`: {reason}")),
        }
    }
    if kinds.contains(&FaultKind::Clock) {
        match WallClocks::new() {
            Ok(clocks) => {
                for client in 0..clients {
                    clocks.step(client, 0).map_err(text)?;
                }
                fleet.clocks = Some(clocks);
            }
            Err(reason) => refused.push(reason),
        }
    }
    if kinds.contains(&FaultKind::Full) {
        match Disk::of(url) {
            Ok(disk) => fleet.disk = Some(disk),
            Err(reason) => refused.push(reason),
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(refusal(&refused, text_of_url, url).await) }
}

/// Returns the error for faults that cannot be injected, with those that can.
async fn refusal(refused: &[String], text_of_url: &str, url: &StoreUrl) -> String {
    let mut possible = vec![FaultKind::Pause, FaultKind::Kill];
    if Route::of(text_of_url, url).await.is_ok() {
        possible.extend([FaultKind::Cut, FaultKind::Late]);
    }
    if WallClocks::new().is_ok() {
        possible.push(FaultKind::Clock);
    }
    if Disk::of(url).is_ok() {
        possible.push(FaultKind::Full);
    }
    let possible: Vec<_> = possible.into_iter().map(FaultKind::name).collect();
    format!("{}; possible with `{url}`: {}", refused.join("; "), possible.join(", "))
}

/// Takes the lock that no client must be granted.
async fn hold(locks: &Locks, kinds: &[Kind], name: &str) -> Result<Guard, String> {
    // In this order, because the clients request the first family of kinds that the run has.
    let exclusive = [Kind::Mutex, Kind::Fair, Kind::Write].into_iter().find(|kind| kinds.contains(kind));
    let lock = locks.of(exclusive.unwrap_or(kinds[0]), name);
    let held = lock.try_lock(&LockOptions::new()).await.map_err(|error| describe(&error))?;
    held.ok_or_else(|| format!("`{name}` is taken, although its name is new"))
}

/// Creates the folder of the report, and the file of the history in it.
fn log(folder: &Path) -> io::Result<Box<dyn Write + Send>> {
    fs::create_dir_all(folder)?;
    Ok(Box::new(BufWriter::new(File::create(folder.join(HISTORY))?)))
}

/// Returns the command line, with the URL as it may be shown.
fn command(store: &str, url: &StoreUrl) -> String {
    let shown = url.to_string();
    let words = env::args().map(|word| word.replace(store, &shown));
    words.collect::<Vec<_>>().join(" ")
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
