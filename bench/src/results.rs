//! Results of measurements, which the process of a part passes to its parent in a file.

use std::{
    cell::RefCell,
    collections::HashMap,
    fs::{self, File},
    io::Write,
    path::Path,
};

use serde::{Deserialize, Serialize};

use crate::{
    arguments::Part,
    contest::Outcome,
    figures::Figures,
    targets::{self, Target},
};

/// The result of one measurement, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measured {
    /// The values of all rounds.
    Value { median: f64, least: f64, greatest: f64 },
    /// The reason why there is no value.
    Missing(String),
}

/// The last result of each target, by the target's id.
pub(crate) type ResultsById = HashMap<String, Measured>;

/// One line of a file of results.
#[derive(Debug, Serialize, Deserialize)]
struct ResultLine {
    target: String,
    #[serde(flatten)]
    measured: Measured,
}

/// The file of results of one process.
#[derive(Debug)]
pub(crate) struct Results(RefCell<File>);

impl Results {
    /// Appends to a file, which is created if it does not exist.
    pub(crate) fn append_to(path: &Path) -> Outcome<Self> {
        Ok(Self(RefCell::new(File::options().append(true).create(true).open(path)?)))
    }

    /// Records the values of all rounds of a target.
    pub(crate) fn measured(&self, target: &Target, figures: &Figures) -> Outcome {
        let [median, least, greatest] = [0.5, 0.0, 1.0].map(|share| figures.quantile(share));
        if median.is_nan() {
            return self.missing(target, "there is no value to compare with");
        }
        self.write(target, Measured::Value { median, least, greatest })
    }

    /// Records the value of a target that is measured once.
    pub(crate) fn measured_once(&self, target: &Target, value: f64) -> Outcome {
        self.measured(target, &[value].into_iter().collect())
    }

    /// Records why a target was not measured.
    pub(crate) fn missing(&self, target: &Target, reason: &str) -> Outcome {
        self.write(target, Measured::Missing(reason.to_owned()))
    }

    /// Records and prints why a part was not measured.
    pub(crate) fn part_missing(&self, part: Part, reason: &str) -> Outcome {
        println!("{part}: not measured, {reason}");
        targets::of(part).try_for_each(|target| self.missing(target, reason))
    }

    fn write(&self, target: &Target, measured: Measured) -> Outcome {
        let line = serde_json::to_string(&ResultLine { target: target.id.to_owned(), measured })?;
        // One write, so that no line is cut off if the process is killed.
        Ok(self.0.borrow_mut().write_all(format!("{line}\n").as_bytes())?)
    }
}

/// Reads a file of results.
pub(crate) fn read(path: &Path) -> Outcome<ResultsById> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut results = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let ResultLine { target, measured } =
            serde_json::from_str(line).map_err(|error| format!("{}:{number}: {error}", path.display()))?;
        results.insert(target, measured);
    }
    Ok(results)
}
