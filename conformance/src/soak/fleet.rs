//! The client processes of a run. A supervisor for each client starts its process, records its events,
//! restarts it after a kill, and ends it with the run.

use std::{io, path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    CLIENT,
    clock::{self, Nanos},
    event::Event,
    faults::{disk::Disk, wall_clock::WallClocks},
    plan::Plan,
    record::{ProcessId, Record},
    relay::Relay,
};
use crate::history::{Rule, Violation};

/// Longest time for a client to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Pause before a client that could not connect after its restart is started once more.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// All clients, and what faults act on.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) program: PathBuf,
    /// Plan of all clients, with the URL of the store.
    pub(super) plan: Plan,
    /// Longest time from the end of the run to the end of a client.
    pub(super) end_limit: Duration,
    /// The relays of each client, if the faults need them.
    pub(super) relays: Vec<Relay>,
    pub(super) clocks: Option<WallClocks>,
    pub(super) disk: Option<Disk>,
    slots: Vec<Slot>,
    record: Mutex<Record>,
    stop: watch::Sender<bool>,
}

/// The present process of one client.
#[derive(Debug)]
struct Slot {
    process: Mutex<Present>,
    /// Number of processes of this client that have connected.
    connected: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Present {
    /// `None` while there is no process, and from before its exit status is read, because its id may
    /// belong to another process from then on.
    pid: Option<Pid>,
    kill: Option<Kill>,
}

#[derive(Clone, Copy, Debug)]
struct Kill {
    /// Time before the kill.
    at: Nanos,
    restart_after: Duration,
}

/// A process that was started, with its pipes.
struct Started {
    child: Child,
    /// The process ends when this is dropped.
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Fleet {
    pub(super) fn new(program: PathBuf, plan: Plan, clients: usize, record: Record) -> Self {
        let slot = |_| Slot { process: Mutex::default(), connected: watch::Sender::new(0) };
        Self {
            program,
            plan,
            end_limit: Duration::ZERO,
            relays: Vec::new(),
            clocks: None,
            disk: None,
            slots: (0..clients).map(slot).collect(),
            record: Mutex::new(record),
            stop: watch::Sender::new(false),
        }
    }

    /// Returns the record. Hold it briefly, because all clients write to it.
    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock()
    }

    /// Ends the run. Every fault and every client then ends.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits for the end of the run.
    pub(super) async fn stopped(&self) {
        self.stop.subscribe().wait_for(|stopped| *stopped).await.ok();
    }

    /// Waits for this time, or until the run ends.
    pub(super) async fn sleep(&self, span: Duration) {
        tokio::select! {
            () = sleep(span) => {}
            () = self.stopped() => {}
        }
    }

    /// Waits until every client has connected, or the run ends.
    pub(super) async fn connected(&self) {
        for slot in &self.slots {
            self.connected_more_often(slot, 0).await;
        }
    }

    async fn connected_more_often(&self, slot: &Slot, count: u32) {
        let mut connected = slot.connected.subscribe();
        tokio::select! {
            _ = connected.wait_for(|connected| *connected > count) => {}
            () = self.stopped() => {}
        }
    }

    /// Sends a signal to the process of a client, if there is one.
    pub(super) fn signal(&self, client: usize, signal: Signal) {
        if let Some(pid) = self.slots[client].present().pid {
            // The process may have ended by itself. It is not reaped yet, so the id is still its own.
            kill_process(pid, signal).ok();
        }
    }

    /// Kills the process of a client, and waits until the next one has connected.
    pub(super) async fn kill(&self, client: usize, restart_after: Duration) {
        let slot = &self.slots[client];
        let connected = *slot.connected.borrow();
        {
            let mut present = slot.present();
            let Some(pid) = present.pid else { return };
            present.kill = Some(Kill { at: clock::now(), restart_after });
            kill_process(pid, Signal::KILL).ok();
        }
        self.connected_more_often(slot, connected).await;
    }

    /// Runs the processes of a client, one after the other, until the run ends.
    ///
    /// # Errors
    /// If a process cannot be started, or the first one cannot use the store.
    pub(super) async fn supervise(self: Arc<Self>, client: usize) -> Result<(), String> {
        let slot = &self.slots[client];
        let mut restarts = 0;
        loop {
            let process = ProcessId { client, restarts };
            let failed = |error: io::Error| format!("client {process} cannot be started: {error}");
            let mut started = self.start(process).await.map_err(failed)?;
            slot.present().pid = started.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
            let readiness = self.readiness(&mut started).await;
            if readiness.is_ok() {
                slot.connected.send_modify(|count| *count += 1);
                self.follow(process, &mut started).await;
            } else {
                started.child.start_kill().ok();
            }
            let kill = {
                let mut present = slot.present();
                present.pid = None;
                present.kill.take()
            };
            let status = started.child.wait().await.map_err(failed)?;
            let is_over = self.is_stopped();
            match (kill, readiness) {
                (Some(kill), _) => {
                    self.record().killed(process, kill.at);
                    self.sleep(kill.restart_after).await;
                }
                // A fault may hit a client that connects again.
                (None, Err(_)) if restarts > 0 && !is_over => self.sleep(RETRY_PAUSE).await,
                (None, Err(_)) if is_over => {}
                (None, Err(error)) => return Err(error),
                (None, Ok(())) if is_over && status.success() => {}
                (None, Ok(())) => {
                    self.note(format!("the process of client {process} ended by itself: {status}"));
                    self.record().killed(process, clock::now());
                    return Ok(());
                }
            }
            if self.is_stopped() {
                return Ok(());
            }
            restarts += 1;
        }
    }

    async fn start(&self, process: ProcessId) -> io::Result<Started> {
        let mut command = Command::new(&self.program);
        // A process group of its own, so that Ctrl-C reaches only the coordinator.
        command.arg(CLIENT).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(clocks) = &self.clocks {
            command.envs(clocks.environment(process.client));
        }
        let mut child = command.spawn()?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let ProcessId { client, restarts } = process;
        let mut plan = self.plan.clone();
        if let Some(relay) = self.relays.get(client) {
            relay.url().clone_into(&mut plan.url);
        }
        plan.seed = plan.seed.wrapping_add((client as u64) << 32).wrapping_add(u64::from(restarts) << 48);
        if restarts > 0 {
            // The coordinator has released it.
            plan.held_by_coordinator = None;
        }
        let mut line = serde_json::to_vec(&plan)?;
        line.push(b'\n');
        stdin.write_all(&line).await?;
        Ok(Started { child, stdin: Some(stdin), lines: BufReader::new(stdout).lines() })
    }

    /// Waits until the process has connected.
    async fn readiness(&self, started: &mut Started) -> Result<(), String> {
        let line = tokio::select! {
            line = timeout(CONNECT_LIMIT, started.lines.next_line()) => line,
            () = self.stopped() => return Err("the run has ended".to_owned()),
        };
        let line = line.map_err(|_| format!("a client does not connect within {CONNECT_LIMIT:?}"))?;
        let line = line.ok().flatten().ok_or("a client process ends before it has connected")?;
        match serde_json::from_str(&line) {
            Ok(Event::Ready { excluded: Some(false) }) => Err(
                "a client process was granted a lock that the coordinator holds, so the processes do not share the store"
                    .to_owned(),
            ),
            Ok(Event::Ready { .. }) => Ok(()),
            Ok(Event::Failed { error }) => Err(format!("a client cannot use the store: {error}")),
            _ => Err(format!(
                "a client process wrote `{line}`; the program must call `soak::main` before it writes to stdout"
            )),
        }
    }

    /// Records the events of the process until it ends.
    async fn follow(&self, process: ProcessId, started: &mut Started) {
        let Started { child, stdin, lines } = started;
        let mut stop = self.stop.subscribe();
        let mut deadline = None;
        loop {
            tokio::select! {
                line = lines.next_line() => match line {
                    Ok(Some(line)) => {
                        if let Err(error) = self.record().line(process, &line) {
                            self.note(format!("client {process} wrote `{line}`: {error}"));
                        }
                    }
                    _ => return,
                },
                () = async { drop(stop.wait_for(|stopped| *stopped).await) }, if deadline.is_none() => {
                    *stdin = None;
                    deadline = Some(Instant::now() + self.end_limit);
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    let limit = self.end_limit;
                    self.note(format!(
                        "the tasks of client {process} do not end within {limit:?} after the end of the run"
                    ));
                    child.start_kill().ok();
                    self.record().killed(process, clock::now());
                    return;
                }
            }
        }
    }

    fn note(&self, what: String) {
        self.record().noted.push(Violation::new(Rule::Progress, what, Vec::new()));
    }
}

impl Slot {
    fn present(&self) -> MutexGuard<'_, Present> {
        self.process.lock()
    }
}
