//! Median and spread of repeated measurements.

use serde::Serialize;

/// The median of some measurements, and how far they lie apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// How many there were.
    pub count: usize,
}

impl Spread {
    /// Sums up `values`; all zero when there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (values.first(), values.last()) else {
            return Spread::default();
        };
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Spread { median, min, max, count: values.len() }
    }

    /// Half the distance of the extremes, in percent of the median.
    #[must_use]
    pub fn percent(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.max - self.min) / 2.0 / self.median * 100.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let odd = Spread::of(vec![3.0, 1.0, 100.0]);
        assert_eq!((odd.median, odd.min, odd.max, odd.count), (3.0, 1.0, 100.0, 3));
        assert_eq!(Spread::of(vec![4.0, 2.0]).median, 3.0);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
