//! `dlock leader`: who leads an election.

use std::ffi::OsString;

use dlock::{Leader, LockName, Locks, Observed, Token};
use serde::Serialize;

use crate::{
    args::StoreArg,
    choice::Stores,
    exit::{NO, OK, Outcome},
    json, output, show,
    signals::Signals,
    store, values,
};

/// Options of `leader`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// The election's name
    name: OsString,

    /// Prints the present state, and then each change, one per line, until a signal ends dlock
    ///
    /// A line is `leader WHO`, `vacant` or `unknown`.
    #[arg(long)]
    watch: bool,

    /// Prints a JSON object, or with --watch one per line; docs/json.md explains its fields
    #[arg(long)]
    json: bool,
}

/// The state of an election, as JSON.
#[derive(Serialize)]
struct Fields<'a> {
    name: &'a str,
    state: &'static str,
    who: Option<&'a str>,
    term: Option<u64>,
    /// Seconds since the last reply of the store. `None` if the state is known.
    unknown_for: Option<f64>,
}

/// Prints the leader. Returns [`NO`] if there is none.
pub(crate) async fn leader(stores: &Stores<'_>, args: Args) -> Outcome {
    let name = values::name(&args.name)?;
    if args.watch {
        return watch(stores, &name, args.json).await;
    }
    let read = async |locks: &Locks| locks.election(&name).leader().await;
    let leader = store::with_store(stores, Some(name.as_str()), read).await?;
    let is_vacant = leader.is_none();
    let state = leader.map_or(Observed::Vacant { after: None }, Observed::Leader);
    if args.json {
        output::print(json::text(fields(&name, &state))?)?;
    } else if let Observed::Leader(Leader { who, .. }) = &state {
        output::print(show::printable(who) + "\n")?;
    }
    Ok(if is_vacant { NO } else { OK })
}

/// Prints the state and each change, until a signal arrives.
async fn watch(stores: &Stores<'_>, name: &LockName, as_json: bool) -> Outcome {
    let mut signals = Signals::listen()?;
    let locks = signals.unless(store::connect(stores, name.as_str())).await?;
    let printing = async {
        let mut observer = locks.election(name).observe().await?;
        loop {
            let state = observer.next().await;
            output::print_all(if as_json { json::line(fields(name, &state))? } else { line(&state) }).await?;
        }
    };
    let outcome = signals.unless(printing).await;
    store::close(&locks).await;
    outcome
}

fn line(state: &Observed) -> String {
    match state {
        Observed::Leader(Leader { who, .. }) => format!("leader {}\n", show::printable(who)),
        Observed::Vacant { .. } => "vacant\n".to_owned(),
        Observed::Unknown { .. } => "unknown\n".to_owned(),
    }
}

fn fields<'a>(name: &'a LockName, state: &'a Observed) -> Fields<'a> {
    let fields = Fields { name: name.as_str(), state: "vacant", who: None, term: None, unknown_for: None };
    match state {
        Observed::Leader(Leader { who, term, .. }) => {
            Fields { state: "leader", who: Some(who), term: term.map(Token::get), ..fields }
        }
        Observed::Vacant { .. } => fields,
        Observed::Unknown { since } => {
            Fields { state: "unknown", unknown_for: Some(since.elapsed().as_secs_f64()), ..fields }
        }
    }
}
