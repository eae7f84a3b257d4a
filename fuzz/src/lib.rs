//! Fuzz targets on the stable toolchain. A target is a test in a module `fuzz` beside its parser. It
//! checks a property of inputs that are made from a stored corpus of real ones.
//!
//! ```no_run
//! // As `target!("number")`, whose corpus is `corpus/number.txt`.
//! dlock_fuzz::names!("number").check(|input| {
//!     if let Ok(number) = input.text().parse::<u64>() {
//!         assert_eq!(number.to_string().parse(), Ok(number));
//!     }
//! });
//! ```
//!
//! Random bytes rarely get past the first check of a parser. An input is therefore an entry of the
//! corpus with a few changes, such as a part that is missing, doubled or replaced by a part of another
//! entry. `scripts/fuzz` runs the targets for longer.

mod config;
mod corpus;
mod input;
mod mutation;

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe},
    time::Duration,
};

use bolero::TargetLocation;
pub use config::config_shows_no_password;
pub use input::Input;

/// Limits of a target under `cargo test`. `scripts/fuzz` replaces both.
const INPUTS: usize = 10_000;
const TIME: Duration = Duration::from_millis(400);

/// Names of locks, for targets whose input is a name.
const NAMES: &str = include_str!("../corpus/names.txt");
const NAMES_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/names.txt");

/// A fuzz target and its corpus.
#[derive(Debug)]
pub struct Target {
    location: TargetLocation,
    /// Path of the corpus, for messages.
    file: &'static str,
    corpus: Vec<Vec<u8>>,
}

/// Creates the [`Target`] with this name, whose corpus is `corpus/NAME.txt` in the folder of the
/// crate.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::Target::new(
            $name,
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
            concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $name, ".txt"),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $name, ".txt")),
        )
    };
}

/// Creates a [`Target`] whose corpus is the names of locks.
#[macro_export]
macro_rules! names {
    ($name:literal) => {
        $crate::Target::of_names($name, concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
    };
}

impl Target {
    /// Creates a target of the crate with this manifest. Call [`target!`] instead.
    ///
    /// # Panics
    /// If `corpus`, the content of `file`, is empty or has an invalid escape.
    pub fn new(name: &'static str, manifest: &'static str, file: &'static str, corpus: &str) -> Self {
        let corpus = corpus::parse(corpus).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!corpus.is_empty(), "{file} has no input");
        let location = TargetLocation {
            package_name: "",
            manifest_dir: "",
            module_path: "fuzz",
            // bolero looks for a corpus of its own in the folder of this file.
            file: manifest,
            line: 1,
            item_path: name,
            test_name: Some(name.to_owned()),
        };
        Self { location, file, corpus }
    }

    /// Creates a target whose corpus is the names of locks. Call [`names!`] instead.
    ///
    /// # Panics
    /// If the corpus has an invalid escape.
    pub fn of_names(name: &'static str, manifest: &'static str) -> Self {
        Self::new(name, manifest, NAMES_FILE, NAMES)
    }

    /// Calls `property` with every entry of the corpus and then with changed entries. The property
    /// fails if it panics.
    ///
    /// # Panics
    /// With the smallest input found for which the property fails.
    pub fn check(self, property: impl Fn(&Input)) {
        let Self { location, file, corpus } = self;
        let property = AssertUnwindSafe(property);
        for entry in &corpus {
            let _reporter = Reporter { file, entry };
            property(&Input::of_entry(entry));
        }
        let runs = AssertUnwindSafe(Cell::new(0_u64));
        let counter = RunCounter { name: location.item_path, runs: &runs };
        let counted = unwind_safe(|input: &Input| {
            counter.runs.set(counter.runs.get() + 1);
            property(input);
        });
        bolero::test(location)
            .with_iterations(INPUTS)
            .with_test_time(TIME)
            .with_generator(mutation::Inputs { corpus })
            .for_each(counted);
    }
}

/// States that `property` may be called again after a panic: bolero looks for a smaller input.
fn unwind_safe(property: impl Fn(&Input)) -> impl Fn(&Input) + UnwindSafe + RefUnwindSafe {
    let property = AssertUnwindSafe(property);
    move |input: &Input| {
        let AssertUnwindSafe(property) = &property;
        property(input);
    }
}

/// Names the entry of the corpus for which a property fails.
struct Reporter<'a> {
    file: &'static str,
    entry: &'a [u8],
}

impl Drop for Reporter<'_> {
    #[expect(clippy::print_stderr, reason = "part of the message of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the input is an entry of {}: {}", self.file, corpus::escape(self.entry));
        }
    }
}

/// Prints the number of inputs that a target was run with.
struct RunCounter<'a> {
    name: &'static str,
    runs: &'a Cell<u64>,
}

impl Drop for RunCounter<'_> {
    #[expect(clippy::print_stdout, reason = "shown by `--nocapture` only")]
    fn drop(&mut self) {
        println!("{}: {} inputs", self.name, self.runs.get());
    }
}
