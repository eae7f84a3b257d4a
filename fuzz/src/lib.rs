//! Fuzz targets on the stable toolchain. A target is a test in a module `fuzz` beside its parser. It
//! checks a property of inputs that are made from a stored corpus of real ones.
//!
//! ```
//! # use dlock_fuzz::Target;
//! # fn numbers() {
//! dlock_fuzz::target!("numbers").check(|input| {
//!     let text = input.text();
//!     if let Ok(number) = text.parse::<u64>() {
//!         assert_eq!(number.to_string().parse(), Ok(number));
//!     }
//! });
//! # }
//! ```
//!
//! Random bytes rarely get past the first check of a parser. An input is therefore an entry of the
//! corpus with a few changes, such as a part that is missing, doubled or replaced by a part of another
//! entry. `scripts/fuzz` runs the targets for longer, and with the guidance of their coverage.

mod corpus;
mod input;
mod mutation;

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe},
    path::Path,
    time::Duration,
};

use bolero::TargetLocation;
pub use input::Input;

/// Limits of a target under `cargo test`. `scripts/fuzz` replaces both.
const INPUTS: usize = 4000;
const TIME: Duration = Duration::from_millis(400);

/// Names of locks, for targets whose input is a name.
const NAMES: &str = include_str!("../corpus/names.txt");

/// A fuzz target and its corpus.
#[derive(Debug)]
pub struct Target {
    location: TargetLocation,
    corpus: Vec<Vec<u8>>,
}

/// Creates the [`Target`] with this name, whose corpus is `corpus/NAME.txt` in the folder of the
/// crate.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::Target::new(
            $name,
            env!("CARGO_MANIFEST_DIR"),
            concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $name, ".txt"),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/", $name, ".txt")),
        )
    };
}

/// Creates a [`Target`] whose corpus is the names of locks.
#[macro_export]
macro_rules! names {
    ($name:literal) => {
        $crate::Target::of_names(
            $name,
            env!("CARGO_MANIFEST_DIR"),
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        )
    };
}

impl Target {
    /// Creates a target. Call [`target!`] instead.
    ///
    /// # Panics
    /// If `corpus` is empty or has an invalid escape.
    pub fn new(
        name: &'static str,
        manifest_dir: &'static str,
        file: &'static str,
        corpus: &'static str,
    ) -> Self {
        let corpus = corpus::parse(corpus).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(!corpus.is_empty(), "{file} has no input");
        let location = TargetLocation {
            package_name: "",
            manifest_dir,
            module_path: "fuzz",
            file,
            line: 1,
            item_path: name,
            test_name: Some(name.to_owned()),
        };
        Self { location, corpus }
    }

    /// Creates a target whose corpus is the names of locks. Call [`names!`] instead.
    ///
    /// # Panics
    /// If the corpus has an invalid escape.
    pub fn of_names(name: &'static str, manifest_dir: &'static str, file: &'static str) -> Self {
        Self::new(name, manifest_dir, file, NAMES)
    }

    /// Calls `property` with every entry of the corpus and then with changed entries. The property
    /// fails if it panics.
    ///
    /// # Panics
    /// With the smallest input found for which the property fails.
    pub fn check(self, property: impl Fn(&Input)) {
        let Self { location, corpus } = self;
        let property = AssertUnwindSafe(property);
        for entry in &corpus {
            let _reporter = Reporter { corpus: location.file, entry };
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
    corpus: &'static str,
    entry: &'a [u8],
}

impl Drop for Reporter<'_> {
    #[expect(clippy::print_stderr, reason = "part of the message of a failed test")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let corpus = Path::new(self.corpus).display();
            eprintln!("the input is an entry of {corpus}: {}", corpus::escape(self.entry));
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
