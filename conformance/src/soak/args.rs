//! Command line arguments.

use std::{path::PathBuf, time::Duration};

use clap::{Parser, value_parser};
use dlock_core::{Kind, driver::duration};

use super::faults::FaultKind;

const AFTER_HELP: &str = "\
Exit statuses: 0 no violation, 1 violations, 2 the run is not possible.
Ctrl-C ends the run early, and the record so far is checked.";

/// Runs clients in processes of their own on one store, injects faults, and checks what the clients
/// recorded: locks that overlap, tokens that decrease, waiters that are overtaken, waits that do not end,
/// and claims that are left behind.
#[derive(Clone, Debug, Parser)]
#[command(name = "soak", max_term_width = 110, after_help = AFTER_HELP)]
pub(super) struct Args {
    /// URL of the store, which several processes must be able to share. Locks of the run have names
    /// of their own.
    #[arg(long, value_name = "URL", env = "DLOCK_STORE", hide_env_values = true)]
    pub(super) store: String,

    /// Time for which the clients request locks.
    #[arg(long = "for", value_name = "TIME", default_value = "1m", value_parser = time)]
    pub(super) span: Duration,

    /// Seed of the faults and of the tasks' choices [default: random]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,

    /// Faults to inject, separated by commas. A fault that the store cannot have is an error.
    #[arg(long, value_name = "FAULTS", value_delimiter = ',', default_values_t = [FaultKind::Pause, FaultKind::Kill])]
    pub(super) faults: Vec<FaultKind>,

    /// Injects no fault.
    #[arg(long, conflicts_with = "faults")]
    pub(super) no_faults: bool,

    /// Number of client processes.
    #[arg(long, value_name = "N", default_value = "4", value_parser = value_parser!(u16).range(1..=256))]
    pub(super) clients: u16,

    /// Number of tasks in each process.
    #[arg(long, value_name = "N", default_value = "16", value_parser = value_parser!(u32).range(1..))]
    pub(super) tasks: u32,

    /// Number of locks [default: a quarter of the number of tasks]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(super) names: Option<u32>,

    /// Kinds of lock, separated by commas [default: all that the store supports]
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kind)]
    pub(super) kinds: Vec<Kind>,

    /// Ttl of all locks.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub(super) ttl: Duration,

    /// Time by which a busy machine may delay a task before that counts as a violation.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub(super) slack: Duration,

    /// Folder for report.txt, report.json, timeline.svg and history.jsonl. It is created if necessary.
    #[arg(long, value_name = "DIR")]
    pub(super) report: Option<PathBuf>,
}

fn time(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Some(time) if !time.is_zero() => Ok(time),
        _ => Err("write for example `10m`, `30s` or `250ms`".to_owned()),
    }
}

fn kind(text: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    Kind::from_name(text).ok_or_else(|| format!("there are: {}", names()))
}

impl Args {
    /// Returns the kinds of fault, each once.
    pub(super) fn fault_kinds(&self) -> Vec<FaultKind> {
        let mut kinds = if self.no_faults { Vec::new() } else { self.faults.clone() };
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// Returns the number of locks.
    pub(super) fn number_of_names(&self) -> usize {
        let tasks = usize::from(self.clients) * self.tasks as usize;
        self.names.map_or((tasks / 4).max(3), |names| names as usize)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(text: &str) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("soak").chain(text.split_whitespace()))
    }

    #[test]
    fn the_definitions_are_valid() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_documented_command_is_accepted() {
        let args =
            parse("--store redis://h:1 --for 10m --seed 7 --faults pause,kill,cut,late,clock,full").unwrap();
        assert_eq!((args.span, args.seed), (Duration::from_secs(600), Some(7)));
        assert_eq!(args.fault_kinds().len(), 6);
        assert_eq!(args.number_of_names(), 16);
    }

    #[test]
    fn faults_are_pause_and_kill_unless_the_command_line_says_otherwise() {
        let faults = |text| parse(text).unwrap().fault_kinds();
        assert_eq!(faults("--store x:"), [FaultKind::Pause, FaultKind::Kill]);
        assert_eq!(faults("--store x: --no-faults"), []);
    }

    #[test]
    fn an_unknown_value_is_refused() {
        for wrong in [
            "",
            "--store x: --for 0s",
            "--store x: --faults fire",
            "--store x: --kinds rope",
            "--store x: --clients 0",
        ] {
            parse(wrong).expect_err(wrong);
        }
    }
}
