//! Sets of times, as sorted spans that do not overlap.

use super::super::clock::Nanos;

/// A span of time, from its start up to but excluding its end.
pub(super) type Span = (Nanos, Nanos);

/// Sorts the spans, and joins those that overlap or touch.
pub(super) fn union(mut spans: Vec<Span>) -> Vec<Span> {
    spans.retain(|(from, until)| from < until);
    spans.sort_unstable();
    let mut joined = Vec::<Span>::new();
    for (from, until) in spans {
        match joined.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(until),
            _ => joined.push((from, until)),
        }
    }
    joined
}

/// Returns the part of `whole` that is in none of the spans, which are a [`union`].
pub(super) fn without(whole: &[Span], spans: &[Span]) -> Vec<Span> {
    let mut rest = Vec::new();
    let mut first = 0;
    for &(mut from, until) in whole {
        while spans.get(first).is_some_and(|span| span.1 <= from) {
            first += 1;
        }
        for &(start, end) in spans[first..].iter().take_while(|span| span.0 < until) {
            if from < start {
                rest.push((from, start));
            }
            from = from.max(end);
        }
        if from < until {
            rest.push((from, until));
        }
    }
    rest
}

/// Returns the times that are in both sets.
pub(super) fn common(a: &[Span], b: &[Span]) -> Vec<Span> {
    without(a, &without(&[(0, Nanos::MAX)], b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_touch_are_one() {
        assert_eq!(union(vec![(5, 6), (1, 3), (3, 4), (2, 3), (8, 8)]), [(1, 4), (5, 6)]);
    }

    #[test]
    fn a_difference_has_the_times_outside_of_the_spans() {
        assert_eq!(without(&[(0, 10)], &[(1, 2), (4, 6)]), [(0, 1), (2, 4), (6, 10)]);
        assert_eq!(without(&[(0, 3), (5, 9)], &[(2, 6), (8, 12)]), [(0, 2), (6, 8)]);
        assert_eq!(without(&[(1, 2)], &[(0, 3)]), []);
        assert_eq!(without(&[(1, 2)], &[]), [(1, 2)]);
    }

    #[test]
    fn an_intersection_has_the_times_of_both() {
        assert_eq!(common(&[(0, 4), (6, 9)], &[(2, 7)]), [(2, 4), (6, 7)]);
    }
}
