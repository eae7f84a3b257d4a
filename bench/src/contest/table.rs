//! One measurement of all contestants, taken round by round and printed as one row for each.

use super::{Contestant, Measure, Outcome};
use crate::{figures::Figures, results::Results, targets::Target};

/// The results of a measurement. `T` is the result of one round of one contestant, which `M` measures.
pub(crate) struct Table<'a, T, M: ?Sized = dyn Measure>(Vec<Row<'a, T, M>>);

pub(crate) struct Row<'a, T, M: ?Sized = dyn Measure> {
    contestant: &'a Contestant<M>,
    pub(crate) rounds: Vec<T>,
    /// Error that ended the measurement of this contestant.
    error: Option<String>,
}

impl<'a, T, M: ?Sized> Table<'a, T, M> {
    /// Measures each contestant for `rounds(contestant)` rounds, alternately with the others.
    ///
    /// Each round of a contestant uses its own lock name. A contestant with several rounds runs one
    /// more before them, as a warm-up that does not count. A contestant without rounds has no row.
    pub(crate) async fn measure(
        contestants: &'a [Contestant<M>],
        measurement: &str,
        rounds: impl Fn(&Contestant<M>) -> usize,
        run_round: impl AsyncFn(&Contestant<M>, &M, &str) -> Outcome<T>,
    ) -> Self {
        let included = contestants.iter().filter(|contestant| rounds(contestant) > 0);
        let mut rows: Vec<_> =
            included.map(|contestant| Row { contestant, rounds: Vec::new(), error: None }).collect();
        let max_rounds = rows.iter().map(|row| rounds(row.contestant)).max().unwrap_or_default();
        for round in 0..=max_rounds {
            for (i, row) in rows.iter_mut().enumerate() {
                let Ok(measurements) = &row.contestant.measurements else { continue };
                let own_rounds = rounds(row.contestant);
                if round > own_rounds || (round == 0 && own_rounds == 1) || row.error.is_some() {
                    continue;
                }
                let name = format!("{measurement}-{}-{i}-{round}", std::process::id());
                match run_round(row.contestant, &**measurements, &name).await {
                    Ok(_) if round == 0 => {}
                    Ok(result) => row.rounds.push(result),
                    Err(error) => row.error = Some(error.to_string()),
                }
            }
        }
        Self(rows)
    }

    /// Returns the value of each round of a row, divided by the value of the limit in the same
    /// round.
    ///
    /// The limit is that of the row's group, or the first limit of the table if the table has none
    /// of that group.
    pub(crate) fn relative_to_limit(&self, row: &Row<'_, T, M>, value: impl Fn(&T) -> f64) -> Figures {
        let limits = || self.0.iter().filter(|limit| limit.contestant.is_limit);
        let group_limit = limits().find(|limit| limit.contestant.group == row.contestant.group);
        let mut ratios = Figures::default();
        if let Some(limit) = group_limit.or_else(|| limits().next()) {
            for (round, limit) in row.rounds.iter().zip(&limit.rounds) {
                ratios.add(value(round) / value(limit));
            }
        }
        ratios
    }

    /// Returns the rate of each round of a row, divided by the greatest rate of its rivals in the same
    /// round. Rivals that could not be measured do not count.
    pub(crate) fn relative_to_fastest(
        &self,
        row: &Row<'_, T, M>,
        rivals: &[&str],
        rate: impl Fn(&T) -> f64,
    ) -> Figures {
        let rivals: Vec<_> = rivals.iter().filter_map(|rival| self.rounds_of(rival).ok()).collect();
        row.relative_to_best(&rivals, f64::max, rate)
    }

    /// Returns the rounds of a contestant, or the reason why there are none.
    fn rounds_of(&self, name: &str) -> Result<&Row<'a, T, M>, String> {
        let row = self.0.iter().find(|row| row.contestant.name == name);
        let row = row.ok_or_else(|| format!("there is no contestant {name}"))?;
        match (&row.contestant.measurements, &row.error) {
            (Ok(_), None) => Ok(row),
            (Err(reason), _) | (_, Some(reason)) => Err(format!("{name}: {reason}")),
        }
    }

    /// Records the values of one contestant as the result of a target.
    pub(crate) fn record(
        &self,
        results: &Results,
        target: &Target,
        contestant: &str,
        values: impl Fn(&Row<'a, T, M>) -> Figures,
    ) -> Outcome {
        match self.rounds_of(contestant) {
            Ok(row) => results.measured(target, &values(row)),
            Err(reason) => results.missing(target, &reason),
        }
    }

    /// Records the values of one contestant, divided by the least value of its rivals in the same
    /// round, as the result of a target.
    ///
    /// All rivals have to be measured. Without one of them the ratio would be too favourable.
    pub(crate) fn record_ratio(
        &self,
        results: &Results,
        target: &Target,
        contestant: &str,
        rivals: &[&str],
        value: impl Fn(&T) -> f64,
    ) -> Outcome {
        self.record_best_ratio(results, target, contestant, rivals, f64::min, value)
    }

    /// As [`record_ratio`](Self::record_ratio), with the greatest value of the rivals. The values are
    /// rates.
    pub(crate) fn record_rate_ratio(
        &self,
        results: &Results,
        target: &Target,
        contestant: &str,
        rivals: &[&str],
        rate: impl Fn(&T) -> f64,
    ) -> Outcome {
        self.record_best_ratio(results, target, contestant, rivals, f64::max, rate)
    }

    fn record_best_ratio(
        &self,
        results: &Results,
        target: &Target,
        contestant: &str,
        rivals: &[&str],
        best: fn(f64, f64) -> f64,
        value: impl Fn(&T) -> f64,
    ) -> Outcome {
        match rivals.iter().map(|rival| self.rounds_of(rival)).collect::<Result<Vec<_>, _>>() {
            Ok(rivals) => {
                self.record(results, target, contestant, |row| row.relative_to_best(&rivals, best, &value))
            }
            Err(reason) => results.missing(target, &reason),
        }
    }

    pub(crate) fn print(&self, title: &str, columns: &str, cells: impl Fn(&Row<'a, T, M>) -> String) {
        let names = self.0.iter().map(|row| row.contestant.name.chars().count());
        let width = names.max().unwrap_or_default().max(20);
        println!("\n{title}\n  {:width$}  {columns}", "");
        for row in &self.0 {
            let cells = match (&row.contestant.measurements, &row.error) {
                (Ok(_), None) => cells(row),
                (Err(reason), _) | (_, Some(reason)) => format!("not measured: {reason}"),
            };
            println!("  {:width$}  {cells}", row.contestant.name);
        }
    }
}

impl<T, M: ?Sized> Row<'_, T, M> {
    /// Returns the value of each round, divided by the best value of the rivals in the same round.
    fn relative_to_best(
        &self,
        rivals: &[&Self],
        best: fn(f64, f64) -> f64,
        value: impl Fn(&T) -> f64,
    ) -> Figures {
        let round_ratio = |(round, result): (usize, &T)| {
            let rivals = rivals.iter().filter_map(|rival| rival.rounds.get(round)).map(&value);
            value(result) / rivals.fold(f64::NAN, best)
        };
        self.rounds.iter().enumerate().map(round_ratio).collect()
    }
}

impl Table<'_, Figures> {
    /// Formats the median and the 99th percentile of all rounds, and the ratio of the medians to
    /// the limit's.
    pub(crate) fn times(&self, row: &Row<'_, Figures>, decimals: usize) -> String {
        let [p50, p99] = [0.5, 0.99].map(|share| row.all().quantile(share));
        let ratio = self.relative_to_limit(row, |round| round.quantile(0.5));
        format!("{p50:9.decimals$} {p99:9.decimals$}  {ratio}")
    }
}

impl Table<'_, [f64; 2]> {
    /// Records the counted cost of an acquisition and a release as the result of a target.
    pub(crate) fn record_sum(&self, results: &Results, target: &Target, contestant: &str) -> Outcome {
        self.record(results, target, contestant, |row| row.rounds.iter().map(|[a, b]| a + b).collect())
    }

    /// Prints the counted cost of an acquisition and of a release.
    pub(crate) fn print_counts(&self, title: &str) {
        self.print(title, "acquire + release", |row| {
            row.rounds
                .first()
                .map_or_else(String::new, |[acquire, release]| format!("{acquire:7} + {release}"))
        });
    }
}

impl Row<'_, Figures> {
    /// Returns the figures of all rounds together.
    pub(crate) fn all(&self) -> Figures {
        let mut all = Figures::default();
        self.rounds.iter().for_each(|round| all.join(round));
        all
    }
}
