//! One measure of all contestants, taken round by round, and printed with a row for each.

use super::{Contestant, Measured, Outcome};
use crate::figures::Figures;

/// The results of a measure. `T` is the result of one round of one contestant.
pub(crate) struct Table<'a, T>(Vec<Row<'a, T>>);

pub(crate) struct Row<'a, T> {
    who: &'a Contestant,
    pub(crate) rounds: Vec<T>,
    failed: Option<String>,
}

impl<'a, T> Table<'a, T> {
    /// Measures each contestant for as many rounds as `rounds` says, in turn with the others. Each round has a lock name of its own.
    /// A contestant with several rounds has one more before them, which does not count.
    pub(crate) async fn measure(
        contestants: &'a [Contestant],
        what: &str,
        rounds: impl Fn(&Contestant) -> usize,
        how: impl AsyncFn(&Contestant, &dyn Measured, &str) -> Outcome<T>,
    ) -> Self {
        // A contestant without rounds has no row.
        let measured = contestants.iter().filter(|who| rounds(who) > 0);
        let mut rows: Vec<_> = measured.map(|who| Row { who, rounds: Vec::new(), failed: None }).collect();
        let most = rows.iter().map(|row| rounds(row.who)).max().unwrap_or_default();
        for round in 0..=most {
            for (i, row) in rows.iter_mut().enumerate() {
                let Ok(measured) = &row.who.measured else { continue };
                let its_own = rounds(row.who);
                if round > its_own || (round == 0 && its_own == 1) || row.failed.is_some() {
                    continue;
                }
                let name = format!("{what}-{}-{i}-{round}", std::process::id());
                match how(row.who, &**measured, &name).await {
                    Ok(_) if round == 0 => {}
                    Ok(figure) => row.rounds.push(figure),
                    Err(error) => row.failed = Some(error.to_string()),
                }
            }
        }
        Self(rows)
    }

    /// The value of each round of a row, divided by that of the limit's same round. The limit is that of the row's group, or the
    /// first in the table if that one is not measured here.
    pub(crate) fn beside_limit(&self, row: &Row<'_, T>, value: impl Fn(&T) -> f64) -> Figures {
        let limits = || self.0.iter().filter(|limit| limit.who.is_limit);
        let its_own = limits().find(|limit| limit.who.group == row.who.group);
        let mut ratios = Figures::default();
        if let Some(limit) = its_own.or_else(|| limits().next()) {
            for (one, limit) in row.rounds.iter().zip(&limit.rounds) {
                ratios.add(value(one) / value(limit));
            }
        }
        ratios
    }

    pub(crate) fn print(&self, title: &str, columns: &str, cells: impl Fn(&Row<'a, T>) -> String) {
        println!("\n{title}\n  {:20}  {columns}", "");
        for row in &self.0 {
            let cells = match (&row.who.measured, &row.failed) {
                (Ok(_), None) => cells(row),
                (Err(why), _) | (_, Some(why)) => format!("not measured: {why}"),
            };
            println!("  {:20}  {cells}", row.who.name);
        }
    }
}

impl Table<'_, Figures> {
    /// The median and the 99th percentile of all rounds, and the medians compared with the limit's.
    pub(crate) fn times(&self, row: &Row<'_, Figures>, decimals: usize) -> String {
        let [p50, p99] = [0.5, 0.99].map(|share| row.all().quantile(share));
        let ratio = self.beside_limit(row, |round| round.quantile(0.5));
        format!("{p50:9.decimals$} {p99:9.decimals$}  {ratio}")
    }
}

impl Table<'_, [f64; 2]> {
    /// What an acquisition and a release cost, as a server counts it.
    pub(crate) fn print_counts(&self, title: &str) {
        self.print(title, "acquire + release", |row| {
            row.rounds
                .first()
                .map_or_else(String::new, |[acquire, release]| format!("{acquire:7} + {release}"))
        });
    }
}

impl Row<'_, Figures> {
    /// The figures of all rounds together.
    pub(crate) fn all(&self) -> Figures {
        let mut all = Figures::default();
        self.rounds.iter().for_each(|round| all.join(round));
        all
    }
}
