//! `dlock lead`: a command that runs on the elected leader.

use std::{
    ffi::OsString, future::poll_fn, net::SocketAddr, ops::Range, os::unix::process::ExitStatusExt as _,
    pin::pin, process::ExitStatus, task::Poll, time::Duration,
};

use clap::ValueEnum;
use dlock::{Candidate, Election, Error, LockOptions, Locks, Next, Term, Token, Wait, Who, driver::duration};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde::Serialize;
use tokio::sync::Mutex as AsyncMutex;

use crate::{
    args::{StoreArg, Verbosity, WhoArg},
    child::{self, Child},
    choice::Stores,
    exec,
    exit::{self, Failure, Outcome},
    held::{self, Held, OuterHolds},
    output,
    run::{set_environment, with_margin},
    serve::Server,
    signals::Signals,
    store, values,
    wait::WaitLimit,
};

/// Options of `lead`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,

    #[command(flatten)]
    who: WhoArg,

    /// The election's name: up to 1024 bytes of UTF-8 without control characters
    name: OsString,

    /// Time after which another candidate can lead if this dlock no longer renews its term
    /// [default: 30s, or the store's longest]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::ttl)]
    ttl: Option<Duration>,

    /// Stops the command this long before another leader can be elected, if the store is
    /// unreachable; at most half of the ttl [default: the configuration's margin, else --kill-after
    /// plus 1s; none if that is more than a third of the ttl]
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, value_parser = values::duration)]
    margin: Option<Duration>,

    /// Shortest and longest pause before dlock stands again after its command has ended or failed,
    /// or the store was unreachable
    ///
    /// Each failure in a row doubles the pause. After the loss of its term dlock stands again at
    /// once.
    #[arg(long, value_name = "SHORTEST..LONGEST", default_value = "1s..30s", value_parser = values::range)]
    cooldown: Range<Duration>,

    /// Whether dlock stands again after its command has ended by itself
    #[arg(long, value_enum, default_value_t = Restart::OnFailure)]
    restart: Restart,

    /// Answers `GET /leader` at this address: 200 on the leader, 503 on any other host
    ///
    /// The answer is a JSON object; docs/json.md explains its fields.
    #[arg(long, value_name = "ADDR")]
    serve: Option<SocketAddr>,

    /// Time between TERM and KILL for the command of a lost term
    #[arg(long, value_name = "DURATION", allow_negative_numbers = true, default_value = "5s", value_parser = values::duration)]
    kill_after: Duration,

    /// Prints errors only, without a line for each term
    #[arg(short = 'q', long)]
    quiet: bool,

    /// Runs `sh -c TEXT` instead of a command
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    shell: Option<OsString>,

    /// The command and its arguments
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// When a command that has ended is started again, after dlock has resigned and paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Restart {
    /// After every end, except one by HUP
    Always,
    /// After an exit status other than 0, or a signal other than HUP
    OnFailure,
    /// Never: dlock ends when the command has ended by itself
    No,
}

/// A checked command line.
struct Job {
    election: Election,
    who: Who,
    words: Vec<OsString>,
    restart: Restart,
    kill_after: Duration,
    margin: Option<Duration>,
    is_quiet: bool,
    outer: OuterHolds,
    /// Locked while the command runs, which receives the signals then.
    signals: AsyncMutex<Signals>,
    /// Number of the last term of this dlock.
    number: Mutex<Option<Token>>,
}

/// The body of an answer of the server.
#[derive(Serialize)]
pub(crate) struct Status<'a> {
    name: &'a str,
    pub(crate) leading: bool,
    who: &'a str,
    term: Option<u64>,
}

/// The end of the command in one term.
enum End {
    Status(ExitStatus),
    /// The term was lost, and the command has been stopped.
    Lost,
}

/// Runs a command in each term of this host.
pub(crate) async fn lead(stores: &Stores<'_>, args: Args) -> Outcome {
    let words = match args.shell {
        Some(text) => vec!["sh".into(), "-c".into(), text],
        None => args.command,
    };
    if words.is_empty() {
        return Err(Failure::usage(
            "no command; write `dlock lead NAME -- CMD ARGS…` or `dlock lead NAME -c 'shell text'`",
        ));
    }
    let name = values::name(&args.name)?;
    let verbosity = if args.quiet { Verbosity::Quiet } else { Verbosity::Normal };
    let chosen = stores.chosen(Some(name.as_str()))?;
    let outer = OuterHolds::from_env()?;
    let server = args.serve.map(Server::bind).transpose()?;
    let mut signals = Signals::listen()?;
    let activity = format!("dlock lead {name}");
    let connecting =
        store::connect_as(stores, &chosen, &args.who, &activity, WaitLimit::new(None), verbosity);
    let (locks, who) = signals.unless(connecting).await?;
    let election = locks.election(&name);
    let election = args.ttl.into_iter().fold(election, Election::ttl);
    if signals.unless(outer.enter(&locks, &name, election.kind())).await?.is_some() {
        return Err(Failure::usage(format!(
            "lock `{name}` is held by an outer dlock, so this candidate would wait for itself; use another name, or start `dlock lead` outside"
        )));
    }
    let options = args.ttl.map_or_else(LockOptions::new, |ttl| LockOptions::new().ttl(ttl));
    let options = args.margin.into_iter().fold(options, LockOptions::margin);
    let job = Job {
        margin: with_margin(options, args.kill_after, &locks).get_margin(),
        election,
        who,
        words,
        restart: args.restart,
        kill_after: args.kill_after,
        is_quiet: args.quiet,
        outer,
        signals: AsyncMutex::new(signals),
        number: Mutex::new(None),
    };
    let leading = job.run(&locks, args.cooldown);
    let outcome = match server {
        None => leading.await,
        Some(server) => tokio::select! {
            biased;
            outcome = leading => outcome,
            never = server.run(|| job.status()) => match never {},
        },
    };
    store::close(&locks).await;
    outcome
}

impl Job {
    /// Leads until the command has ended for good, or a signal arrives.
    async fn run(&self, locks: &Locks, cooldown: Range<Duration>) -> Outcome {
        // The wait limit of the configuration is for single commands.
        let candidate = self.election.candidate().wait(Wait::Forever);
        let candidate = self.margin.into_iter().fold(candidate, Candidate::margin);
        let candidate = candidate.cooldown(cooldown).on_failure(|error, pause| {
            output::say(&format!("{error}; standing again in {}", duration::text(rounded(pause))));
        });
        let mut outcome = Ok(exit::OK);
        let work = async |term: &Term| {
            *self.number.lock() = term.number();
            let result = self.serve(term, locks).await;
            *self.number.lock() = None;
            self.next(result, term, &mut outcome)
        };
        let leading = candidate.lead_until_stopped(work);
        tokio::select! {
            biased;
            led = leading => match led {
                // The command has ended before the loss was detected.
                Ok(()) | Err(Error::Lost { .. }) => outcome,
                Err(error) => Err(error.into()),
            },
            // Polled last, because the work uses the signals while the command runs.
            signal = self.signal_without_command() => Err(Failure::stopped(signal)),
        }
    }

    /// Runs the command in one term.
    async fn serve(&self, term: &Term, locks: &Locks) -> Outcome<End> {
        let (name, number) = (self.election.name(), term.number().map(Token::get));
        let mut command = exec::tied(&self.words);
        set_environment(&mut command, name, number);
        match number {
            Some(number) => command.env("DLOCK_TERM", number.to_string()),
            None => command.env_remove("DLOCK_TERM"),
        };
        let held = Held::new(locks, self.election.kind(), term);
        command.env(held::VARIABLE, self.outer.clone().with(held)?);
        let mut signals = self.signals.lock().await;
        let mut child = Child::spawn(command, &mut signals)?;
        if !self.is_quiet {
            let number = number.map_or("without a number".to_owned(), |number| number.to_string());
            output::say(&format!("leading `{name}`, term {number}"));
        }
        tokio::select! {
            biased;
            status = child.wait(&mut signals, term) => status.map(End::Status),
            reason = term.lost() => {
                // Before any output, because the command must not run beside the next leader.
                child.terminate();
                Failure::lost(name, reason, "stopping the command, then standing again").printed();
                child.stop(self.kill_after, &mut signals).await?;
                Ok(End::Lost)
            }
        }
    }

    /// Returns what to do after the end of the command. Sets the outcome of dlock if it ends.
    fn next(&self, result: Outcome<End>, term: &Term, outcome: &mut Outcome) -> Result<Next, String> {
        let stopped_by = self.signals.try_lock().ok().and_then(|signals| signals.stopped_by);
        let status = match result {
            Ok(End::Status(status)) => status,
            Ok(End::Lost) => {
                let Some(signal) = stopped_by else { return Ok(Next::Resign) };
                *outcome = Err(Failure::stopped(signal));
                return Ok(Next::Done);
            }
            // The command cannot be executed, on this host at least.
            Err(failure) => {
                *outcome = Err(failure);
                return Ok(Next::Done);
            }
        };
        let restarts = match self.restart {
            Restart::Always => true,
            Restart::OnFailure => !status.success(),
            Restart::No => false,
        };
        // A command that dies of HUP has lost its terminal. One that handles HUP reads its
        // configuration again.
        let is_stopped = stopped_by.is_some() || status.signal() == Some(Signal::HUP.as_raw());
        if is_stopped || !restarts {
            *outcome = child::outcome_of(status);
            return Ok(Next::Done);
        }
        let name = term.name();
        if status.success() {
            return Ok(Next::Resign);
        }
        Err(format!("the command of the leader of `{name}` has ended with status {}", child::code(status)))
    }

    /// Waits for a signal that ends dlock, while no command runs.
    async fn signal_without_command(&self) -> Signal {
        poll_fn(|context| match self.signals.try_lock() {
            Ok(mut signals) => pin!(signals.next_ending()).poll(context),
            Err(_) => Poll::Pending,
        })
        .await
    }

    /// Returns what the server reports.
    fn status(&self) -> Status<'_> {
        let leading = self.election.is_leading();
        Status {
            name: self.election.name().as_str(),
            leading,
            who: self.who.text(),
            term: self.number.lock().filter(|_| leading).map(Token::get),
        }
    }
}

/// Rounds a pause to hundredths of a second, for a message.
fn rounded(pause: Duration) -> Duration {
    Duration::from_millis(u64::try_from(pause.as_millis() / 10 * 10).unwrap_or(u64::MAX))
}
