//! The pages that users read first: the front page and the book. Every code block is run, compiled
//! or parsed, and every link leads somewhere.
//!
//! The first line of a block says how it is tested:
//!
//! | first line | test |
//! |---|---|
//! | `sh` | bash runs the block and ends with status 0. The blocks of a page share a folder and a store |
//! | `sh status:75` | bash ends with this status |
//! | `sh with:sqlite3` | the block is run if this program is in the `PATH` |
//! | `sh with:redis` | the block is run on a Redis server, whose URL replaces `redis://localhost` |
//! | `text output` | the block above prints this text. `…` stands for any text within a line |
//! | `crontab`, `ini`, `yaml` | the file is parsed, and its commands are run |
//! | `toml` | `dlock/tests/config_page.rs` reads the configuration |
//! | `toml cargo` | the packages and features of the dependencies exist |
//! | `rust` | a doc test of the crate `dlock` runs the block |
//! | `LANGUAGE no-run: REASON` | none; the block is reported as an ignored test, with the reason |
//!
//! In a block that is run, each program `./NAME` and `/usr/local/bin/NAME` is a script that prints
//! its name and its arguments.
#![cfg(unix)]
#![allow(clippy::disallowed_methods, reason = "the tests start processes, not tasks")]
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod examples;
mod files;
mod links;
mod page;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../cli/place.rs"]
mod place;
mod run;
#[allow(dead_code, reason = "each test binary uses a part of it")]
#[path = "../cli/server.rs"]
mod server;

use std::process::ExitCode;

use page::{Page, pages_in, root};

fn main() -> ExitCode {
    let pages = pages_with_tests();
    dlock_conformance::run_tests(
        [links::tests(), examples::tests()].into_iter().chain(pages.iter().map(run::trials)),
    )
}

/// The front page, and the pages of the book.
fn pages_with_tests() -> Vec<Page> {
    let mut pages = pages_in("docs/book/src");
    pages.push(Page::read(root().join("README.md")));
    pages
}
