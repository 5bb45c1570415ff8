//! Plots as SVG: lines over two axes, each of which may be logarithmic.
//!
//! Written here and not by a crate: none has an axis for the tail of a distribution, and a page with these plots needs no more than
//! lines, marks and texts.

use std::fmt::Write as _;

/// The size of a plot, and the room for the axes' texts.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 34.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;

/// Colours that people with weak colour vision tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8b8b00", "#7f7f7f"];

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    /// From zero on, evenly.
    Linear,
    /// Each power of ten takes the same room.
    Log,
    /// Each power of two does.
    Doubling,
    /// Of quantiles: each further nine takes the same room.
    Tail,
}

/// One axis.
pub(super) struct Axis {
    pub(super) title: &'static str,
    pub(super) scale: Scale,
    /// What a value is called at the axis.
    pub(super) label: fn(f64) -> String,
}

/// A line through points.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Scale {
    /// A value on an even scale; `None` where it has no place.
    fn even(self, value: f64) -> Option<f64> {
        let even = match self {
            Scale::Linear => value,
            Scale::Log => value.log10(),
            Scale::Doubling => value.log2(),
            Scale::Tail => -(1.0 - value).log10(),
        };
        even.is_finite().then_some(even)
    }

    /// What stands between two even values, as values: some five to ten of them.
    fn ticks(self, low: f64, high: f64) -> Vec<f64> {
        let whole = |step: usize| {
            (low.ceil() as i32..=high.floor() as i32).step_by(step.max(1)).map(f64::from).collect::<Vec<_>>()
        };
        let step = ((high - low) / 10.0).ceil() as usize;
        match self {
            Scale::Linear => {
                let rough = 10f64.powf(((high - low) / 5.0).max(f64::MIN_POSITIVE).log10().floor());
                let fits = |factor: &&f64| (high - low) / (rough * **factor) <= 8.0;
                let step = rough * [1.0, 2.0, 5.0, 10.0].iter().find(fits).unwrap_or(&10.0);
                (0..=12).map(|index| index as f64 * step).filter(|tick| (low..=high).contains(tick)).collect()
            }
            Scale::Log => {
                let ticks = whole(step).into_iter().map(|power| 10f64.powf(power));
                // Less than two powers: halves and fifths, too.
                if high - low > 2.0 {
                    return ticks.collect();
                }
                let powers = low.floor() as i32..=high.ceil() as i32;
                let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
                all.filter(|tick| (low - 1e-9..=high + 1e-9).contains(&tick.log10())).collect()
            }
            Scale::Doubling => whole(step).into_iter().map(|power| 2f64.powf(power)).collect(),
            Scale::Tail => whole(1).into_iter().map(|nines| 1.0 - 10f64.powf(-nines)).collect(),
        }
    }
}

/// Where values are on one axis: from an even scale to pixels.
struct Place {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Place {
    fn new(scale: Scale, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Place> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for even in values.filter_map(|value| scale.even(value)) {
            (low, high) = (low.min(even), high.max(even));
        }
        if !low.is_finite() {
            return None;
        }
        match scale {
            Scale::Linear => (low, high) = (0.0, high * 1.05),
            Scale::Tail => low = 0.0,
            Scale::Log | Scale::Doubling => {}
        }
        if high - low < 1e-9 {
            (low, high) = (low - 0.5, high + 0.5);
        }
        Some(Place { scale, low, high, from, to })
    }

    fn of(&self, value: f64) -> Option<f64> {
        let even = self.scale.even(value)?;
        Some(self.from + (even - self.low) / (self.high - self.low) * (self.to - self.from))
    }
}

/// A plot with a legend as HTML, or a sentence if there is nothing to draw.
pub(super) fn chart(title: &str, x: &Axis, y: &Axis, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let places = Place::new(x.scale, all().map(|point| point.0), LEFT, WIDTH - RIGHT).zip(Place::new(
        y.scale,
        all().map(|point| point.1),
        HEIGHT - BOTTOM,
        TOP,
    ));
    let title = escaped(title);
    let Some((across, up)) = places else {
        return format!("<figure><h3>{title}</h3><p>Not measured in these results.</p></figure>\n");
    };
    let mut svg = format!(
        "<figure><h3>{title}</h3>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">\n"
    );
    // Writing to a text does not fail.
    for tick in x.scale.ticks(across.low, across.high) {
        let Some(at) = across.of(tick) else { continue };
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{:.1}\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            escaped(&(x.label)(tick))
        );
    }
    for tick in y.scale.ticks(up.low, up.high) {
        let Some(at) = up.of(tick) else { continue };
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            escaped(&(y.label)(tick))
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"axis\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"axis\" transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 10.0,
        escaped(x.title),
        (TOP + HEIGHT - BOTTOM) / 2.0,
        escaped(y.title)
    );
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // The second round of colours is dashed.
        let dash = if index < COLOURS.len() { "" } else { " stroke-dasharray=\"6 3\"" };
        let spots: Vec<(f64, f64, &(f64, f64))> = line
            .points
            .iter()
            .filter_map(|point| Some((across.of(point.0)?, up.of(point.1)?, point)))
            .collect();
        let path: Vec<String> = spots.iter().map(|(x, y, _)| format!("{x:.1} {y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} d=\"M{}\"/>",
            path.join("L")
        );
        // Marks of a distribution would hide its line.
        if spots.len() <= 20 {
            for (at_x, at_y, (value_x, value_y)) in spots {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{at_x:.1}\" cy=\"{at_y:.1}\" r=\"3.5\" fill=\"{colour}\"><title>{}: {}, {}</title></circle>",
                    escaped(&line.name),
                    escaped(&(x.label)(*value_x)),
                    escaped(&(y.label)(*value_y))
                );
            }
        }
    }
    svg += "</svg>\n<ul class=\"legend\">";
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let style = if index < COLOURS.len() { "solid" } else { "dashed" };
        let name = escaped(&line.name);
        let _ = write!(svg, "<li><i style=\"border-top:3px {style} {colour}\"></i>{name}</li>");
    }
    svg + "</ul></figure>\n"
}

/// Horizontal bars from zero on, each with its name and its value.
pub(super) fn bars(title: &str, values: &[(String, f64)], label: fn(f64) -> String) -> String {
    const ROW: f64 = 30.0;
    const NAMES: f64 = 190.0;
    const VALUES: f64 = 90.0;
    let most = values.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let title = escaped(title);
    let mut svg = format!(
        "<figure><h3>{title}</h3>\n<svg viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{title}\">\n",
        ROW * values.len().max(1) as f64
    );
    for (index, (name, value)) in values.iter().enumerate() {
        let (top, len) = (ROW * index as f64, (WIDTH - NAMES - VALUES) * value / most);
        // Ours first: all others have the second colour.
        let colour = COLOURS[usize::from(!name.starts_with("stag"))];
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{NAMES}\" y=\"{:.1}\" width=\"{len:.1}\" height=\"18\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            NAMES - 8.0,
            top + 19.0,
            escaped(name),
            top + 6.0,
            NAMES + len + 8.0,
            top + 19.0,
            escaped(&label(*value))
        );
    }
    svg + "</svg></figure>\n"
}

/// A text within HTML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale) -> Axis {
        Axis { title: "t", scale, label: |value| format!("{value}") }
    }

    #[test]
    fn each_nine_takes_the_same_room() {
        let place = Place::new(Scale::Tail, [0.0, 0.5, 0.9, 0.99, 0.999].into_iter(), 0.0, 300.0).unwrap();
        for (quantile, at) in [(0.0, 0.0), (0.9, 100.0), (0.99, 200.0), (0.999, 300.0)] {
            assert!((place.of(quantile).unwrap() - at).abs() < 1e-6, "{quantile}");
        }
        assert_eq!(place.of(1.0), None, "the maximum has no place on it");
    }

    #[test]
    fn axes_have_some_ticks() {
        for (scale, low, high) in [
            (Scale::Linear, 0.0, 3.1e6),
            (Scale::Linear, 0.0, 0.07),
            (Scale::Log, 2.1, 2.9),
            (Scale::Log, 2.0, 9.5),
            (Scale::Doubling, 6.0, 20.0),
            (Scale::Tail, 0.0, 5.2),
        ] {
            let ticks = scale.ticks(low, high);
            assert!((2..=15).contains(&ticks.len()), "{scale:?} {low} {high}: {ticks:?}");
            let even: Vec<_> = ticks.iter().map(|tick| scale.even(*tick).unwrap()).collect();
            assert!(even.is_sorted() && even[0] >= low - 1e-6 && even[even.len() - 1] <= high + 1e-6);
        }
    }

    #[test]
    fn a_chart_has_each_line_and_no_markup_of_names() {
        let line =
            |name: &str, points: &[(f64, f64)]| Line { name: name.to_owned(), points: points.to_vec() };
        let lines = [line("a<b", &[(1.0, 10.0), (2.0, 20.0)]), line("one", &[(4.0, 5.0)])];
        let drawn = chart("x & y", &axis(Scale::Doubling), &axis(Scale::Linear), &lines);
        assert_eq!((drawn.matches("<circle").count(), drawn.matches("<li>").count()), (3, 2), "{drawn}");
        assert!(drawn.contains("a&lt;b") && drawn.contains("x &amp; y") && !drawn.contains("NaN"), "{drawn}");
        let empty = chart("x", &axis(Scale::Log), &axis(Scale::Log), &[line("none", &[])]);
        assert!(empty.contains("Not measured"), "{empty}");
        let lone =
            chart("x", &axis(Scale::Log), &axis(Scale::Log), &[line("one", &[(0.0, 1.0), (3.0, 3.0)])]);
        assert!(!lone.contains("NaN") && !lone.contains("inf"), "{lone}");
    }
}
