//! Values of several rounds, printed as median, least and greatest.

use std::{fmt, time::Duration};

/// The measured values of one quantity.
#[derive(Debug, Default)]
pub(crate) struct Figures(Vec<f64>);

impl Figures {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn micros(spans: &[Duration]) -> Self {
        spans.iter().map(|span| span.as_secs_f64() * 1e6).collect()
    }

    pub(crate) fn millis(spans: &[Duration]) -> Self {
        spans.iter().map(|span| span.as_secs_f64() * 1e3).collect()
    }

    pub(crate) fn add(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn join(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }

    pub(crate) fn add_micros(&mut self, span: Duration) {
        self.add(span.as_secs_f64() * 1e6);
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// Returns a quantile of the values, such as the median for `0.5`.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut values = self.0.clone();
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        values.get((last * share).round() as usize).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Figures {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, least, greatest] = [0.5, 0.0, 1.0].map(|share| self.quantile(share));
        write!(f, "{median:9.2}  ({least:.2} … {greatest:.2})")
    }
}
