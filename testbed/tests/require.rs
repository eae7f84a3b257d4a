//! The names that the suite accepts in `DLOCK_REQUIRE` are those of this folder's servers and
//! programs.

use std::{collections::BTreeSet, fs, io};

use dlock_conformance::REQUIRABLE;

/// Names of stores and features that need neither a server nor a program.
const WITHOUT_SERVER: [&str; 4] = ["all", "sqlite", "redlock", "users"];

#[test]
fn every_server_and_every_program_may_be_required_and_nothing_else() -> io::Result<()> {
    let mut expected: BTreeSet<_> = WITHOUT_SERVER.map(str::to_owned).into();
    for line in include_str!("../images/official").lines() {
        expected.extend(line.split(' ').next().map(str::to_owned));
    }
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/peers"))? {
        let path = entry?.path();
        if path.join("build").is_file() {
            expected.extend(path.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    let accepted: BTreeSet<_> = REQUIRABLE.map(str::to_owned).into();
    assert_eq!(
        accepted, expected,
        "`REQUIRABLE` in conformance/src/fixture.rs lacks a name, or has one too many"
    );
    assert_eq!(REQUIRABLE.len(), accepted.len(), "`REQUIRABLE` has a name twice");
    Ok(())
}
