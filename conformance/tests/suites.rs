//! A test binary with several suites starts only the selected ones, and reports unavailable stores.
//!
//! Each trial runs this binary again, as a test binary with four suites.

use std::{
    env,
    process::{Command, ExitCode, Output},
};

use async_trait::async_trait;
use dlock_conformance::{Fixture, InProcess, Row, Suite, Unreachable, run_suites, wrap::Habit};
use dlock_core::{Error, Result, driver::Store, memory::MemoryBackend};
use libtest_mimic::{Arguments, Failed, Trial};

/// Environment variable that makes this binary one with several suites.
const SUITES: &str = "DLOCK_TEST_SUITES";

/// A case that runs on every store.
const CASE: &str = "plain::mutex::a_free_lock_is_granted";

/// A store that is available, but refuses every client.
struct Closed;

#[async_trait]
impl Fixture for Closed {
    fn name(&self) -> &str {
        "closed"
    }

    async fn connect(&self) -> Result<Store> {
        Err(Error::Unavailable { store: "closed", source: "the store refuses every client".into() })
    }
}

fn several() -> ExitCode {
    let memory = || InProcess::new("memory", || MemoryBackend::new().into_store());
    run_suites([
        Suite::new("shut", async { Ok(Closed) }),
        Suite::new("gone", async {
            let reason = "nobody has started it".to_owned();
            Err::<Closed, _>(Unreachable { name: "goner".to_owned(), reason })
        }),
        Suite::new("there", async move { Ok(memory()) }),
        Suite::new("short", async move { Ok(memory()) }).in_rows([Row::Plain, Row::Habit(Habit::Deaf)]),
    ])
}

/// Runs this binary with several suites. `required` and `suites` are the values of `DLOCK_REQUIRE`
/// and `DLOCK_SUITES`. Returns its output, and whether it succeeded.
fn run(arguments: &[&str], required: &str, suites: Option<&str>) -> std::io::Result<(String, bool)> {
    let mut command = Command::new(env::current_exe()?);
    command.args(arguments).env(SUITES, "1").env("DLOCK_REQUIRE", required).env_remove("DLOCK_SUITES");
    command.envs(suites.map(|suites| ("DLOCK_SUITES", suites)));
    let Output { status, stdout, stderr } = command.output()?;
    let output = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Ok((output, status.success()))
}

fn a_store_that_is_not_there_is_ignored_with_the_reason() -> std::result::Result<(), Failed> {
    for arguments in [vec!["gone"], vec!["gone::plain::mutex"], vec!["--exact", &format!("gone::{CASE}")]] {
        let (output, passed) = run(&arguments, "redis", None)?;
        assert!(passed && output.contains("gone: ignored, nobody has started it"), "{arguments:?}: {output}");
        assert!(output.contains("0 passed; 0 failed; 1 ignored"), "{arguments:?}: {output}");
    }
    Ok(())
}

fn a_store_that_is_required_and_not_there_fails_whatever_is_chosen_of_its_suite()
-> std::result::Result<(), Failed> {
    for required in ["goner", "all", "redis,goner"] {
        for arguments in [vec!["gone"], vec!["gone::plain::mutex"], vec!["--exact", &format!("gone::{CASE}")]]
        {
            let (output, passed) = run(&arguments, required, None)?;
            assert!(!passed, "{required} {arguments:?}: {output}");
            assert!(output.contains("goner is required, but nobody has started it"), "{required}: {output}");
        }
    }
    let (output, passed) = run(&["gone"], "redis,gonner", None)?;
    assert!(
        !passed && output.contains("DLOCK_REQUIRE names `gonner`"),
        "a misspelt name was not refused: {output}"
    );
    Ok(())
}

fn a_store_that_nobody_can_connect_to_fails_and_the_next_suite_runs() -> std::result::Result<(), Failed> {
    let (output, passed) = run(&[CASE], "", None)?;
    assert!(!passed, "{output}");
    assert!(
        output.contains("no client of closed can connect")
            && output.contains("the store refuses every client"),
        "{output}"
    );
    assert!(output.contains(&format!("there::{CASE}")), "the last suite did not run: {output}");
    Ok(())
}

fn a_suite_that_is_not_chosen_is_not_started() -> std::result::Result<(), Failed> {
    let whole = format!("there::{CASE}");
    let by_name = [
        (vec!["there::plain::mutex::a_free"], None),
        (vec!["--exact", &*whole], None),
        (vec![CASE, "--skip", "shut::", "--skip", "gone::", "--skip", "short::"], None),
        (vec![CASE], Some("there")),
        (vec![CASE], Some("others, there")),
    ];
    for (arguments, suites) in by_name {
        let (output, passed) = run(&arguments, "all", suites)?;
        assert!(passed && output.contains("1 passed; 0 failed"), "{arguments:?}: {output}");
        assert!(!output.contains("gone") && !output.contains("closed"), "{arguments:?}: {output}");
    }
    let (output, passed) = run(&["no such case"], "all", None)?;
    assert!(passed && output.contains("running 0 tests"), "{output}");
    Ok(())
}

fn a_suite_runs_in_the_rows_it_is_given() -> std::result::Result<(), Failed> {
    let in_row = |row: &str| CASE.replace("plain", row);
    for (arguments, runs) in [
        (vec!["--exact".to_owned(), format!("short::{CASE}")], 1),
        (vec!["--exact".to_owned(), format!("short::{}", in_row("deaf"))], 1),
        (vec!["--exact".to_owned(), format!("short::{}", in_row("flaky"))], 0),
        (vec!["mutex::a_free_lock_is_granted".to_owned()], 2),
    ] {
        let arguments = arguments.iter().map(String::as_str).collect::<Vec<_>>();
        let (output, passed) = run(&arguments, "", Some("short"))?;
        assert!(passed && output.contains(&format!("running {runs} test")), "{arguments:?}: {output}");
    }
    Ok(())
}

fn a_suite_runs_in_all_rows_if_that_is_asked_for() -> std::result::Result<(), Failed> {
    let case = format!("short::{}", CASE.replace("plain", "flaky"));
    let (output, passed) = run(&["--exact", &case], "", Some("there, short:all"))?;
    assert!(passed && output.contains("1 passed; 0 failed"), "{output}");
    Ok(())
}

fn main() -> ExitCode {
    if env::var_os(SUITES).is_some() {
        return several();
    }
    let trials = vec![
        Trial::test(
            "a_store_that_is_not_there_is_ignored_with_the_reason",
            a_store_that_is_not_there_is_ignored_with_the_reason,
        ),
        Trial::test(
            "a_store_that_is_required_and_not_there_fails_whatever_is_chosen_of_its_suite",
            a_store_that_is_required_and_not_there_fails_whatever_is_chosen_of_its_suite,
        ),
        Trial::test(
            "a_store_that_nobody_can_connect_to_fails_and_the_next_suite_runs",
            a_store_that_nobody_can_connect_to_fails_and_the_next_suite_runs,
        ),
        Trial::test("a_suite_that_is_not_chosen_is_not_started", a_suite_that_is_not_chosen_is_not_started),
        Trial::test("a_suite_runs_in_the_rows_it_is_given", a_suite_runs_in_the_rows_it_is_given),
        Trial::test(
            "a_suite_runs_in_all_rows_if_that_is_asked_for",
            a_suite_runs_in_all_rows_if_that_is_asked_for,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
