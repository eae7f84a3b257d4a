//! The terms of an election, as the commands of its leaders record them.

use std::{fs::File, io::Read, path::Path};

use rustix::process::Pid;

use crate::place::until;

/// The first line of the command of a leader.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) number: u64,
    pub(super) command: Pid,
    pub(super) dlock: Pid,
    /// State of the previous command at the beginning of this one. A letter, as in `/proc`, or
    /// `ended`.
    pub(super) previous: String,
}

impl Term {
    fn of(line: &str) -> Self {
        let fields: Vec<_> = line.split(' ').collect();
        let [number, command, dlock, previous] = fields[..] else {
            panic!("not a line of a command: {line}")
        };
        let pid = |text: &str| Pid::from_raw(text.parse().unwrap()).unwrap();
        let number = number.parse().unwrap();
        Self { number, command: pid(command), dlock: pid(dlock), previous: previous.to_owned() }
    }
}

/// The lines of all commands, in the order in which they were written.
pub(super) struct Terms {
    file: File,
    /// Beginning of a line whose end was not read.
    part: String,
    pub(super) all: Vec<Term>,
}

impl Terms {
    /// Creates the file, to which the commands append their lines.
    pub(super) fn in_new_file(path: &Path) -> Self {
        File::create(path).unwrap();
        Self { file: File::open(path).unwrap(), part: String::new(), all: Vec::new() }
    }

    /// Returns the newest term.
    pub(super) fn last(&mut self) -> Term {
        self.read();
        self.all.last().expect("no term has begun").clone()
    }

    /// Waits for the command of a term after this one.
    pub(super) fn until_leader_after(&mut self, number: u64) {
        until("there is a new leader", || {
            self.read();
            self.all.last().is_some_and(|term| term.number > number)
        });
    }

    /// Reads new lines, and checks that each belongs to the newest term or begins a later one.
    pub(super) fn read(&mut self) {
        self.file.read_to_string(&mut self.part).unwrap();
        let end = self.part.rfind('\n').map_or(0, |at| at + 1);
        let lines: String = self.part.drain(..end).collect();
        for term in lines.lines().map(Term::of) {
            match self.all.last() {
                Some(last) if last.number == term.number => {
                    assert_eq!(last.command, term.command, "term {} has two commands", term.number);
                }
                Some(last) if last.number > term.number => panic!("{term:?} continues beside {last:?}"),
                _ => self.all.push(term),
            }
        }
    }
}
