//! Comparison of results with targets.

use std::fmt;

use crate::{
    arguments::Part,
    results::{Measured, ResultsById},
    targets::{self, Bound, Target},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Met,
    Missed,
    NotMeasured,
}

/// The targets of some parts, with their results.
pub(crate) struct Verdicts(Vec<(&'static Target, Measured)>);

impl Verdicts {
    pub(crate) fn of(parts: &[Part], mut results: ResultsById) -> Self {
        let targets = parts.iter().flat_map(|part| targets::of(*part));
        let rows = targets.map(|target| {
            let no_result = || Measured::Missing("the part has no result".to_owned());
            (target, results.remove(target.id).unwrap_or_else(no_result))
        });
        Self(rows.collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|(target, measured)| judge(target, measured) == verdict).count()
    }
}

/// Compares the median of the rounds with the bound.
pub(crate) fn judge(target: &Target, measured: &Measured) -> Verdict {
    let Measured::Value { median, .. } = *measured else { return Verdict::NotMeasured };
    let is_met = match target.bound {
        Bound::AtMost(bound) => median <= bound,
        Bound::AtLeast(bound) => median >= bound,
    };
    if is_met { Verdict::Met } else { Verdict::Missed }
}

impl fmt::Display for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = |length: fn(&Target) -> usize| {
            self.0.iter().map(|(target, _)| length(target)).max().unwrap_or_default()
        };
        let part_width = longest(|target| target.part.to_string().len());
        let name_width = longest(|target| target.name.chars().count());
        writeln!(
            f,
            "{:part_width$}  {:name_width$}  {:>9}  {:<19} {:>6}  {:15} verdict",
            "part", "target", "result", "(least … greatest)", "bound", "unit"
        )?;
        for (target, measured) in &self.0 {
            write!(f, "{:part_width$}  {:name_width$}  ", target.part, target.name)?;
            let (median, range, verdict) = match measured {
                Measured::Missing(reason) => {
                    ("–".to_owned(), String::new(), format!("not measured: {reason}"))
                }
                Measured::Value { median, least, greatest } => {
                    let range = format!("({} … {})", short(*least), short(*greatest));
                    let has_range = least < greatest;
                    let verdict = if judge(target, measured) == Verdict::Met { "met" } else { "missed" };
                    (short(*median), if has_range { range } else { String::new() }, verdict.to_owned())
                }
            };
            writeln!(f, "{median:>9}  {range:19} {:>6}  {:15} {verdict}", target.bound, target.unit)?;
        }
        let [met, missed, not_measured] =
            [Verdict::Met, Verdict::Missed, Verdict::NotMeasured].map(|verdict| self.count(verdict));
        write!(f, "{met} met, {missed} missed, {not_measured} not measured")?;
        for (target, _) in
            self.0.iter().filter(|(target, measured)| judge(target, measured) == Verdict::Missed)
        {
            write!(f, "\n  missed: {}, {}: {}", target.part, target.name, target.reason)?;
        }
        Ok(())
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self {
            Self::AtMost(bound) => format!("≤ {bound}"),
            Self::AtLeast(bound) => format!("≥ {bound}"),
        })
    }
}

/// Formats a value with two decimals, unless it is so large that they mean nothing.
fn short(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::{ETCD_PAIR, REDIS_TASKS, REDIS_WAITER};

    fn median(median: f64) -> Measured {
        Measured::Value { median, least: 0.0, greatest: 9.0 }
    }

    #[test]
    fn the_bound_itself_meets_the_target() {
        assert_eq!(ETCD_PAIR.bound, Bound::AtMost(1.05));
        assert_eq!(judge(&ETCD_PAIR, &median(1.05)), Verdict::Met);
        assert_eq!(judge(&ETCD_PAIR, &median(1.051)), Verdict::Missed);
        assert_eq!(REDIS_TASKS.bound, Bound::AtLeast(0.9));
        assert_eq!(judge(&REDIS_TASKS, &median(0.9)), Verdict::Met);
        assert_eq!(judge(&REDIS_TASKS, &median(0.899)), Verdict::Missed);
    }

    #[test]
    fn a_bound_of_zero_is_met_by_zero_only() {
        assert_eq!(judge(&REDIS_WAITER, &median(0.0)), Verdict::Met);
        assert_eq!(judge(&REDIS_WAITER, &median(0.5)), Verdict::Missed);
    }

    #[test]
    fn a_missing_result_is_neither_met_nor_missed() {
        let missing = Measured::Missing("no server".to_owned());
        assert_eq!(judge(&ETCD_PAIR, &missing), Verdict::NotMeasured);
    }
}
