//! The report of a run, as text and as JSON, and the files of `--report`.

mod timeline;

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    fs, io,
    path::Path,
    time::Duration,
};

use serde::Serialize;

use super::{check::Facts, clock::nanos, excerpt, record::Record};
use crate::history::Violation;

/// File of the events in the folder of a report.
pub(super) const HISTORY: &str = "history.jsonl";

/// Number of transient errors that the text lists.
const MOST_ERRORS: usize = 5;

/// Results of a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Command line without secrets.
    pub(super) command: String,
    pub(super) store: String,
    pub(super) seed: u64,
    pub(super) clients: usize,
    pub(super) tasks: usize,
    pub(super) names: usize,
    pub(super) kinds: Vec<String>,
    pub(super) ttl_seconds: f64,
    pub(super) seconds: f64,
    pub(super) acquisitions: Acquisitions,
    pub(super) faults: BTreeMap<&'static str, usize>,
    /// Transient errors, and how often each occurred.
    pub(super) errors: BTreeMap<String, usize>,
    /// Violations of each rule.
    pub(super) violations: Vec<RuleReport>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Acquisitions {
    pub(super) requested: usize,
    pub(super) granted: usize,
    pub(super) granted_per_second: f64,
    pub(super) waited_in_queue: usize,
    pub(super) released: usize,
    pub(super) dropped: usize,
    pub(super) killed: usize,
    pub(super) lost: usize,
    /// Losses of a client that had no fault in the time before.
    pub(super) lost_without_fault: usize,
    pub(super) longest_wait_seconds: f64,
}

/// Violations of one rule.
#[derive(Debug, Serialize)]
pub(super) struct RuleReport {
    pub(super) rule: String,
    pub(super) count: usize,
    /// The violation with the shortest excerpt.
    pub(super) example: String,
    pub(super) excerpt: Vec<String>,
}

/// Parameters of a run that only the report shows.
#[derive(Clone, Debug)]
pub(super) struct Title {
    pub(super) command: String,
    pub(super) store: String,
    pub(super) seed: u64,
    pub(super) clients: usize,
    pub(super) tasks: usize,
}

impl Report {
    pub(super) fn new(title: Title, record: &Record, facts: &Facts, violations: &[Violation]) -> Self {
        let mut faults = BTreeMap::new();
        for fault in &record.faults {
            *faults.entry(fault.kind.name()).or_default() += 1;
        }
        let rules = excerpt::by_rule(violations, record).into_iter().map(|(rule, violations)| RuleReport {
            rule: rule.to_string(),
            count: violations.len(),
            example: violations[0].what.clone(),
            excerpt: excerpt::of(violations[0], record, &facts.names, facts.start),
        });
        let mut kinds: Vec<_> = facts.names.iter().flat_map(|name| &name.kinds).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let Title { command, store, seed, clients, tasks } = title;
        Self {
            command,
            store,
            seed,
            clients,
            tasks,
            names: facts.names.len(),
            kinds: kinds.into_iter().map(ToString::to_string).collect(),
            ttl_seconds: facts.ttl.as_secs_f64(),
            seconds: Duration::from_nanos(facts.end - facts.start).as_secs_f64(),
            acquisitions: Acquisitions::of(record, facts),
            faults,
            errors: record.errors.clone(),
            violations: rules.collect(),
        }
    }

    pub(super) fn has_violations(&self) -> bool {
        !self.violations.is_empty()
    }

    /// Writes the files of the report into a folder, beside the [history](HISTORY).
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn write(&self, folder: &Path, record: &Record, facts: &Facts) -> io::Result<()> {
        fs::write(folder.join("report.txt"), self.to_string())?;
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(folder.join("report.json"), json)?;
        fs::write(folder.join("timeline.svg"), timeline::draw(record, facts))
    }
}

impl Acquisitions {
    fn of(record: &Record, facts: &Facts) -> Self {
        let count = |has: &dyn Fn(&super::record::Acquisition) -> bool| {
            record.acquisitions.iter().filter(|acquisition| has(acquisition)).count()
        };
        let granted = count(&|acquisition| acquisition.granted.is_some());
        let waits = record.acquisitions.iter().map(|acquisition| {
            acquisition.waited_until().unwrap_or(facts.end).saturating_sub(acquisition.began)
        });
        let seconds = Duration::from_nanos(facts.end - facts.start).as_secs_f64();
        Self {
            requested: record.acquisitions.len(),
            granted,
            granted_per_second: granted as f64 / seconds.max(f64::EPSILON),
            waited_in_queue: count(&|acquisition| {
                acquisition.queued.is_some_and(|queued| queued.waits.is_some())
            }),
            released: count(&|acquisition| acquisition.released.is_some()),
            dropped: count(&|acquisition| {
                acquisition.releases.is_some()
                    && acquisition.released.is_none()
                    && acquisition.ended.is_none()
            }),
            killed: count(&|acquisition| acquisition.granted.is_some() && acquisition.killed.is_some()),
            lost: count(&|acquisition| acquisition.lost.is_some()),
            lost_without_fault: count(&|acquisition| {
                acquisition.lost.is_some_and(|(at, _)| {
                    let from = at.saturating_sub(nanos(facts.memory));
                    let affects =
                        |fault: &super::record::Fault| fault.affects(acquisition.process.client, from, at);
                    !record.faults.iter().any(affects)
                })
            }),
            longest_wait_seconds: waits.max().map_or(0.0, |longest| longest as f64 / 1e9),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Acquisitions { requested, granted, granted_per_second, waited_in_queue, released, .. } =
            self.acquisitions;
        let Acquisitions { dropped, killed, lost, lost_without_fault, longest_wait_seconds, .. } =
            self.acquisitions;
        writeln!(f, "command        {}", self.command)?;
        writeln!(f, "store          {}", self.store)?;
        writeln!(f, "seed           {}", self.seed)?;
        let (clients, tasks, names) = (self.clients, self.tasks, self.names);
        writeln!(f, "load           {clients} processes with {tasks} tasks each, {names} locks")?;
        writeln!(f, "kinds          {}; ttl {} s", self.kinds.join(", "), self.ttl_seconds)?;
        writeln!(f, "duration       {:.1} s", self.seconds)?;
        writeln!(f, "acquisitions   {granted} of {requested} requests granted, {granted_per_second:.1}/s")?;
        writeln!(f, "               {waited_in_queue} waited, at most {longest_wait_seconds:.1} s")?;
        writeln!(f, "               {released} released, {dropped} dropped, {killed} ended by a kill")?;
        writeln!(f, "losses         {lost}, of which {lost_without_fault} without a fault before")?;
        let faults: Vec<_> = self.faults.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let faults = if faults.is_empty() { "none".to_owned() } else { faults.join(", ") };
        writeln!(f, "faults         {faults}")?;
        let mut errors: Vec<_> = self.errors.iter().map(|(error, count)| (*count, error)).collect();
        errors.sort_unstable_by(|a, b| b.cmp(a));
        for (count, error) in errors.into_iter().take(MOST_ERRORS) {
            writeln!(f, "errors         {count}: {error}")?;
        }
        let count: usize = self.violations.iter().map(|rule| rule.count).sum();
        writeln!(f, "violations     {count}")?;
        for RuleReport { rule, count, example, excerpt } in &self.violations {
            writeln!(f, "\n{count}: {rule}\n  {example}")?;
            for line in excerpt {
                writeln!(f, "  {line}")?;
            }
        }
        if self.has_violations() {
            let mut hint = String::new();
            write!(hint, "\nThe seed repeats the faults and the choices of the tasks: --seed {}", self.seed)?;
            writeln!(f, "{hint}")?;
        }
        Ok(())
    }
}
