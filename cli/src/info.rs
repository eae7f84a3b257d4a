//! `dlock info`: which store is used, why, and what it can do.

use std::fmt::Write;

use dlock::{Locks, driver::Info};
use serde::Serialize;

use crate::{
    args,
    choice::Stores,
    exit::{Failure, OK, Outcome},
    json, output, store, values,
};

/// What `--json` prints. `docs/json.md` explains each field.
#[derive(Serialize)]
struct Report {
    store: String,
    why: String,
    /// Absent if the store was not asked, because it is not made yet.
    kinds: Option<Vec<String>>,
    tokens: Option<bool>,
    detaches: Option<bool>,
}

/// Tells which store it is, and asks the store what it can do. Makes none.
pub(crate) async fn info(stores: &Stores<'_>, args: args::Info) -> Outcome {
    let name = args.name.as_deref().map(values::name).transpose()?;
    let chosen = stores.chosen(name.as_ref().map(|name| name.as_str()))?;
    let connected = if chosen.is_unmade() { None } else { Some(chosen.connect(stores.registry).await) };
    let (locks, failure) = match connected {
        None => (None, None),
        Some(Ok(locks)) => (Some(locks), None),
        Some(Err(error)) => (None, Some(Failure::from(error))),
    };
    let asked = locks.as_ref().map(Locks::info);
    output::print(if args.json {
        json::text(Report {
            store: chosen.shown.clone(),
            why: chosen.why,
            kinds: asked.map(kinds),
            tokens: asked.map(|info| info.tokens),
            detaches: asked.map(|info| info.detaches),
        })?
    } else {
        let mut text = format!("store   {}\nwhy     {}\n", chosen.shown, chosen.why);
        let state = match (asked, &failure) {
            (Some(info), _) => {
                let tokens = if info.tokens { "with tokens" } else { "without tokens" };
                format!("locks   {}; {tokens}", kinds(info).join(", "))
            }
            (None, Some(_)) => "locks   the store cannot be asked".to_owned(),
            (None, None) => "locks   none yet; the first one makes the file".to_owned(),
        };
        // Writing to a String cannot fail.
        writeln!(text, "{state}").ok();
        text
    })?;
    if let Some(locks) = &locks {
        store::close(locks).await;
    }
    failure.map_or(Ok(OK), Err)
}

fn kinds(info: &Info) -> Vec<String> {
    info.kinds.iter().map(ToString::to_string).collect()
}
